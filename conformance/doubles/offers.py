"""All doubles as offers. Factories import torch; this module does not."""

from importlib import import_module
from typing import Any, get_args

from attrs import field, frozen

from tokloom.sdk import (
    AllocatorCaps,
    AttentionCaps,
    AttnFeature,
    CodecCaps,
    ConnectorCaps,
    Context,
    LogitsCaps,
    ModelCaps,
    NoOptions,
    ObserverCaps,
    Offer,
    OpCaps,
    SchedulerCaps,
    SpeculatorCaps,
    WeightCaps,
)

_HERE = "tokloom.conformance.doubles"


@frozen
class Seeded:
    """Options of doubles whose behaviour is pseudo-random, or has a mode."""

    seed: int = 0
    mode: str = ""
    residual: int = field(default=0)


@frozen
class TagOptions:
    """`positions`: the first component of every key is its position + 1, and is checked."""

    positions: bool = True


def _offer(
    kind: Any, name: str, target: str, capabilities: Any, config: type = NoOptions, extras: frozenset[str] = frozenset()
) -> Offer[Any, Any]:
    """`target` is `module:class`; the class takes (options, context)."""
    module, _, attribute = target.partition(":")

    def make(options: Any, context: Context) -> Any:
        return getattr(import_module(f"{_HERE}.{module}"), attribute)(options, context)

    return Offer(
        kind=kind,
        name=name,
        contract="0.1",
        capabilities=capabilities,
        factory=make,
        config=config,
        summary="a double",
        extras=extras,
    )


def offers() -> list[Offer[Any, Any]]:
    """Every double."""
    return [*_numeric(), *_deciding(), *_telling()]


def _numeric() -> list[Offer[Any, Any]]:
    """Models, kernels, codecs and what they need."""
    everything: frozenset[AttnFeature] = frozenset(get_args(AttnFeature))
    plain = everything - {"tree", "segments"}
    return [
        _offer("model", "tagged", "tagged:TaggedFamily", ModelCaps(features=True, adapters=True)),
        _offer("model", "null", "null:NullFamily", ModelCaps()),
        _offer("attention", "tags", "kernels:TagKernel", AttentionCaps(features=everything, graph="any"), TagOptions),
        _offer(
            "attention",
            "tags-plain",
            "kernels:PlainTagKernel",
            AttentionCaps(features=plain, mixed=False, needs_exact_lens=True),
            TagOptions,
        ),
        _offer(
            "attention", "writer", "kernels:WritingKernel", AttentionCaps(features=everything, writes=True), TagOptions
        ),
        _offer("attention", "null", "null:NullKernel", AttentionCaps(features=everything)),
        _offer("codec", "tagdense", "codecs:TagDenseCodec", CodecCaps(lossless=True)),
        _offer("codec", "sealing", "codecs:SealingCodec", CodecCaps(seals=True, lossless=True), Seeded),
        _offer("codec", "sealing-apart", "codecs:ApartCodec", CodecCaps(seals=True, lossless=True), Seeded),
        _offer("codec", "scaled", "codecs:ScaledCodec", CodecCaps(transforms=True)),
        _offer("codec", "rotated", "codecs:RotatedCodec", CodecCaps(transforms=True)),
        _offer("codec", "stepwise", "codecs:StepwiseCodec", CodecCaps(equivalence="stepwise")),
        _offer("codec", "null", "null:NullCodec", CodecCaps()),
        _offer("weights", "none", "null:NoWeights", WeightCaps()),
        _offer("ops", "none", "null:NoOps", OpCaps()),
    ]


def _deciding() -> list[Offer[Any, Any]]:
    """Schedulers, speculators, allocators."""
    device = SpeculatorCaps(placement="device")
    trees = SpeculatorCaps(placement="device", trees=True)
    return [
        _offer("allocator", "brute", "brute:BruteAllocator", AllocatorCaps(windows=True, seals=True)),
        _offer("scheduler", "plain", "policies:Plain", SchedulerCaps()),
        _offer("scheduler", "chaos", "policies:Chaos", SchedulerCaps(head_of_line="skip"), Seeded),
        _offer("scheduler", "refusing", "policies:Refusing", SchedulerCaps()),
        _offer("scheduler", "broken", "policies:Broken", SchedulerCaps(), Seeded),
        _offer("speculator", "oracle", "speculators:Oracle", SpeculatorCaps(trees=True), Seeded),
        _offer("speculator", "garbage", "speculators:Garbage", SpeculatorCaps(), Seeded),
        _offer("speculator", "garbage-on-device", "speculators:Garbage", device, Seeded),
        _offer("speculator", "featured", "speculators:Featured", SpeculatorCaps(trees=True), Seeded),
        _offer("speculator", "featured-on-device", "speculators:Featured", device, Seeded),
        _offer("speculator", "sampled", "speculators:Sampled", SpeculatorCaps(dense_q=True), Seeded),
        _offer("speculator", "on-device", "speculators:Oracle", trees, Seeded),
    ]


def _telling() -> list[Offer[Any, Any]]:
    """Tiers, observers and what changes logits."""
    return [
        _offer("connector", "slow", "connectors:Slow", ConnectorCaps(), Seeded),
        _offer("connector", "layered", "connectors:Layered", ConnectorCaps(layerwise=True), Seeded),
        _offer("connector", "threaded", "threaded:Threaded", ConnectorCaps(), Seeded),
        _offer("observer", "recorder", "observers:Recorder", ObserverCaps()),
        _offer("observer", "raising", "observers:Raising", ObserverCaps()),
        _offer("logits", "shift", "logits:Shift", LogitsCaps(role="processor")),
        _offer("logits", "parity", "logits:Parity", LogitsCaps(role="grammar"), extras=frozenset({"x-tokloom.parity"})),
    ]
