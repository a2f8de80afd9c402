"""What one part needs of another is declared by the other, or refused: who, what is missing, what to do."""

from typing import Any

import pytest
from attrs import frozen
from compose_parts import (
    AnyOffer,
    Composed,
    changed,
    codec,
    compose,
    kernel,
    layer,
    model,
    offer,
    plain_format,
    refusal,
    speculator,
    tokens,
)

from tokloom.conformance.doubles.null import NoWeights
from tokloom.core.engine import EngineCore
from tokloom.sdk import CheckpointInfo, CompositionError, DraftLayer, SpecNeeds, WeightCaps

ALL = frozenset({"window", "tree", "segments"})
TREES = {"plugin": "oracle", "options": {"mode": "trees"}}


@frozen
class Need:
    """One requirement: a composition that is refused, and the smallest change that makes it right."""

    sections: dict[str, Any]
    extra: tuple[AnyOffer, ...]
    subject: str
    message: str
    remedy: str
    right: dict[str, Any]


def draft_group(window: int | None = None) -> SpecNeeds:
    spec = layer(0)
    return SpecNeeds(layers=(DraftLayer(spec=spec, format=plain_format(spec, 4), window=window),))


NEEDS = {
    "windows": Need(
        {"model__path": "tagged-window", "kv__allocator": "changed"},
        (changed("allocator", "brute", windows=False),),
        "allocator.changed",
        "the model has sliding-window layers and the allocator lacks windows",
        "another allocator",
        {"kv__allocator": "brute"},
    ),
    "windows of the speculator": Need(
        {"speculation": "s", "kv__allocator": "changed"},
        (changed("allocator", "brute", windows=False), speculator("s", draft_group(8))),
        "allocator.changed",
        "the speculator has sliding-window layers and the allocator lacks windows",
        "another allocator",
        {"kv__allocator": "brute"},
    ),
    "seals": Need(
        {"kv__codec": "sealing", "kv__allocator": "changed"},
        (changed("allocator", "brute", seals=False),),
        "allocator.changed",
        "codec.sealing seals pages and the allocator lacks seals",
        "another allocator or codec",
        {"kv__allocator": "brute"},
    ),
    "groups": Need(
        {"model__path": "tagged-window", "kv__allocator": "changed"},
        (changed("allocator", "brute", max_groups=1),),
        "allocator.changed",
        "the layout has 2 KV groups (2 of the model) and the allocator manages 1",
        "several groups",
        {"model__path": "tagged"},
    ),
    "groups of the speculator": Need(
        {"speculation": "featured", "kv__allocator": "changed"},
        (changed("allocator", "brute", max_groups=1),),
        "allocator.changed",
        "the layout has 2 KV groups (1 of the model, 1 of the speculator) and the allocator manages 1",
        "several groups",
        {"speculation": "garbage"},
    ),
    "segments": Need(
        {"kv__codec": "sealing", "attention": "changed"},
        (changed("attention", "tags", features=frozenset()),),
        "attention.changed",
        "codec.sealing seals pages and the kernel lacks segments",
        "another kernel or codec",
        {"attention": "tags"},
    ),
    "segments for prefill": Need(
        {"kv__codec": "sealing", "attention": {"decode": "tags", "prefill": "tags-plain"}},
        (),
        "attention.tags-plain",
        "lacks segments",
        "another kernel",
        {"attention": {"decode": "tags", "prefill": "writer"}},
    ),
    "decode spans": Need(
        {"attention": "changed"},
        (changed("attention", "tags", phases=frozenset({"prefill", "verify"})),),
        "attention.changed",
        "does not take decode spans",
        "[attention.decode]",
        {"attention": {"decode": "tags", "prefill": "changed"}},
    ),
    "prefill spans": Need(
        {"attention": "changed"},
        (changed("attention", "tags", phases=frozenset({"decode"})),),
        "attention.changed",
        "does not take prefill spans",
        "[attention.prefill]",
        {"attention": {"decode": "changed", "prefill": "tags"}},
    ),
    "verify spans": Need(
        {"attention": "changed", "speculation": "garbage"},
        (changed("attention", "tags", phases=frozenset({"decode", "prefill"})),),
        "speculator.garbage",
        "no attention kernel takes verify spans",
        "another kernel, or speculation = off",
        {"attention": {"decode": "changed", "prefill": "tags"}},
    ),
    "trees": Need(
        {"attention": "tags-plain", "speculation": TREES},
        (),
        "speculator.oracle",
        "it drafts trees and attention.tags-plain lacks tree",
        "another kernel or speculator",
        {"attention": "tags"},
    ),
    "trees where prefill verifies": Need(
        {"attention": {"decode": "changed", "prefill": "tags-plain"}, "speculation": TREES},
        (changed("attention", "tags", phases=frozenset({"decode"})),),
        "speculator.oracle",
        "attention.tags-plain lacks tree",
        "another kernel",
        {"attention": {"decode": "tags-plain", "prefill": "tags"}},
    ),
    "features": Need(
        {"speculation": "featured", "model__path": "inline", "kv__codec": "c", "attention": "k"},
        (model([layer(0)]), codec("c"), kernel("k", features=ALL)),
        "speculator.featured",
        "it needs hidden states after layers 0, which the model family cannot capture",
        "another family",
        {"speculation": "garbage"},
    ),
    "features of layers there are": Need(
        {"speculation": "s"},
        (speculator("s", SpecNeeds(features=(0, 2))), speculator("fine", SpecNeeds(features=(0, 1)))),
        "speculator.s",
        "after layers 0, 2 and tagged has layers 0 to 1",
        "made for this model",
        {"speculation": "fine"},
    ),
    "sampled drafts": Need(
        {"speculation": "garbage", "engine__verification": "rejection"},
        (),
        "speculator.garbage",
        "drafts drawn through the core (dense_q)",
        "verification = match",
        {"speculation": "sampled"},
    ),
    "exact lengths": Need(
        {"speculation": "garbage-on-device", "engine__depth": 1, "attention": "tags-plain"},
        (),
        "speculator.garbage-on-device",
        "at depth 1 lengths lag while drafts are in flight and attention.tags-plain needs exact ones",
        "depth = 0",
        {"engine__depth": 0},
    ),
    "exact lengths of the kernel that does not verify": Need(
        {
            "speculation": "garbage-on-device",
            "engine__depth": 1,
            "attention": {"decode": "changed", "prefill": "tags"},
        },
        (changed("attention", "tags", phases=frozenset({"decode"}), needs_exact_lens=True),),
        "speculator.garbage-on-device",
        "attention.changed needs exact ones",
        "another kernel",
        {"speculation": "garbage"},
    ),
    "whole pages": Need(
        {"kv__codec": "stepwise", "engine__max_batch_tokens": 3},
        (),
        "codec.stepwise",
        "chunks of whole pages of 4 tokens and engine.max_batch_tokens is 3",
        "Raise engine.max_batch_tokens to 4 or more, or lower engine.page_tokens",
        {"engine__max_batch_tokens": 4},
    ),
    "one row at a time": Need(
        {"kv__codec": "stepwise", "speculation": "garbage"},
        (),
        "speculator.garbage",
        "codec.stepwise is stepwise: verifying several rows at once changes what it stores",
        "speculation = off, or another codec",
        {"kv__codec": "tagdense"},
    ),
    "transforms by both kernels": Need(
        {"kv__codec": "scaled", "attention": {"decode": "tags", "prefill": "changed"}},
        (changed("attention", "tags", applies_transforms=True),),
        "codec.scaled",
        "attention.changed applies its transforms and attention.tags does not",
        "one kernel for both phases",
        {"attention": {"decode": "tags", "prefill": "tags-plain"}},
    ),
}


@pytest.mark.parametrize("case", NEEDS)
def test_a_need_that_nobody_declares_is_refused_and_a_declared_one_is_met(case: str) -> None:
    need = NEEDS[case]
    error = refusal(*need.extra, kind=CompositionError, **need.sections)
    assert error.subject == need.subject
    assert need.message in error.message
    assert need.remedy in error.remedy
    compose(*need.extra, **{**need.sections, **need.right})


def test_a_checkpoint_that_the_weights_do_not_read_is_refused() -> None:
    class Dense(NoWeights):
        def claim(self, checkpoint: CheckpointInfo) -> int:
            return 0 if checkpoint.quant_method else 1

    parts = (offer("weights", "dense", WeightCaps(), Dense), codec("c"), kernel("k"))
    sections = {"model__path": "inline", "kv__codec": "c", "attention": "k", "weights": "dense"}
    compose(model([layer(0)]), *parts, **sections)
    packed = model([layer(0)], checkpoint=CheckpointInfo("gptq", {}, {}))
    error = refusal(packed, *parts, kind=CompositionError, **sections)
    assert error.subject == "weights.dense"
    assert "cannot read this checkpoint (quantisation: gptq)" in error.message


def test_the_kernel_writes_only_if_both_do() -> None:
    assert compose(attention="writer").composition.writer
    assert not compose(attention={"decode": "writer", "prefill": "tags"}).composition.writer
    assert not compose().composition.writer


def test_new_pages_are_zeroed_for_kernels_that_read_past_the_end() -> None:
    tail = changed("attention", "tags", reads_tail=True)
    assert not compose(tail).composition.layout.zero_new_pages
    assert compose(tail, attention="changed").composition.layout.zero_new_pages
    assert compose(tail, attention={"decode": "tags", "prefill": "changed"}).composition.layout.zero_new_pages


# -- what works in another way than somebody may expect ----------------------------------------------------------------


NOTES: dict[str, tuple[dict[str, Any], str]] = {
    "stepwise": ({"kv__codec": "stepwise"}, "codec.stepwise is stepwise: prefill runs in chunks of one page"),
    "rejection": ({"engine__verification": "rejection"}, "verification = rejection has no effect: nothing speculates"),
    "host drafts": ({"engine__depth": 1, "speculation": "garbage"}, "with a step in flight a sequence gets K = 0"),
    "no drafts": ({"engine__max_draft_tokens": 0, "speculation": "garbage"}, "speculator.garbage never drafts"),
}


@pytest.mark.parametrize("case", NOTES)
def test_what_is_given_up_is_told(case: str) -> None:
    sections, text = NOTES[case]
    made = compose(**sections)
    assert text in made.given_up
    assert text in made.text
    assert compose().given_up == ""


def graphs(*extra: AnyOffer, **sections: Any) -> Composed:
    return compose(*extra, engine__graphs="on", **sections)


def test_graphs_are_on_where_every_plugin_allows_it() -> None:
    made = graphs()
    assert made.row("graphs") == "on | mapping"
    assert made.given_up == ""


OBSTACLES: dict[str, tuple[dict[str, Any], tuple[AnyOffer, ...], str]] = {
    "kernel": ({"attention": "tags-plain"}, (), "attention.tags-plain cannot be replayed"),
    "tier": ({"kv__tiers": ["layered"]}, (), "connector.layered works layer by layer"),
    "features": ({"speculation": "featured"}, (), "speculator.featured needs hidden states"),
    "seals": ({"kv__codec": "sealing"}, (), "codec.sealing seals pages"),
}


@pytest.mark.parametrize("case", OBSTACLES)
def test_whoever_keeps_graphs_from_being_used_is_named(case: str) -> None:
    sections, extra, text = OBSTACLES[case]
    made = graphs(*extra, **sections)
    assert made.row("graphs") == f"off | {text}"
    assert f"graphs are not used: {text}" in made.given_up
    off = compose(*extra, engine__graphs="off", **sections)
    assert "graphs" not in off.given_up
    assert off.row("graphs") == "off | mapping"


@pytest.mark.parametrize("case", OBSTACLES)
def test_what_explain_says_of_graphs_is_what_the_engine_does(case: str) -> None:
    for sections, extra, replayed in ((OBSTACLES[case][0], OBSTACLES[case][1], False), ({}, (), True)):
        made = graphs(*extra, **sections)
        assert made.row("graphs").startswith("on" if replayed else "off")
        engine = EngineCore(made.composition)
        assert len(tokens(engine, (1, 2, 3), 4)) == 4
        assert (engine.state.runner.graphs.replays > 0) == replayed
        engine.close()
