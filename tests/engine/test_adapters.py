"""Adapters in the engine: each row under its own, prefixes by content. `World` compares all KV with the oracle's."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_world import ADAPTERS, DIGESTS, VOCAB, World, compose, request, serial

from tokloom.conformance.doubles import oracle
from tokloom.conformance.doubles.tagged import TaggedModel
from tokloom.core.batch import adapter_rows
from tokloom.core.engine import EngineCore
from tokloom.sdk import AdapterRows, CheckpointError, PluginFault

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4, 7, 6, 5, 3, 2]


def said(prompt: list[int], count: int, adapter: str) -> tuple[int, ...]:
    """The oracle's continuation under an adapter."""
    tag = oracle.adapter_tag(DIGESTS[adapter] if adapter else "")
    return tuple(oracle.greedy(prompt, count, (None, None), VOCAB, adapter=tag))


@pytest.mark.parametrize(
    "speculator",
    [None, {"plugin": "ngram"}, {"plugin": "featured"}, {"plugin": "on-device", "options": {"mode": "trees"}}],
)
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("batch", [5, 64])
def test_sequences_of_one_batch_keep_their_adapters(speculator: Any, depth: int, batch: int) -> None:
    names = ["", "red", "blue", "rouge", "", "blue", "red"]
    world = World(compose(batch=batch, sequences=5, depth=depth, lazy=True, speculator=speculator))
    world.run(*(request(str(i), PROMPT[: 9 + i], adapter=name) for i, name in enumerate(names)))
    for i, name in enumerate(names):
        assert world.outcomes[str(i), 0].said == (said(PROMPT[: 9 + i], 8, name), "length"), name
    assert not world.faults
    assert said(PROMPT, 8, "") != said(PROMPT, 8, "red") != said(PROMPT, 8, "blue")
    world.finish()


def test_prefixes_are_shared_by_content_never_between_adapters_and_the_base() -> None:
    world = World(compose())
    names = ["", "red", "blue", "rouge", "", "blue"]
    for i, name in enumerate(names):
        world.run(request(str(i), PROMPT, adapter=name))
    hits = [world.usage(str(i)).hit_tokens for i in range(len(names))]
    assert hits == [0, 0, 0, 16, 16, 16]


def test_a_tier_keeps_adapters_apart() -> None:
    tier = {"plugin": "host", "options": {"capacity": "1MiB"}}
    world = World(compose(pages=20, sequences=1, tiers=[tier], longest=40))
    world.run(request("a", PROMPT, adapter="red"))
    for i in range(4):  # push its pages out of the pool
        world.run(request(f"x{i}", [i, *PROMPT], adapter="red"))
    world.run(request("b", PROMPT, adapter="blue"), request("c", PROMPT, adapter="rouge"))
    assert world.usage("b").tier_tokens == 0
    assert world.usage("c").tier_tokens > 0
    assert world.outcomes["c", 0].said == (said(PROMPT, 8, "red"), "length")


def test_forks_and_preempted_sequences_keep_their_adapter() -> None:
    rng = random.Random(3)
    requests = [
        request(str(i), PROMPT[i:], adapter=rng.choice(["", "red", "blue"]), n=3, temperature=1.0, seed=i, max_tokens=9)
        for i in range(6)
    ]
    world = World(compose(pages=20, sequences=6))
    world.run(*requests)
    assert world.core.state.preempted > 0
    assert {key: outcome.said for key, outcome in world.outcomes.items()} == serial(requests)
    world.finish()


def test_recorded_steps_are_used_where_no_row_has_an_adapter() -> None:
    world = World(compose(attention="tags", graphs="on"))
    world.run(request("red", PROMPT, adapter="red"))
    assert world.core.runner.graphs.replays == 0
    world.run(request("base", PROMPT))
    assert world.core.runner.graphs.replays > 0
    assert world.outcomes["red", 0].said == (said(PROMPT, 8, "red"), "length")
    assert world.outcomes["base", 0].said == (said(PROMPT, 8, ""), "length")


def test_rows_are_grouped_by_adapter_and_neighbours_joined() -> None:
    indptr = np.array([0, 1, 2, 5, 6, 9, 10], dtype=np.int32)
    assert adapter_rows(["a", "a", "", "b", "a", ""], indptr) == (
        AdapterRows("a", ((0, 2), (6, 9))),
        AdapterRows("b", ((5, 6),)),
    )
    assert adapter_rows([""] * 6, indptr) == ()


def test_two_names_of_one_content_are_loaded_once() -> None:
    world = World(compose())
    model: Any = world.composition.model
    assert sorted(model.adapters) == sorted(set(DIGESTS.values()))
    assert dict(world.core.adapters) == DIGESTS
    assert len(DIGESTS) == 3


def test_an_adapter_that_changes_after_composition_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    composition = compose(adapters={"a": str(tmp_path / "a")})
    (tmp_path / "a").write_text("two")
    with pytest.raises(CheckpointError, match="has changed"):
        EngineCore(composition)


def test_a_family_that_breaks_on_an_adapter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, path: Path) -> Any:
        raise ZeroDivisionError(path)

    monkeypatch.setattr(TaggedModel, "open_adapter", broken)
    with pytest.raises(PluginFault, match="open_adapter raised ZeroDivisionError") as caught:
        compose(adapters=ADAPTERS)
    assert caught.value.subject == "model.tagged"
