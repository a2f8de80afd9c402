"""What a step hands to models, kernels and speculators. Arrays on the host are numpy, on the device torch."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import field, frozen

from tokloom.sdk.values.kv import GroupId, Pages, Pool
from tokloom.sdk.values.requests import SeqId

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


@frozen
class AttnParams:
    """Every number that changes attention's result, hashable: layers with equal parameters share one plan.

    Attributes:
        q_heads, kv_heads: `q_heads` is a multiple of `kv_heads` (grouped-query attention).
        head_k, head_v: sizes of a key and a value.
        scale: multiplies q.k before the soft cap.
        causal: a query sees keys at positions up to its own.
        window: visible keys INCLUDING self: key j is visible from i iff `0 <= i - j < window`. None: all.
        soft_cap: scores become `soft_cap * tanh(score / soft_cap)`. None: off.
        sinks: per query head, a logit that takes part in the softmax and has no value; empty: none.
        alibi: per query head, the slope of `-slope * (i - j)` added to the score; empty: none.
    """

    q_heads: int
    kv_heads: int
    head_k: int
    head_v: int
    scale: float
    causal: bool = True
    window: int | None = None
    soft_cap: float | None = None
    sinks: tuple[float, ...] = ()
    alibi: tuple[float, ...] = ()


@frozen
class LayerSpec:
    """One attention layer: its number in its owner, its parameters and the dtype of q, k and v."""

    layer: int
    params: AttnParams
    dtype: str
    key_lookahead: int = 0


@frozen
class AttnBatch:
    """One segment of one group for one step. `B` sequences in the order decode, verify, prefill; `T` query rows.

    A segment is a run of key positions that live in one pool: a codec without an open format has one; a sealing codec
    has the sealed keys first, then the open ones. The core merges segments by log-sum-exp.

    Attributes:
        group, pool: whose pages.
        q_indptr: `[B + 1]` int32 host; rows `q_indptr[b]:q_indptr[b + 1]` are sequence b's.
        kv_start: `[B]` int32 host; absolute position of the segment's first key slot, a multiple of the page size.
        kv_lens: `[B]` int32 host; keys in this segment, drafts included. Upper bounds unless `host_exact`.
        device_kv_lens: `[B]` int32; always exact.
        tables: `[B, P]` int32; page of slots `[kv_start + p * page, ...)`; -1 where nothing is visible any more.
        positions: `[T]` int64; the position of each query row. Apart from slots: siblings of a tree share one.
        slots: `[T]` int64; `page * page_tokens + offset` where the row's key is written; -1 skips the write.
        tree: `[B, Q, Q]` bool or None; over the last `Q` rows and key slots of each sequence: row i sees slot j. Rows
            of shorter spans are aligned to the end. Only on the last segment; earlier keys are visible by position.
        num_decode, num_verify: sequences of those phases, first in order; the rest are prefill.
        host_exact: `kv_lens` and `positions` known on the host are exact.
        sinks_here: this segment applies the sinks (exactly one segment of a row does).
    """

    group: GroupId
    pool: Pool
    q_indptr: "NDArray[np.int32]" = field(eq=False)
    kv_start: "NDArray[np.int32]" = field(eq=False)
    kv_lens: "NDArray[np.int32]" = field(eq=False)
    device_kv_lens: "Tensor" = field(eq=False)
    tables: "Tensor" = field(eq=False)
    positions: "Tensor" = field(eq=False)
    slots: "Tensor" = field(eq=False)
    tree: "Tensor | None" = field(eq=False, default=None)
    num_decode: int = 0
    num_verify: int = 0
    host_exact: bool = True
    sinks_here: bool = True

    @property
    def size(self) -> int:
        """Sequences in the batch."""
        return len(self.kv_lens)

    @property
    def rows(self) -> int:
        """Query rows in the batch."""
        return int(self.q_indptr[-1])


@frozen
class ForwardBatch:
    """What a model's forward pass gets.

    Attributes:
        token_ids: `[T]` int64.
        positions: `[T]` int64.
        q_indptr: `[B + 1]` int32 host.
        features: layers after which the hidden state is captured.
    """

    token_ids: "Tensor" = field(eq=False)
    positions: "Tensor" = field(eq=False)
    q_indptr: "NDArray[np.int32]" = field(eq=False)
    features: tuple[int, ...] = ()


@frozen
class Hidden:
    """A forward pass's result: `last` `[T, H]` before the output head, and captured features layer -> `[T, H]`."""

    last: "Tensor" = field(eq=False)
    features: "Mapping[int, Tensor]" = field(factory=dict, eq=False)


@frozen
class DraftPages:
    """A speculator's own KV group in one batch: one buffer per layer and where each row goes.

    Attributes:
        layers: pools in the order of the group's layers.
        slots: `[T]` int64 host: where row t's draft KV is written.
        tables: `[B, P]` int32 host.
    """

    layers: tuple[Pages, ...]
    slots: "NDArray[np.int64]" = field(eq=False)
    tables: "NDArray[np.int32]" = field(eq=False)


@frozen
class IngestBatch:
    """Rows that were committed, of every span: chunks and steps without drafts too.

    Row t holds token `ids[t]` at `positions[t]`; `next_ids[t]` follows it (the drawn token after a sequence's last row;
    -1 where nothing follows yet: a scored or finished prompt). A prefix hit or a fork leaves gaps: positions before the
    first row were never ingested, the history is in the view given to `begin`.
    """

    seq_ids: tuple[SeqId, ...]
    indptr: "NDArray[np.int32]" = field(eq=False)
    ids: "NDArray[np.int64]" = field(eq=False)
    next_ids: "NDArray[np.int64]" = field(eq=False)
    positions: "NDArray[np.int64]" = field(eq=False)
    features: "Mapping[int, Tensor]" = field(factory=dict, eq=False)
    pages: Mapping[GroupId, DraftPages] = field(factory=dict, eq=False)


@frozen
class Proposal:
    """One sequence asked for drafts: at most `k` tokens after its last token, which is `last` at `position`."""

    seq_id: SeqId
    k: int
    last: int
    position: int


@frozen
class ProposeBatch:
    """All sequences asked for drafts in one step, with the speculator's own pages of each (`tables` per proposal)."""

    proposals: tuple[Proposal, ...]
    pages: Mapping[GroupId, DraftPages] = field(factory=dict, eq=False)
