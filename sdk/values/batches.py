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
            Query head h reads key head `h // (q_heads // kv_heads)`.
        scale: multiplies q.k before the soft cap; then come soft cap, ALiBi, mask, sinks, in this order.
        causal: a query sees keys at positions up to its own.
        window: visible keys INCLUDING self: key j is visible from i iff `0 <= i - j < window`. None: all.
        soft_cap: scores become `soft_cap * tanh(score / soft_cap)`. None: off.
        sinks: per query head, a logit that takes part in the softmax and has no value; empty: none. Not scaled or
            capped.
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
    """One attention layer: its number in its owner, its parameters and the dtype of q, k and v.

    Attributes:
        key_lookahead: tokens past its own position that a layer's KV depends on; 0 for the layers of a model.
    """

    layer: int
    params: AttnParams
    dtype: str
    key_lookahead: int = 0


@frozen
class AttnBatch:
    """One segment of one group for one step. `B` sequences in the order decode, verify, prefill; `T` query rows.

    A segment is a run of key positions that live in one pool: a codec without an open format has one; a sealing codec
    has the sealed keys first, then the open ones. The core merges segments by log-sum-exp. Key slot s of a segment
    stands at position `kv_start + s`, except the last slots under `tree`, which stand at the positions of their rows.

    The page size is that of the group: `pages.format.page_tokens` in `run`, `context.layout.groups[group].page_tokens`
    before it. Arrays marked host are numpy, the others torch tensors on the device, contiguous. All belong to the core;
    they hold until the step's last `run` and must not be changed. Memory that no key slot names holds anything, NaN
    too: slots at or past the length, masked slots, pages that the tables do not name.

    Attributes:
        group, pool: whose pages.
        q_indptr: `[B + 1]` int32 host, from 0 to T; rows `q_indptr[b]:q_indptr[b + 1]` are sequence b's, at least one.
            The rows are the sequence's last positions; the keys of the last segment end with them.
        kv_start: `[B]` int32 host; absolute position of the segment's first key slot, a multiple of the page size. Of a
            first segment it is 0 unless the kernel has the feature `segments`: then what a window hides may be left
            out.
        kv_lens: `[B]` int32 host; keys in this segment, drafts and the rows' own included; may be 0 where another
            segment has the keys. Upper bounds unless `host_exact`.
        device_kv_lens: `[B]` int32; always exact.
        tables: `[B, P]` int32; entry p is the page of slots `[p * page_tokens, (p + 1) * page_tokens)`; P covers the
            longest sequence and may be larger. -1 where nothing is visible any more (behind a window). Entries past a
            sequence's length are -1 or any page: never follow them.
        positions: `[T]` int64; the position of each query row. Apart from slots: siblings of a tree share one.
        slots: `[T]` int64; `page * page_tokens + offset` in the pool that is written (open where there is one, whatever
            `pool` says) where the row's key goes; -1 skips the write.
        tree: `[B, Q, Q]` bool or None; over the last `Q` rows and key slots of each sequence: row i sees slot j. Q is
            the longest span's; rows of shorter spans are aligned to the end, what lies before them is filled causally.
            It replaces causality there; windows still apply, by position. Only on the last segment; earlier keys are
            visible by position.
        num_decode, num_verify: sequences of those phases, first in order; the rest are prefill. A decode span is one
            row.
        host_exact: `kv_lens` and `positions` known on the host are exact.
        sinks_here: this segment applies the sinks (exactly one segment of a row does: the one that holds its own key).
            A row without visible keys still gets `out` 0 and `lse` -inf.

    With `capture` the batch is static and padded: a padding row has one query row, length 0 and slot -1; its query,
    position and table entries are anything, its result is dropped. It must neither fault nor write.
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
class AdapterRows:
    """The rows of a batch that use one adapter.

    Attributes:
        digest: of the adapter.
        ranges: `(first, stop)` of flat rows, ascending, apart from each other, none empty.
    """

    digest: str
    ranges: tuple[tuple[int, int], ...]


@frozen
class ForwardBatch:
    """What a model's forward pass gets. Read-only; sequences stand in the order decode, verify, prefill.

    Attributes:
        token_ids: `[T]` int64 on the device; drafts are rows like others. In a recorded pass rows may be padding: valid
            ids whose results are dropped.
        positions: `[T]` int64 on the device, for positional encodings; siblings of a draft tree share one.
        q_indptr: `[B + 1]` int32 host; rows `q_indptr[b]:q_indptr[b + 1]` are sequence b's.
        features: layers after which the hidden state is captured; only those a speculator asked for.
        adapters: rows that use an adapter, one entry per adapter; all rows of a sequence use the same. Other rows use
            none. Empty in a recorded pass.
    """

    token_ids: "Tensor" = field(eq=False)
    positions: "Tensor" = field(eq=False)
    q_indptr: "NDArray[np.int32]" = field(eq=False)
    features: tuple[int, ...] = ()
    adapters: tuple[AdapterRows, ...] = ()


@frozen
class Hidden:
    """A forward pass's result, owned by the core afterwards.

    Attributes:
        last: `[T, H]`, what `LoadedModel.logits` takes rows of and `embed` pools: after the final norm.
        features: for each layer of `ForwardBatch.features`, the hidden state after it, `[T, H]`.
    """

    last: "Tensor" = field(eq=False)
    features: "Mapping[int, Tensor]" = field(factory=dict, eq=False)


@frozen
class DraftPages:
    """A speculator's own KV group in one batch: one buffer per layer and where each row goes.

    The speculator writes these pages itself, with its own bytes, only at slots it was given or at positions past them
    that the tables cover.

    Attributes:
        layers: pools in the order of the group's layers.
        slots: `[T]` int64 host: where row t's draft KV is written, `page * page_tokens + offset`; empty in a
            ProposeBatch.
        tables: `[B, P]` int32 host; row b is of the batch's b-th sequence, entry p the page of positions
            `[p * page_tokens, (p + 1) * page_tokens)`, -1 where there is none. For a device speculator they cover the k
            positions it is asked to draft; a host speculator's cover what is committed.
    """

    layers: tuple[Pages, ...]
    slots: "NDArray[np.int64]" = field(eq=False)
    tables: "NDArray[np.int32]" = field(eq=False)


@frozen
class IngestBatch:
    """Rows that were committed, of every span: chunks and steps without drafts too. Arrays may be kept.

    Row t holds token `ids[t]` at `positions[t]`; `next_ids[t]` follows it (the drawn token after a sequence's last row;
    -1 where nothing follows yet: a scored or finished prompt). A prefix hit or a fork leaves gaps: positions before the
    first row were never ingested, the history is in the view given to `begin`.

    Attributes:
        seq_ids: `B` sequences, each once.
        indptr: `[B + 1]` int32 host; rows `indptr[b]:indptr[b + 1]` are those of `seq_ids[b]`. A device speculator may
            meet empty ranges.
        ids, next_ids, positions: `[T]` int64 host; positions of a sequence follow one another.
        features: per layer of `SpecNeeds.features`, `[T, H]` on the device in the model's dtype.
        pages: per group of its own, where these rows' draft KV goes.
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
    """One sequence asked for drafts: at most `k` (at least 1) tokens after its last token, which is `last` at
    `position`.

    Its KV up to `position - 1` is committed; that of `last` itself is computed by the step that verifies the draft.
    """

    seq_id: SeqId
    k: int
    last: int
    position: int


@frozen
class ProposeBatch:
    """All sequences asked for drafts in one step, with the speculator's own pages of each (`tables` per proposal)."""

    proposals: tuple[Proposal, ...]
    pages: Mapping[GroupId, DraftPages] = field(factory=dict, eq=False)
