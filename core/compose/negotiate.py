"""Formats: for each layer the codec's best layout that every kernel involved accepts; layers that agree form groups."""

from typing import Any

from attrs import field, frozen

from tokloom.core.compose.builder import ask, expect
from tokloom.core.composition import Part
from tokloom.sdk import (
    Accepts,
    AttentionCaps,
    AttentionKernel,
    CodecCaps,
    CompositionError,
    FormatPair,
    KVCodec,
    KVFormat,
    KVGroup,
    LayerSpec,
    ModelSpec,
    PluginFault,
    SpecNeeds,
    Unsupported,
)

KernelPart = Part[AttentionKernel, AttentionCaps]


@frozen
class Formats:
    """The pair of each layer, and for people: format id -> who accepted it."""

    pairs: tuple[FormatPair, ...]
    notes: dict[str, str] = field(factory=dict)


def negotiate(
    spec: ModelSpec, page_tokens: int, codec: Part[KVCodec, CodecCaps], decode: KernelPart, prefill: KernelPart
) -> Formats:
    """Raises CompositionError with every refusal if a layer finds no format."""
    kernels = [decode] if decode is prefill else [decode, prefill]
    found: dict[Any, FormatPair] = {}
    notes: dict[str, str] = {}
    pairs = []
    for layer in spec.layers:
        key = (layer.params, layer.dtype, layer.key_lookahead)
        if key not in found:
            found[key] = _pair(layer, page_tokens, codec, kernels, notes)
        pairs.append(found[key])
    return Formats(tuple(pairs), notes)


def _pair(
    layer: LayerSpec,
    page_tokens: int,
    codec: Part[KVCodec, CodecCaps],
    kernels: list[KernelPart],
    notes: dict[str, str],
) -> FormatPair:
    _check_kernels_have(layer, kernels)
    refusals: list[str] = []
    for pair in _offered(codec, layer, page_tokens):
        formats = [format for format in (pair.main, pair.open) if format is not None]
        answers = [(kernel, format, _ask(kernel, layer, format)) for format in formats for kernel in kernels]
        against = [
            f"{kernel.id} refuses {format.id}: {answer.reason}"
            for kernel, format, answer in answers
            if isinstance(answer, Unsupported)
        ]
        if not against:
            accepted = [
                f"{kernel.id} ({answer.note})" if isinstance(answer, Accepts) and answer.note else kernel.id
                for kernel, _, answer in answers
            ]
            notes.setdefault(pair.main.id, f"{codec.id}'s choice, accepted by {', '.join(dict.fromkeys(accepted))}")
            return pair
        notes.setdefault(f"not {pair.main.id}", "; ".join(against))
        refusals += against
    reasons = "; ".join(dict.fromkeys(refusals)) or f"{codec.id} has none for it"
    raise CompositionError(
        f"layer {layer.layer} finds no KV format with pages of {page_tokens}: {reasons}",
        subject=f"{codec.id} with {', '.join(kernel.id for kernel in kernels)}",
        remedy=f"Choose another {'codec, kernel' if refusals else 'codec'} or engine.page_tokens",
    )


def _check_kernels_have(layer: LayerSpec, kernels: list[KernelPart]) -> None:
    """Refuse kernels that do not declare what the layer's parameters need."""
    lacking = [(kernel, missing) for kernel in kernels if (missing := _missing_features(layer, kernel))]
    if lacking:
        raise CompositionError(
            f"layer {layer.layer} cannot be run: "
            + "; ".join(f"{kernel.id} lacks {', '.join(missing)}" for kernel, missing in lacking),
            subject=", ".join(kernel.id for kernel, _ in lacking),
            remedy="Choose another attention kernel",
        )


def _offered(codec: Part[KVCodec, CodecCaps], layer: LayerSpec, page_tokens: int) -> tuple[FormatPair, ...]:
    """The codec's layouts, all of the page size that was asked for."""
    offered = ask(codec, "formats", lambda: tuple(codec.plugin.formats(layer, page_tokens)))
    for pair in offered:
        expect(codec, "formats", pair, FormatPair)
        for format in (pair.main, pair.open):
            if format is not None and format.page_tokens != page_tokens:
                text = f"formats gave {format.id} with pages of {format.page_tokens} where {page_tokens} were asked for"
                raise PluginFault(text, subject=codec.id, remedy=f"Report it to the authors of {codec.distribution}")
    return offered


def _ask(kernel: KernelPart, layer: LayerSpec, format: KVFormat) -> Accepts | Unsupported:
    answer = ask(kernel, "accepts", lambda: kernel.plugin.accepts(layer, format))
    if not isinstance(answer, (Accepts, Unsupported)):
        return Unsupported(f"accepts returned {type(answer).__name__}, expected Accepts or Unsupported")
    return answer


def _missing_features(layer: LayerSpec, kernel: KernelPart) -> list[str]:
    """Features that a layer's parameters need and a kernel does not declare."""
    params = layer.params
    needed = {
        "window": params.window is not None,
        "soft_cap": params.soft_cap is not None,
        "sinks": bool(params.sinks),
        "alibi": bool(params.alibi),
        "non_causal": not params.causal,
    }
    return [name for name, wanted in needed.items() if wanted and name not in kernel.caps.features]


def build_groups(spec: ModelSpec, formats: Formats, needs: SpecNeeds, residual: int) -> tuple[KVGroup, ...]:
    """Layers with equal formats, window and lookahead share a group; then the speculator's own."""
    members: dict[Any, list[int]] = {}
    for layer, pair in zip(spec.layers, formats.pairs, strict=True):
        members.setdefault((pair, layer.params.window, layer.key_lookahead), []).append(layer.layer)
    groups: list[KVGroup] = []
    for (pair, window, lookahead), layers in members.items():
        kept = residual if pair.open is not None else 0
        groups.append(KVGroup(len(groups), "model", tuple(layers), pair.main, pair.open, window, lookahead, kept))
    own: dict[Any, list[int]] = {}
    for draft in needs.layers:
        own.setdefault((draft.format, draft.window, draft.spec.key_lookahead), []).append(draft.spec.layer)
    for (format, window, lookahead), layers in own.items():
        groups.append(KVGroup(len(groups), "speculator", tuple(layers), format, None, window, lookahead, 0))
    return tuple(groups)
