"""Random programs have teeth: every seeded bug is caught, and the engine as it is passes the same programs."""

import random

import pytest
import test_behaviour as behaviour
from engine_bugs import BUGS
from engine_world import World, compose, random_requests, request, serial
from test_random_programs import run_program

SEEDS = range(200, 216)


def scenarios() -> None:
    """Programs with what particular bugs need, then random ones."""
    behaviour.test_different_salts_share_nothing()
    behaviour.test_draft_kv_and_features_are_right_through_hits_and_forks()
    behaviour.test_blocks_that_fail_are_computed_and_not_asked_again()
    draft_kv_of_a_changed_continuation()
    for speculator in (None, {"plugin": "featured"}):
        assert sum(busy(seed, speculator) for seed in range(1, 6)) > 0
    for after in (2, 4):
        behaviour.test_an_abort_at_any_step_leaves_nothing(1, after, None)
    for seed in SEEDS:
        run_program(seed)


def draft_kv_of_a_changed_continuation() -> None:
    """Two prompts that differ in the token right after a full page: draft KV of that page must differ."""
    world = World(compose(speculator={"plugin": "featured", "options": {"seed": 1}}))
    first = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    world.run(request("a", first, max_tokens=4))
    world.run(request("b", [*first[:8], 2, 3], max_tokens=6))
    assert "speculator.featured" not in world.faults, world.faults


def busy(seed: int, speculator: object) -> int:
    """Many sequences in a small pool at depth 1; returns how often one was preempted."""
    requests = random_requests(random.Random(seed), 8)
    wanted = serial(requests)
    world = World(compose(pages=20, depth=1, lazy=True, sequences=6, batch=16, speculator=speculator))
    world.run(*requests)
    assert {key: outcome.said for key, outcome in world.outcomes.items()} == wanted
    world.finish()
    return world.core.state.preempted


@pytest.mark.slow
def test_the_engine_as_it_is_passes() -> None:
    scenarios()


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_a_seeded_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    what, apply = BUGS[name]
    apply(monkeypatch)
    with pytest.raises(Exception) as caught:  # noqa: PT011  an assertion, a fault, or a key that is gone
        scenarios()
    assert caught.value is not None, what
