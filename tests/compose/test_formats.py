"""Codec and kernels agree on a format for each layer, or an error says who stood in the way."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from compose_parts import AnyOffer, codec, compose, kernel, layer, model, plain_format, refusal, speculator

from tokloom.sdk import (
    Accepts,
    CompositionError,
    FormatPair,
    KVFormat,
    LayerSpec,
    PluginFault,
    SpecNeeds,
    Unsupported,
)

PLAIN: dict[str, Any] = {"model__path": "inline", "kv__codec": "c", "attention": "k"}


def only(*names: str) -> AnyOffer:
    """A kernel `k` that reads formats whose id begins with one of the names."""
    return kernel("k", _reads(*names), features=frozenset({"window", "segments"}))


def _reads(*names: str) -> Callable[[LayerSpec, KVFormat], Accepts | Unsupported]:
    def accepts(spec: LayerSpec, format: KVFormat) -> Accepts | Unsupported:
        return Accepts("fast path") if format.id.startswith(names) else Unsupported(f"it reads only {', '.join(names)}")

    return accepts


def choices(*names: str) -> AnyOffer:
    """A codec `c` that offers plain formats under these names, best first."""
    return codec("c", lambda spec, page: [FormatPair(plain_format(spec, page, name)) for name in names])


def test_the_first_format_that_the_kernel_accepts_is_taken() -> None:
    made = compose(model([layer(0)]), choices("best", "good", "poor"), only("good", "poor"), **PLAIN)
    (group,) = made.composition.layout.groups
    assert group.main.id.startswith("good-")
    rows = made.row("KV format")
    assert "not best-" in rows
    assert "attention.k refuses best-float32-4x1x8: it reads only good, poor" in rows
    assert "codec.c's choice, accepted by attention.k (fast path)" in rows
    assert "poor-" not in rows


def test_every_refusal_is_told_where_nothing_fits() -> None:
    error = refusal(model([layer(0)]), choices("a", "b"), only("z"), kind=CompositionError, **PLAIN)
    for name in ("a", "b"):
        assert f"attention.k refuses {name}-float32-4x1x8: it reads only z" in error.message
    assert error.subject == "codec.c with attention.k"
    assert "pages of 4" in error.message
    assert error.remedy == "Choose another codec, kernel or engine.page_tokens"


def test_a_codec_without_a_format_is_named() -> None:
    error = refusal(model([layer(0)]), codec("c", lambda spec, page: ()), only("z"), **PLAIN)
    assert "layer 0 finds no KV format" in error.message
    assert "codec.c has none for it" in error.message
    assert "codec" in error.remedy


def test_both_kernels_must_accept() -> None:
    decode = kernel("d", _reads("a", "b"))
    prefill = kernel("p", _reads("b", "c"))
    sections: dict[str, Any] = {"model__path": "inline", "kv__codec": "c", "attention": {"decode": "d", "prefill": "p"}}
    made = compose(model([layer(0)]), choices("a", "b", "c"), decode, prefill, **sections)
    assert made.composition.layout.groups[0].main.id.startswith("b-")
    assert "accepted by attention.d (fast path), attention.p (fast path)" in made.row("KV format")
    assert (made.composition.decode.id, made.composition.prefill.id) == ("attention.d", "attention.p")
    error = refusal(model([layer(0)]), choices("a", "c"), decode, prefill, **sections)
    assert "attention.p refuses a-" in error.message
    assert "attention.d refuses c-" in error.message
    assert error.subject == "codec.c with attention.d, attention.p"


def test_the_same_kernel_for_both_phases_is_made_once_unless_options_differ() -> None:
    one = compose(attention={"decode": "tags", "prefill": "tags"}).composition
    assert one.decode is one.prefill
    prefill = {"plugin": "tags", "options": {"positions": False}}
    two = compose(attention={"decode": "tags", "prefill": prefill}).composition
    assert two.decode.plugin is not two.prefill.plugin


def test_open_pages_need_a_kernel_that_accepts_them_too() -> None:
    def formats(spec: LayerSpec, page: int) -> list[FormatPair]:
        return [FormatPair(plain_format(spec, page, "sealed"), plain_format(spec, page, "open"))]

    sealing = codec("c", formats, residual=4, seals=True)
    made = compose(model([layer(0)]), sealing, only("sealed", "open"), **PLAIN)
    (group,) = made.composition.layout.groups
    assert group.open is not None
    assert group.residual_tokens == 4
    error = refusal(model([layer(0)]), sealing, only("sealed"), **PLAIN)
    assert "attention.k refuses open-" in error.message


def test_a_codec_may_seal_some_layers_and_not_others() -> None:
    def formats(spec: LayerSpec, page: int) -> list[FormatPair]:
        opened = plain_format(spec, page, "open") if spec.params.window is None else None
        return [FormatPair(plain_format(spec, page, "sealed"), opened)]

    mixed = codec("c", formats, residual=5, seals=True)
    made = compose(model([layer(0), layer(1, window=8)]), mixed, only("sealed", "open"), **PLAIN)
    full, window = made.composition.layout.groups
    assert (full.open is not None, full.residual_tokens) == (True, 5)
    assert (window.open is not None, window.residual_tokens) == (False, 0)
    assert made.composition.layout.open_pages[1] == 0 < made.composition.layout.open_pages[0]


def test_dtypes_and_head_sizes_are_negotiated_layer_by_layer() -> None:
    def accepts(spec: LayerSpec, format: KVFormat) -> Accepts | Unsupported:
        return Accepts() if spec.params.head_k <= 16 else Unsupported(f"heads of {spec.params.head_k}")

    layers = [layer(0), layer(1, head=16), layer(2, dtype="bfloat16"), layer(3), layer(4, kv_heads=2)]
    made = compose(model(layers), codec("c"), kernel("k", accepts), **PLAIN)
    groups = made.composition.layout.groups
    assert [group.layers for group in groups] == [(0, 3), (1,), (2,), (4,)]
    assert [group.main.page_bytes for group in groups] == [
        2 * 4 * 1 * 8 * 4,
        2 * 4 * 1 * 16 * 4,
        2 * 4 * 1 * 8 * 2,
        2 * 4 * 2 * 8 * 4,
    ]
    error = refusal(model([*layers, layer(5, head=32)]), codec("c"), kernel("k", accepts), **PLAIN)
    assert "layer 5 finds no KV format" in error.message
    assert "heads of 32" in error.message


@pytest.mark.parametrize("page", [1, 3, 16])
def test_the_page_size_of_the_profile_is_asked_for(page: int) -> None:
    made = compose(
        model([layer(0)]), codec("c"), kernel("k"), engine__page_tokens=page, engine__max_model_tokens=64, **PLAIN
    )
    assert made.composition.layout.groups[0].page_tokens == page
    assert made.composition.settings.page_tokens == page
    assert made.row("page_tokens").startswith(f"{page} | mapping")


def test_a_kernel_may_refuse_a_page_size() -> None:
    def accepts(spec: LayerSpec, format: KVFormat) -> Accepts | Unsupported:
        return Accepts() if format.page_tokens % 16 == 0 else Unsupported("pages must be multiples of 16")

    error = refusal(model([layer(0)]), codec("c"), kernel("k", accepts), **PLAIN)
    assert "pages of 4: attention.k refuses" in error.message
    assert "pages must be multiples of 16" in error.message
    assert "engine.page_tokens" in error.remedy


FEATURES = {
    "window": {"window": 8},
    "soft_cap": {"soft_cap": 30.0},
    "sinks": {"sinks": (0.0, 0.0)},
    "alibi": {"alibi": (0.5, 0.25)},
    "non_causal": {"causal": False},
}


@pytest.mark.parametrize("feature", FEATURES)
def test_a_layer_needs_a_kernel_that_declares_its_feature(feature: str) -> None:
    layers = [layer(0), layer(1, **FEATURES[feature])]  # type: ignore[arg-type]
    error = refusal(model(layers), codec("c"), kernel("k"), kind=CompositionError, **PLAIN)
    assert error.message == f"layer 1 cannot be run: attention.k lacks {feature}"
    assert error.subject == "attention.k"
    assert error.remedy == "Choose another attention kernel"
    assert compose(model(layers), codec("c"), kernel("k", features=frozenset({feature})), **PLAIN)
    phases = {**PLAIN, "attention": {"decode": "k", "prefill": "bare"}}
    able = kernel("k", features=frozenset({feature}))
    error = refusal(model(layers), codec("c"), able, kernel("bare"), **phases)
    assert error.subject == "attention.bare"


def test_layers_share_a_group_if_and_only_if_pages_window_and_lookahead_are_equal() -> None:
    rng = random.Random(11)
    for _ in range(30):
        layers = [
            layer(
                number,
                kv_heads=rng.choice([1, 2]),
                window=rng.choice([None, 4, 8]),
                key_lookahead=rng.choice([0, 0, 1]),
            )
            for number in range(rng.randint(1, 9))
        ]
        any_window = kernel("k", features=frozenset({"window"}))
        groups = compose(model(layers), codec("c"), any_window, **PLAIN).composition.layout.groups
        assert sorted(number for group in groups for number in group.layers) == list(range(len(layers)))
        assert [group.id for group in groups] == list(range(len(groups)))
        home = {number: group.id for group in groups for number in group.layers}
        for a in layers:
            for b in layers:
                alike = all(
                    (
                        a.params.kv_heads == b.params.kv_heads,
                        a.params.window == b.params.window,
                        a.key_lookahead == b.key_lookahead,
                    )
                )
                assert (home[a.layer] == home[b.layer]) == alike, layers
        for group in groups:
            assert {layers[number].params.window for number in group.layers} == {group.window}
            assert {layers[number].key_lookahead for number in group.layers} == {group.key_lookahead}


def test_a_speculator_has_groups_of_its_own_after_the_models() -> None:
    made = compose(model__path="tagged-window", speculation="featured").composition
    groups = made.layout.groups
    assert [(group.owner, group.window, group.key_lookahead) for group in groups] == [
        ("model", None, 0),
        ("model", 5, 0),
        ("speculator", None, 1),
    ]
    assert groups[2].layers == (0,)
    assert made.needs.features == (0,)
    assert compose(model__path="tagged-window").composition.needs == SpecNeeds()


# -- plugins that break the contract -----------------------------------------------------------------------------------


def test_formats_of_another_page_size_are_a_fault_of_the_codec() -> None:
    wrong = codec("c", lambda spec, page: [FormatPair(plain_format(spec, page * 2))])
    error = refusal(model([layer(0)]), wrong, kernel("k"), kind=PluginFault, **PLAIN)
    assert error.subject == "codec.c"
    assert "pages of 8 where 4 were asked for" in error.message
    half = codec("c", lambda spec, page: [FormatPair(plain_format(spec, page), plain_format(spec, page // 2))])
    assert refusal(model([layer(0)]), half, kernel("k"), **PLAIN).subject == "codec.c"


def test_formats_that_are_none_are_a_fault_of_the_codec() -> None:
    wrong = codec("c", lambda spec, page: [plain_format(spec, page)])  # type: ignore[list-item]
    error = refusal(model([layer(0)]), wrong, kernel("k"), kind=PluginFault, **PLAIN)
    assert (error.subject, error.message) == ("codec.c", "formats gave KVFormat, expected FormatPair")
    none = codec("c", lambda spec, page: None)  # type: ignore[arg-type,return-value]
    error = refusal(model([layer(0)]), none, kernel("k"), kind=PluginFault, **PLAIN)
    assert "formats raised TypeError" in error.message


def test_open_pages_of_a_codec_that_does_not_declare_seals_are_refused() -> None:
    pair = codec("c", lambda spec, page: [FormatPair(plain_format(spec, page), plain_format(spec, page, "open"))])
    error = refusal(model([layer(0)]), pair, only("kv", "open"), **PLAIN)
    assert error.subject == "codec.c"
    assert "lacks seals" in error.message


def test_an_answer_that_is_none_counts_as_a_refusal() -> None:
    error = refusal(model([layer(0)]), codec("c"), kernel("k", lambda spec, format: True), **PLAIN)  # type: ignore[arg-type,return-value]
    assert "accepts returned bool, expected Accepts or Unsupported" in error.message


@pytest.mark.parametrize("method", ["formats", "accepts", "needs"])
def test_a_method_that_raises_is_a_fault_of_its_plugin(method: str) -> None:
    def fail(*_: object) -> "object":
        raise KeyError("lost")

    fine = {"formats": None, "accepts": None, "needs": None}
    parts = {**fine, method: fail}
    error = refusal(
        model([layer(0)]),
        codec("c", parts["formats"]),  # type: ignore[arg-type]
        kernel("k", parts["accepts"]),  # type: ignore[arg-type]
        speculator("s", parts["needs"]),  # type: ignore[arg-type]
        kind=PluginFault,
        speculation="s",
        **PLAIN,
    )
    assert error.subject == {"formats": "codec.c", "accepts": "attention.k", "needs": "speculator.s"}[method]
    assert error.message == f"{method} raised KeyError: 'lost'"
    assert "authors of local" in error.remedy
