"""AttentionKernel: scaled dot-product attention over paged KV."""

from typing import TYPE_CHECKING, Literal, Protocol

from attrs import frozen

from tokloom.sdk.offers import Accepts, Unsupported
from tokloom.sdk.values.batches import AttnBatch, AttnParams, LayerSpec
from tokloom.sdk.values.kv import KVFormat, Pages

if TYPE_CHECKING:
    from torch import Tensor

AttnFeature = Literal["window", "soft_cap", "sinks", "alibi", "non_causal", "tree", "segments"]
Phase = Literal["decode", "verify", "prefill"]


@frozen(kw_only=True)
class AttentionCaps:
    """What a kernel can do. What is not declared is refused at composition.

    Attributes:
        phases: kinds of spans it takes; one batch may mix them if `mixed`, otherwise each batch has one phase.
        features: beyond causal full attention with grouped queries. `segments` means `kv_start` may be non-zero and
            `lse` is filled, as sealing codecs need.
        writes: the plugin is also a KVWriter.
        reads_tail: it may read page slots past `kv_lens`; the core then zeroes new pages.
        graph: whether a plan made with `capture=True` may be replayed: not at all, for decode batches, for any. The
            core records decode batches only.
        needs_exact_lens: host lengths must be exact (no speculation at depth 1).
        batch_invariant: a row's result does not depend on its company, bit for bit.
        applies_transforms: it applies a codec's q and o transforms itself.
    """

    phases: frozenset[Phase] = frozenset({"decode", "verify", "prefill"})
    mixed: bool = True
    features: frozenset[AttnFeature] = frozenset()
    writes: bool = False
    reads_tail: bool = False
    graph: Literal["none", "decode", "any"] = "none"
    needs_exact_lens: bool = False
    batch_invariant: bool = False
    applies_transforms: bool = False


class AttnPlan:
    """Base class of what a kernel computed once for a step. Opaque to the core, which drops it after the step's last
    `run`, or keeps it with a recording.
    """

    __slots__ = ()


class Workspace(Protocol):
    """Scratch memory owned by the core, kept between steps and never shared by two live plans."""

    def take(self, nbytes: int) -> "Tensor":
        """A `[nbytes]` uint8 tensor on the device, 64-byte aligned, content undefined. Its owner until the step ends,
        or for the life of a recording, is the plan that is being made. Only for use inside `plan`.
        """
        ...


class AttentionKernel(Protocol):
    """Call order: `accepts` at composition for every layer and format; then per step `plan` once per segment and
    parameter set, and `run` once per layer and segment, after that layer's keys and values were written. A kernel that
    shares a step with another one (`[attention.decode]`, `[attention.prefill]`), or is not `mixed`, gets a batch of its
    own rows only. It owns nothing but its plans and what they took from the workspace, and no state per sequence.
    """

    def accepts(self, spec: LayerSpec, format: KVFormat) -> Accepts | Unsupported:
        """Whether layers like `spec` can be run over pages of `format`. Pure."""
        ...

    def plan(
        self, batch: AttnBatch, params: AttnParams, workspace: Workspace, *, capture: bool, reuse: AttnPlan | None
    ) -> AttnPlan:
        """Prepare one segment. Everything numerical is in `params`; nothing of it may be left for `run`.

        Args:
            batch: tensors stay valid and unchanged until the step's last `run`. With `capture`, they are static
                buffers whose content changes between replays, the arrays on the host too.
            capture: `run` will be recorded and replayed: no synchronisation, no host reads in `run`.
            reuse: with `capture`, the plan of the recording: update it in place for this batch and return it. Called
                before every replay; take nothing from the workspace then, the recording keeps what it took.

        Raises PluginFault for `capture` without the capability `graph`.
        """
        ...

    def run(self, layer: int, q: "Tensor", pages: Pages, plan: AttnPlan, out: "Tensor", lse: "Tensor | None") -> None:
        """Attend.

        Args:
            layer: the layer's number in its owner.
            q: `[T, q_heads, head_k]` in the layer's dtype; may be strided; not modified. A codec's q transform has been
                applied unless the kernel declares that it does that itself.
            pages: this layer's pool that the segment names.
            plan: from `plan` for this segment and this layer's parameters.
            out: `[T, q_heads, head_v]` in q's dtype, may be strided, content undefined; written for every row. A row
                without visible keys here gets 0.
            lse: `[T, q_heads]` float32 (float64 for float64 q) or None: natural log of the sum of exponentials, that of
                the sink included where `sinks_here`; -inf without visible keys, sinks or not. Asked for only where a
                row has several segments.
        """
        ...


class KVWriter(Protocol):
    """A kernel that writes keys and values itself (capability `writes`), byte for byte as the codec's `append`. Used
    instead of it when both attention plugins of a composition declare it; then the prefill plugin's is called, once per
    layer and step for all rows.
    """

    def write(self, layer: int, k: "Tensor", v: "Tensor", pages: Pages, slots: "Tensor") -> None:
        """Store row t of `k` `[T, kv_heads, head_k]` and `v` `[T, kv_heads, head_v]` at `slots[t]` (int64, on the
        device); -1 skips. `pages` is the open pool where the codec has one. k and v may be strided.
        """
        ...
