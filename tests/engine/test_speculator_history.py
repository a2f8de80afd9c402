"""What a host speculator is told: every row that stands, once, before it is asked, and nothing else."""

from typing import Any

import pytest
from engine_world import World, compose, greedy, parity, request, serial

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4, 7, 6, 5, 3, 2]


def told(speculator: str, seed: int = 1, **options: Any) -> World:
    return World(compose(speculator={"plugin": speculator, "options": {"seed": seed}}, **options))


def speculator_faults(world: World) -> str:
    return world.faults.get(world.composition.speculator.id, "")  # type: ignore[union-attr]


def test_nothing_is_proposed_while_a_prompt_chunk_is_in_flight() -> None:
    """At depth 1 the last prompt token is planned while the chunk before it runs: its draft KV is not there yet."""
    world = told("featured", depth=1, lazy=True, batch=8)
    world.run(request("a", PROMPT[:17], max_tokens=8))
    assert world.outcomes["a", 0].said == (greedy(PROMPT[:17], 8), "length")
    assert not speculator_faults(world)


@pytest.mark.parametrize("length", [8, 9, 12])
def test_the_last_rows_of_a_sequence_that_ends_at_once_are_ingested(length: int) -> None:
    """Its pages are found by the next one, whose draft KV must be whole."""
    world = told("featured")
    world.run(request("a", PROMPT[:length], max_tokens=1))
    world.run(request("b", PROMPT, max_tokens=8))
    assert world.usage("b").hit_tokens > 0
    assert world.composition.speculator.plugin.checked > 0  # type: ignore[union-attr]
    assert not speculator_faults(world)
    world.finish()


@pytest.mark.parametrize("speculator", ["oracle", "featured"])
@pytest.mark.parametrize("seed", range(6))
def test_rows_behind_a_stop_are_not_ingested(speculator: str, seed: int) -> None:
    tokens = greedy(PROMPT[:9], 12)
    world = told(speculator, seed)
    world.run(
        request("a", PROMPT[:9], max_tokens=30, stop_token_ids=(tokens[7],)), request("b", PROMPT[:3], max_tokens=12)
    )
    first = tokens.index(tokens[7])
    assert world.outcomes["a", 0].said == (tokens[: first + 1], "stop")
    assert world.usage("b").drafted > 0
    assert not speculator_faults(world)


@pytest.mark.parametrize("length", [1, 3, 4, 8, 9])
@pytest.mark.parametrize("model", ["tagged", "tagged-window"])
@pytest.mark.parametrize("residual", [None, 0, 2])
def test_children_have_draft_kv_of_their_own_first_token(length: int, model: str, residual: int | None) -> None:
    """The last prompt position's draft KV depends on the token after it, which differs from child to child."""
    codec = "dense" if residual is None else {"plugin": "sealing", "options": {"residual": residual}}
    world = told("featured", model=model, codec=codec)
    item = request("a", PROMPT[:length], n=6, temperature=3.0, seed=2, max_tokens=12)
    world.run(item)
    assert len({world.outcomes["a", child].tokens[0] for child in range(6)}) > 1
    assert {key: outcome.said for key, outcome in world.outcomes.items()} == serial([item], model)
    assert world.composition.speculator.plugin.checked > 0  # type: ignore[union-attr]
    assert not speculator_faults(world)
    world.finish()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("speculator", ["on-device", "featured-on-device"])
def test_a_row_behind_the_end_is_not_history(speculator: str, seed: int) -> None:
    """At depth 1 a grammar ends a sequence on the device while its next span is already planned."""
    world = told(speculator, seed, depth=1)
    world.run(
        request("a", PROMPT[:2], max_tokens=9, grammar=parity(str(seed % 7))),
        request("b", PROMPT[:5], max_tokens=9, grammar=parity(str(seed % 7))),
    )
    assert not speculator_faults(world)
    world.finish()
