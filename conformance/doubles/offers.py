"""All doubles as offers. Factories import torch; this module does not."""

from importlib import import_module
from typing import Any, get_args

from attrs import field, frozen

from tokloom.sdk import (
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


def _offer(kind: Any, name: str, target: str, capabilities: Any, config: type = NoOptions) -> Offer[Any, Any]:
    """`target` is `module:class`; the class takes (options, context)."""
    module, _, attribute = target.partition(":")

    def make(options: Any, context: Context) -> Any:
        return getattr(import_module(f"{_HERE}.{module}"), attribute)(options, context)

    return Offer(
        kind=kind, name=name, contract="0.1", capabilities=capabilities, factory=make, config=config, summary="a double"
    )


def offers() -> list[Offer[Any, Any]]:
    """Every double."""
    everything: frozenset[AttnFeature] = frozenset(get_args(AttnFeature))
    return [
        _offer("model", "tagged", "tagged:TaggedFamily", ModelCaps(features=True)),
        _offer("model", "null", "null:NullFamily", ModelCaps()),
        _offer("attention", "tags", "kernels:TagKernel", AttentionCaps(features=everything, graph="decode")),
        _offer("attention", "null", "null:NullKernel", AttentionCaps(features=everything)),
        _offer("attention", "writer", "kernels:WritingKernel", AttentionCaps(features=everything, writes=True)),
        _offer("codec", "sealing", "codecs:SealingCodec", CodecCaps(seals=True, lossless=True), Seeded),
        _offer("codec", "scaled", "codecs:ScaledCodec", CodecCaps(transforms=True)),
        _offer("codec", "null", "null:NullCodec", CodecCaps()),
        _offer("weights", "none", "null:NoWeights", WeightCaps()),
        _offer("ops", "none", "null:NoOps", OpCaps()),
        _offer("scheduler", "plain", "policies:Plain", SchedulerCaps()),
        _offer("scheduler", "chaos", "policies:Chaos", SchedulerCaps(head_of_line="skip"), Seeded),
        _offer("scheduler", "broken", "policies:Broken", SchedulerCaps(), Seeded),
        _offer("speculator", "oracle", "speculators:Oracle", SpeculatorCaps(trees=True), Seeded),
        _offer("speculator", "garbage", "speculators:Garbage", SpeculatorCaps(), Seeded),
        _offer("speculator", "featured", "speculators:Featured", SpeculatorCaps(trees=True), Seeded),
        _offer("speculator", "sampled", "speculators:Sampled", SpeculatorCaps(dense_q=True), Seeded),
        _offer("speculator", "on-device", "speculators:Oracle", SpeculatorCaps(placement="device", trees=True), Seeded),
        _offer("connector", "slow", "connectors:Slow", ConnectorCaps(), Seeded),
        _offer("connector", "layered", "connectors:Layered", ConnectorCaps(layerwise=True), Seeded),
        _offer("observer", "recorder", "observers:Recorder", ObserverCaps()),
        _offer("observer", "raising", "observers:Raising", ObserverCaps()),
        _offer("logits", "shift", "logits:Shift", LogitsCaps(role="processor")),
        _offer("logits", "parity", "logits:Parity", LogitsCaps(role="grammar")),
    ]
