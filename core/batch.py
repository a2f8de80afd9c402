"""BatchBuilder: from spans to the arrays that models and kernels get."""

from collections.abc import Sequence

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from tokloom.core.device import Device
from tokloom.core.plan import Span
from tokloom.core.rows import Rows
from tokloom.sdk import AdapterRows, AttnBatch, Draft, KVGroup

Ints = NDArray[np.int64]


@frozen
class StepRows:
    """The rows of one step, flat. `B` spans, `T` rows.

    Attributes:
        rows: `[B]` the runner's row of each span.
        start: `[B]` exact first position.
        counts: `[B]` rows of each span, drafts included.
        indptr: `[B + 1]` int32.
        flat_rows: `[T]` the runner's row of each row.
        slots: `[T]` position slot of each row: where its KV goes.
        positions: `[T]` position of each row; differs from `slots` inside trees.
        drafts: per span; empty without.
    """

    rows: Ints = field(eq=False)
    start: Ints = field(eq=False)
    counts: Ints = field(eq=False)
    indptr: NDArray[np.int32] = field(eq=False)
    flat_rows: Ints = field(eq=False)
    slots: Ints = field(eq=False)
    positions: Ints = field(eq=False)
    drafts: tuple[Draft, ...] = field(eq=False)
    num_decode: int = 0
    num_verify: int = 0

    @property
    def size(self) -> int:
        return len(self.rows)

    @property
    def total(self) -> int:
        return int(self.indptr[-1])


def flatten(rows: Rows, spans: Sequence[Span], drafts: Sequence[Draft], num_decode: int, num_verify: int) -> StepRows:
    """Lay spans out flat; starts come from the rows, where they are exact. Drafts are put behind each row's tokens."""
    index = np.array([rows.of(span.seq_id) for span in spans], dtype=np.int64)
    start = rows.computed[index]
    if num_decode == len(spans):
        each = np.ones(len(spans), dtype=np.int64)
        indptr = np.arange(len(spans) + 1, dtype=np.int32)
        return StepRows(index, start, each, indptr, index, start, start, tuple(drafts), num_decode, num_verify)
    counts = np.array(
        [span.stop - span.start - span.k + len(draft.tokens) for span, draft in zip(spans, drafts, strict=True)],
        dtype=np.int64,
    )
    indptr = np.zeros(len(spans) + 1, dtype=np.int32)
    np.cumsum(counts, out=indptr[1:])
    within = np.arange(indptr[-1], dtype=np.int64) - np.repeat(indptr[:-1].astype(np.int64), counts)
    slots = np.repeat(start, counts) + within
    positions = slots
    for b in range(num_decode, num_decode + num_verify):
        draft = drafts[b]
        if not draft.tokens:
            continue
        row, length = int(index[b]), int(rows.length[index[b]])
        rows.tokens[row, length : length + len(draft.tokens)] = draft.tokens
        if not draft.is_chain:
            if positions is slots:
                positions = slots.copy()
            first = int(indptr[b]) + 1
            positions[first : first + len(draft.tokens)] = start[b] + depths(draft)
    return StepRows(
        index,
        start,
        counts,
        indptr,
        np.repeat(index, counts),
        slots,
        positions,
        tuple(drafts),
        num_decode,
        num_verify,
    )


def adapter_rows(digests: Sequence[str], indptr: NDArray[np.int32]) -> tuple[AdapterRows, ...]:
    """The rows of each adapter, from the digest of each span; empty: none."""
    found: dict[str, list[tuple[int, int]]] = {}
    bounds = indptr.tolist()
    for digest, first, stop in zip(digests, bounds, bounds[1:], strict=False):
        if not digest:
            continue
        ranges = found.setdefault(digest, [])
        if ranges and ranges[-1][1] == first:
            ranges[-1] = (ranges[-1][0], stop)
        else:
            ranges.append((first, stop))
    return tuple(AdapterRows(digest, tuple(ranges)) for digest, ranges in found.items())


def depths(draft: Draft) -> Ints:
    """`[n]` depth of each node; children of the last committed token have depth 1."""
    result = np.zeros(len(draft.tokens), dtype=np.int64)
    for node, parent in enumerate(draft.parents):
        result[node] = 1 if parent < 0 else result[parent] + 1
    return result


def tree_mask(step: StepRows, first: int, last: int) -> NDArray[np.bool_] | None:
    """`[B, Q, Q]` over spans `first` to `last`: None if every draft is a chain, which causality covers."""
    drafts = step.drafts[first:last]
    if all(draft.is_chain for draft in drafts):
        return None
    widest = int(step.counts[first:last].max())
    mask = np.zeros((last - first, widest, widest), dtype=np.bool_)
    mask[:] = np.tri(widest, dtype=np.bool_)
    for b, draft in enumerate(drafts):
        if draft.is_chain:
            continue
        n = len(draft.tokens) + 1
        own = np.zeros((n, n), dtype=np.bool_)
        own[0, 0] = True
        for node, parent in enumerate(draft.parents, 1):
            own[node] = own[parent + 1]
            own[node, node] = True
        mask[b, widest - n :, widest - n :] = own
    return mask


def segments(
    device: Device, rows: Rows, group: KVGroup, step: StepRows, first: int, last: int, *, trim: bool
) -> list[AttnBatch]:
    """The segments of one group for spans `first` to `last`: sealed keys, then open ones; one if the group has no open
    pool.

    Args:
        trim: the kernel takes `kv_start`, so that pages a window cannot see any more need not be walked.
    """
    page = group.page_tokens
    index = step.rows[first:last]
    start = step.start[first:last]
    total = start + step.counts[first:last]
    lo, hi = int(step.indptr[first]), int(step.indptr[last])
    slots = step.slots[lo:hi]
    flat = step.flat_rows[lo:hi]
    indptr = step.indptr[first : last + 1] - lo
    low = np.zeros_like(start)
    if trim and group.window is not None:
        low = np.maximum(start - group.window + 1, 0) // page * page
    written = rows.tables[group.id, "main" if group.open is None else "open"]
    device_slots = device.upload(written[flat, slots // page].astype(np.int64) * page + slots % page)
    positions = device.upload(step.positions[lo:hi])
    mask = tree_mask(step, first, last)
    tree = None if mask is None else device.upload(mask)
    decode = min(max(step.num_decode - first, 0), last - first)
    verify = min(max(step.num_decode + step.num_verify - first, 0), last - first) - decode

    def segment(pool: str, begin: Ints, end: Ints, *, final: bool) -> AttnBatch:
        lens = np.maximum(end - begin, 0).astype(np.int32)
        pages = -(-int(lens.max()) // page) if len(lens) else 0
        table = rows.tables[group.id, "open" if pool == "open" else "main"]
        columns = (begin // page)[:, None] + np.arange(pages)
        taken = table[index[:, None], np.minimum(columns, table.shape[1] - 1)]
        taken[np.arange(pages) * page >= lens[:, None]] = -1
        return AttnBatch(
            group=group.id,
            pool="open" if pool == "open" else "main",
            q_indptr=indptr,
            kv_start=begin.astype(np.int32),
            kv_lens=lens,
            device_kv_lens=device.upload(lens),
            tables=device.upload(taken),
            positions=positions,
            slots=device_slots,
            tree=tree if final else None,
            num_decode=decode,
            num_verify=verify,
            sinks_here=final,
        )

    if group.open is None:
        return [segment("main", low, total, final=True)]
    sealed = rows.sealed[group.id][index].astype(np.int64) * page
    low = np.minimum(low, sealed)
    return [segment("main", low, sealed, final=False), segment("open", sealed, total, final=True)]
