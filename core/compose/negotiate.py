"""Formats: for each layer the codec's best layout that every kernel involved accepts; layers that agree form groups."""

from typing import Any

from attrs import field, frozen

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
    refusals: list[str] = []
    for kernel in kernels:
        missing = _missing_features(layer, kernel)
        if missing:
            refusals.append(f"{kernel.id} lacks {', '.join(missing)}")
    offered = codec.plugin.formats(layer, page_tokens) if not refusals else ()
    for pair in offered:
        accepted = []
        for format in (pair.main, pair.open):
            for kernel in kernels if format is not None else ():
                assert format is not None
                answer = _ask(kernel, layer, format)
                if isinstance(answer, Unsupported):
                    refusals.append(f"{kernel.id} refuses {format.id}: {answer.reason}")
                else:
                    accepted.append(f"{kernel.id}" + (f" ({answer.note})" if answer.note else ""))
        if not refusals:
            notes.setdefault(pair.main.id, f"{codec.id}'s choice, accepted by {', '.join(dict.fromkeys(accepted))}")
            return pair
        if pair is not offered[-1]:
            notes.setdefault(f"not {pair.main.id}", "; ".join(refusals))
            refusals = []
    if not refusals:
        refusals.append(f"{codec.id} has no format for it")
    raise CompositionError(
        f"layer {layer.layer} finds no KV format with pages of {page_tokens}: {'; '.join(refusals)}",
        subject=f"{codec.id} with {', '.join(kernel.id for kernel in kernels)}",
        remedy="Choose another codec, kernel or engine.page_tokens",
    )


def _ask(kernel: KernelPart, layer: LayerSpec, format: KVFormat) -> Accepts | Unsupported:
    answer = kernel.plugin.accepts(layer, format)
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
