"""The pluggy hook specifications: one hook per kind, `tokloom_KIND`, each returning offers.

Hooks are called at discovery and never again: the composed engine holds bound methods.
"""

from collections.abc import Sequence

import pluggy

from tokloom.sdk.contracts.allocator import KVAllocator
from tokloom.sdk.contracts.attention import AttentionKernel
from tokloom.sdk.contracts.codec import KVCodec
from tokloom.sdk.contracts.connector import KVConnector
from tokloom.sdk.contracts.logits import GrammarFactory, LogitsProcessor
from tokloom.sdk.contracts.model import ModelFamily
from tokloom.sdk.contracts.observer import Observer
from tokloom.sdk.contracts.ops import OpSet
from tokloom.sdk.contracts.scheduler import SchedulerPolicy
from tokloom.sdk.contracts.speculator import Speculator
from tokloom.sdk.contracts.weights import WeightMethod
from tokloom.sdk.offers import PROJECT, Offer

hookspec = pluggy.HookspecMarker(PROJECT)


class Hooks:
    """The namespace of hook specifications."""

    @hookspec
    def tokloom_attention(self) -> "Sequence[Offer[object, AttentionKernel]]":
        """Attention kernels."""
        raise NotImplementedError

    @hookspec
    def tokloom_allocator(self) -> "Sequence[Offer[object, KVAllocator]]":
        """KV allocators."""
        raise NotImplementedError

    @hookspec
    def tokloom_connector(self) -> "Sequence[Offer[object, KVConnector]]":
        """KV tiers and peers."""
        raise NotImplementedError

    @hookspec
    def tokloom_codec(self) -> "Sequence[Offer[object, KVCodec]]":
        """KV page codecs."""
        raise NotImplementedError

    @hookspec
    def tokloom_weights(self) -> "Sequence[Offer[object, WeightMethod]]":
        """Weight methods."""
        raise NotImplementedError

    @hookspec
    def tokloom_scheduler(self) -> "Sequence[Offer[object, SchedulerPolicy]]":
        """Scheduling policies."""
        raise NotImplementedError

    @hookspec
    def tokloom_speculator(self) -> "Sequence[Offer[object, Speculator]]":
        """Speculators."""
        raise NotImplementedError

    @hookspec
    def tokloom_model(self) -> "Sequence[Offer[object, ModelFamily]]":
        """Model families."""
        raise NotImplementedError

    @hookspec
    def tokloom_ops(self) -> "Sequence[Offer[object, OpSet]]":
        """Op sets."""
        raise NotImplementedError

    @hookspec
    def tokloom_observer(self) -> "Sequence[Offer[object, Observer]]":
        """Observers."""
        raise NotImplementedError

    @hookspec
    def tokloom_logits(self) -> "Sequence[Offer[object, LogitsProcessor | GrammarFactory]]":
        """Logits processors and grammar factories."""
        raise NotImplementedError
