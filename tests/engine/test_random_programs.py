"""Random programs: whatever is composed, each request says what it says alone, and nothing is left behind."""

import random
from typing import Any

import pytest
from engine_world import World, compose, random_requests, serial

SPECULATORS: list[Any] = [
    None,
    {"plugin": "ngram"},
    {"plugin": "oracle", "options": {"mode": ""}},
    {"plugin": "oracle", "options": {"mode": "trees"}},
    {"plugin": "oracle", "options": {"mode": "wrong"}},
    {"plugin": "garbage"},
    {"plugin": "featured"},
    {"plugin": "on-device", "options": {"mode": ""}},
    {"plugin": "on-device", "options": {"mode": "trees"}},
]
CODECS: list[Any] = [
    "dense",
    "scaled",
    {"plugin": "sealing", "options": {"residual": 0}},
    {"plugin": "sealing", "options": {"residual": 3}},
]
TIERS: list[list[Any]] = [
    [],
    [],
    ["slow"],
    [{"plugin": "slow", "options": {"mode": "pending"}}],
    [{"plugin": "slow", "options": {"mode": "failing"}}],
    [{"plugin": "slow", "options": {"mode": "lying"}}],
    [{"plugin": "slow", "options": {"mode": "raising"}}],
    ["layered", {"plugin": "host", "options": {"capacity": "1MiB"}}],
]
SCHEDULERS: list[Any] = [
    "plain",
    "fcfs",
    "chaos",
    "chaos",
    {"plugin": "broken", "options": {"mode": "raise"}},
    {"plugin": "broken", "options": {"mode": "nonsense"}},
]


def seeded(section: Any, seed: int) -> Any:
    """A section whose double gets a seed."""
    if not isinstance(section, dict) or section["plugin"] in ("host", "ngram"):
        return section
    return {**section, "options": {**section.get("options", {}), "seed": seed}}


def program(seed: int) -> tuple[random.Random, dict[str, Any]]:
    """A random composition."""
    rng = random.Random(seed)
    page = rng.choice([1, 3, 4, 8])
    options: dict[str, Any] = {
        "model": rng.choice(["tagged", "tagged-window", "tagged-eos"]),
        "page": page,
        "pages": rng.randint(64 // page + 3, 130 // page + 5),
        "depth": rng.choice([0, 0, 1]),
        "lazy": rng.random() < 0.5,
        "batch": rng.choice([5, 8, 16, 64]),
        "sequences": rng.randint(1, 6),
        "speculator": seeded(rng.choice(SPECULATORS), seed),
        "codec": rng.choice(CODECS),
        "tiers": [seeded(tier, seed) for tier in rng.choice(TIERS)],
        "scheduler": seeded(rng.choice(SCHEDULERS), seed),
        "attention": rng.choice(["torch", "torch", "torch", "writer"]),
        "observers": rng.choice([["recorder"], ["raising", "recorder"]]),
        "prefix_wait": rng.choice([0, 64]),
    }
    if options["codec"] != "dense":
        options["attention"] = "torch"
    options["sequences"] = min(options["sequences"], options["batch"])
    return rng, options


def run_program(seed: int) -> World:
    """Run a program with aborts on the way; compare every outcome with the serial reference."""
    rng, options = program(seed)
    requests = random_requests(rng, rng.randint(2, 8))
    wanted = serial(requests, options["model"])
    world = World(compose(**options))
    waiting = list(requests)
    doomed = {item.request_id for item in requests if rng.random() < 0.12}
    steps = 0
    while waiting or world.core.busy:
        while waiting and rng.random() < 0.5:
            world.add(waiting.pop(0))
        if doomed and rng.random() < 0.15:
            world.core.abort(doomed.pop())
        world.step()
        steps += 1
        assert steps < 6000, f"seed {seed} hangs: {options}"
    for key, outcome in world.outcomes.items():
        if outcome.reason == "abort":
            assert tuple(outcome.tokens) == wanted[key][0][: len(outcome.tokens)], (seed, key, options)
        else:
            assert outcome.said == wanted[key], (seed, key, options, world.faults, outcome.error)
    assert world.outcomes.keys() == wanted.keys()
    world.finish()
    return world


@pytest.mark.parametrize("seed", range(36))
def test_a_random_program_says_what_each_request_says_alone(seed: int) -> None:
    run_program(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_many_random_programs(block: int) -> None:
    first = random.SystemRandom().randrange(1 << 30)
    print("seeds from", first)
    for seed in range(first, first + 20):
        run_program(seed)


def test_the_programs_reach_what_they_are_for() -> None:
    totals: dict[str, int] = {}
    for seed in range(100, 130):
        world = run_program(seed)
        stats = world.core.state.allocator.stats()
        counts = {
            "preemptions": world.core.state.preempted,
            "evictions": stats.evictions,
            "copies": stats.copies,
            "seals": stats.seals,
            "hits": world.core.state.hit_tokens,
            "tier": world.core.state.tiers.loaded_tokens,
            "accepted": sum(o.usage.accepted for o in world.outcomes.values() if o.usage),
            "faults": world.core.state.faults.total,
        }
        for name, count in counts.items():
            totals[name] = totals.get(name, 0) + count
    assert all(totals.values()), totals
