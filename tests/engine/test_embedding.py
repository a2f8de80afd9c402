"""The task `embed` in the engine: chunks, hits, preemption, ends. `World` compares every vector with the oracle's."""

from typing import Any

import attrs
import pytest
import torch
from engine_world import Clock, World, compose, request

from tokloom.conformance.doubles.tagged import TaggedModel
from tokloom.core.engine import EngineCore
from tokloom.sdk import Hidden, Objectives, PluginFault, RequestError

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4, 7, 6, 5, 3, 2]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("batch", [1, 3, 4, 7, 32])
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_a_vector_does_not_depend_on_chunks(depth: int, batch: int, pooling: str) -> None:
    world = World(compose(depth=depth, lazy=True, batch=batch, sequences=min(batch, 6)))
    lengths = (1, 2, 5, len(PROMPT))
    world.run(*(request(str(n), PROMPT[:n], task="embed", pooling=pooling, normalize=False) for n in lengths))
    assert {outcome.said for outcome in world.outcomes.values()} == {((), "embedded")}
    world.finish()


def test_the_last_row_takes_hits_and_the_mean_computes_every_row() -> None:
    world = World(compose())
    for name, pooling in (("a", "mean"), ("b", "last"), ("c", "mean"), ("d", "")):
        world.run(request(name, PROMPT, task="embed", pooling=pooling))
    assert [world.usage(name).hit_tokens for name in "abcd"] == [0, 16, 0, 16]


def test_what_was_embedded_is_a_prefix_for_generation() -> None:
    world = World(compose())
    world.run(request("e", PROMPT, task="embed", pooling="mean"))
    world.run(request("g", PROMPT, max_tokens=3))
    assert world.usage("g").hit_tokens == 16


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_mean_that_was_begun_before_a_preemption_begins_again(after: int) -> None:
    world = World(compose(batch=5))
    world.add(request("e", PROMPT, task="embed", pooling="mean"))
    for _ in range(after):
        world.step()
    (seq,) = world.core.state.running.values()
    assert seq.pooled is not None
    world.core.state.preempt(seq)
    world.run()
    assert world.outcomes["e", 0].said == ((), "embedded")
    world.finish()


@pytest.mark.parametrize("speculator", [{"plugin": "ngram"}, {"plugin": "featured"}, {"plugin": "on-device"}])
def test_speculators_do_not_draft_for_it(speculator: Any) -> None:
    world = World(compose(batch=6, speculator=speculator))
    world.run(request("e", PROMPT, task="embed", pooling="mean"), request("g", PROMPT, max_tokens=9))
    assert world.usage("e").drafted == 0
    assert not world.faults
    world.finish()


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("end", ["abort", "deadline"])
def test_an_early_end_gives_no_vector_and_keeps_nothing(after: int, end: str) -> None:
    clock = Clock()
    world = World(compose(batch=5, depth=1, lazy=True, clock=clock))
    world.add(request("e", PROMPT, task="embed", pooling="mean", objectives=Objectives(deadline=5.0)))
    for _ in range(after):
        world.step()
    if end == "abort":
        world.core.abort("e")
    else:
        clock.time += 10
    world.run()
    assert world.outcomes["e", 0].said == ((), end)
    assert world.outcomes["e", 0].embedding == ()
    world.finish()


def test_hidden_states_that_are_no_numbers_are_an_error_of_that_request(monkeypatch: pytest.MonkeyPatch) -> None:
    original = TaggedModel.forward

    def broken(self: Any, batch: Any, attention: Any, ops: Any) -> Hidden:
        hidden = original(self, batch, attention, ops)
        return Hidden(torch.where(batch.token_ids[:, None] == 9, torch.nan, hidden.last), hidden.features)

    monkeypatch.setattr(TaggedModel, "forward", broken)
    world = World(compose())
    world.run(
        request("bad", [1, 9, 3], task="embed", pooling="mean"),
        request("good", [1, 9, 3], task="embed", pooling="last"),
    )
    assert world.outcomes["good", 0].said == ((), "embedded")
    outcome = world.outcomes["bad", 0]
    assert outcome.said == ((), "error")
    assert isinstance(outcome.error, PluginFault)
    assert "NaN" in str(outcome.error)
    world.finish()


def test_a_model_that_names_no_pooling_embeds_nothing() -> None:
    composition = compose()
    model: Any = composition.model
    model.spec = attrs.evolve(model.spec, poolings=())
    core = EngineCore(composition)
    with pytest.raises(RequestError, match="gives no embeddings"):
        core.add(request("e", [1], task="embed"))
    model.spec = attrs.evolve(model.spec, poolings=("mean",))
    with pytest.raises(RequestError, match="pooling is 'last'"):
        core.add(request("e", [1], task="embed", pooling="last"))
    assert not core.busy
