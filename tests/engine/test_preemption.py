"""Preemption at any moment, of anyone: the answers stay, results of the life before do not count."""

import random
from typing import Any

import pytest
from engine_checks import CheckedWorld
from engine_machine import Reference, assert_same_logprobs
from engine_world import World, compose, random_requests, request

REFERENCE = Reference()
PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4, 7, 6, 5, 3, 2]


def assert_as_alone(world: World, requests: list[Any]) -> None:
    for item in requests:
        for child, wanted in REFERENCE.of(world.composition.model.spec.name, item).items():
            outcome = world.outcomes[item.request_id, child]
            assert outcome.said == wanted.said, (item, outcome.error)
            assert_same_logprobs(outcome.logprobs, wanted.logprobs)
            assert_same_logprobs(outcome.prompt_logprobs, wanted.prompt_logprobs)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("speculator", [None, {"plugin": "featured", "options": {"seed": 1}}, {"plugin": "on-device"}])
@pytest.mark.parametrize("seed", range(4))
def test_sequences_that_are_preempted_at_random_say_what_they_say_alone(depth: int, speculator: Any, seed: int) -> None:
    rng = random.Random(seed)
    requests = [item for item in random_requests(rng, 7) if len(item.prompt_ids) + item.sampling.max_tokens <= 34]
    codec = rng.choice(["dense", {"plugin": "sealing", "options": {"residual": 2}}])
    world = CheckedWorld(
        compose(depth=depth, lazy=True, batch=9, sequences=4, speculator=speculator, codec=codec, longest=34)
    )
    world.add(*requests)
    for _ in range(2000):
        running = list(world.core.state.running.values())
        if running and rng.random() < 0.2:
            world.core.state.preempt(rng.choice(running))
        if not world.core.busy:
            break
        world.step()
    assert world.core.state.preempted > 0
    assert_as_alone(world, requests)
    world.finish()


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_prompt_that_was_scored_in_part_is_scored_again_from_its_beginning(after: int) -> None:
    item = request("s", PROMPT, task="score", prompt_logprobs=2)
    world = World(compose(batch=5))
    world.add(item)
    for _ in range(after):
        world.step()
    (seq,) = world.core.state.running.values()
    assert 0 < len(seq.prompt_logprobs) < len(PROMPT)
    world.core.state.preempt(seq)
    world.run()
    assert_as_alone(world, [item])
