"""Composition: the plugins of one engine, negotiated and bound."""

from collections.abc import Mapping
from pathlib import Path
from typing import Generic, TypeVar

from attrs import field, frozen

from tokloom.core.context import EngineContext
from tokloom.core.device import Device
from tokloom.sdk import (
    AdapterInfo,
    AllocatorCaps,
    AttentionCaps,
    AttentionKernel,
    CodecCaps,
    ConnectorCaps,
    GrammarFactory,
    Kind,
    KVAllocator,
    KVCodec,
    KVConnector,
    KVLayout,
    LogitsProcessor,
    Model,
    ModelCaps,
    Observer,
    ObserverCaps,
    OpCaps,
    OpSet,
    SchedulerCaps,
    SchedulerPolicy,
    SpecNeeds,
    Speculator,
    SpeculatorCaps,
    WeightCaps,
    WeightMethod,
)

P = TypeVar("P")
C = TypeVar("C")


@frozen
class Part(Generic[P, C]):
    """One plugin in its place.

    Attributes:
        kind, name: as in the profile; `name` without its distribution.
        distribution, version: where it was installed from.
        extras: the offer's own capability names, `x-DIST.name`.
    """

    kind: Kind
    name: str
    distribution: str
    version: str
    plugin: P = field(repr=False)
    caps: C = field(repr=False)
    extras: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def id(self) -> str:
        """`KIND.NAME`, as faults name it."""
        return f"{self.kind}.{self.name}"


@frozen(kw_only=True)
class Used:
    """A plugin that a composition uses, without the plugin: what may be shown to anyone.

    Attributes:
        section: the profile's, `kv.allocator`.
        plugin: its name, without its distribution.
        distribution, version: where it was installed from.
    """

    section: str
    kind: str
    plugin: str
    distribution: str
    version: str


@frozen(kw_only=True)
class EngineSettings:
    """The profile's `[engine]` section, resolved.

    Attributes:
        max_batch_tokens: target rows of a step, drafts included.
        max_sequences: sequences that run at once.
        max_waiting: sequences that may wait before new ones are refused.
        max_model_tokens: longest sequence.
        max_draft_tokens: largest K.
        page_tokens: negotiated page size.
        depth: steps in flight while the next is planned (0: synchronous).
        threads: host threads for compute.
        verification: `match` or `rejection`.
        prefix_wait: steps that a waiting sequence may wait for another one to commit the prefix they share.
        graphs: replay decode steps from recordings where every plugin allows it.
        seed: makes requests without a seed reproducible; None draws fresh ones.
    """

    max_batch_tokens: int
    max_sequences: int
    max_waiting: int
    max_model_tokens: int
    max_draft_tokens: int
    page_tokens: int
    depth: int
    threads: int
    verification: str = "match"
    prefix_wait: int = 64
    graphs: bool = False
    seed: int | None = None


@frozen
class Adapter:
    """An adapter that the profile names, and what the model family says of it."""

    path: Path
    info: AdapterInfo


@frozen(kw_only=True)
class Composition:
    """Everything the engine needs, resolved once.

    Attributes:
        decode, prefill: attention kernels; often the same part. They agree on every format of the layout.
        writer: whether the prefill and decode kernels write keys themselves instead of the codec.
        connectors: tiers in the order they are asked.
        needs: what the speculator asked for; empty without one.
        processors, grammars: logits plugins that requests may name.
        adapters: by the names that callers use; several names may have one digest.
        syntaxes: of grammars -> the offers that take it, in the order of the profile.
        used: every plugin above, the model family included, in the order in which they were made.
    """

    settings: EngineSettings
    device: Device
    context: EngineContext
    layout: KVLayout
    model: Model
    model_caps: ModelCaps
    decode: Part[AttentionKernel, AttentionCaps]
    prefill: Part[AttentionKernel, AttentionCaps]
    writer: bool
    codec: Part[KVCodec, CodecCaps]
    allocator: Part[KVAllocator, AllocatorCaps]
    weights: Part[WeightMethod, WeightCaps]
    ops: Part[OpSet, OpCaps]
    scheduler: Part[SchedulerPolicy, SchedulerCaps]
    speculator: Part[Speculator, SpeculatorCaps] | None = None
    needs: SpecNeeds = field(factory=SpecNeeds)
    connectors: tuple[Part[KVConnector, ConnectorCaps], ...] = ()
    observers: tuple[Part[Observer, ObserverCaps], ...] = ()
    processors: Mapping[str, LogitsProcessor] = field(factory=dict)
    grammars: Mapping[str, GrammarFactory] = field(factory=dict)
    adapters: Mapping[str, Adapter] = field(factory=dict)
    syntaxes: Mapping[str, tuple[str, ...]] = field(factory=dict)
    used: tuple[Used, ...] = ()

    @property
    def verify(self) -> Part[AttentionKernel, AttentionCaps]:
        """The kernel of verify spans."""
        trees = self.speculator is not None and self.speculator.caps.trees
        return verifier(self.decode, self.prefill, trees) or self.prefill


def verifier(
    decode: Part[AttentionKernel, AttentionCaps], prefill: Part[AttentionKernel, AttentionCaps], trees: bool
) -> Part[AttentionKernel, AttentionCaps] | None:
    """The kernel that takes verify spans, of draft trees if `trees`: the decode kernel if it can."""
    for part in (decode, prefill):
        if "verify" in part.caps.phases and ("tree" in part.caps.features or not trees):
            return part
    return None
