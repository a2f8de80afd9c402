"""Which key each row of a group sees, from positions, window and tree. Host arithmetic only."""

from collections.abc import Sequence

import numpy as np
from attrs import frozen

from tokloom.plugins.attention.torch.tiles import Bools, HostBatch, Ints, Tile
from tokloom.sdk import AttnParams


@frozen
class GroupIndex:
    """A group of `B` tiles of `n` rows over `L` key columns; shorter tiles are padded on the left.

    Attributes:
        seqs: `[B]`.
        rows: `[B, n]` rows of the batch.
        slots: `[B, L]` the key slot of each column. Columns that no row of the tile sees repeat a slot that one sees:
            unused memory is never read, so that it may hold NaN.
        visible: `[B, n, L]`, or None where every row sees every column. Every row sees at least one column.
        distance: `[B, n, L]` query position minus key position where ALiBi wants it.
        empty: rows that see nothing; their result is replaced.
    """

    seqs: Ints
    rows: Ints
    slots: Ints
    visible: Bools | None
    distance: Ints | None
    empty: Ints


def index_group(host: HostBatch, params: AttnParams, tiles: Sequence[Tile]) -> GroupIndex:
    """Lay out one group and decide every (row, column) pair of it."""
    seqs = np.array([t.seq for t in tiles], dtype=np.int64)
    lo = np.array([[t.lo] for t in tiles], dtype=np.int64)
    hi = np.array([[t.hi] for t in tiles], dtype=np.int64)
    rows = np.array([[t.row] for t in tiles], dtype=np.int64) + np.arange(tiles[0].rows)
    width = int((hi - lo).max())
    slots = hi - width + np.arange(width)
    real = slots >= lo
    slots = np.maximum(slots, lo)
    row_at = host.positions[rows]
    key_at = host.kv_start[seqs][:, None] + slots
    visible = np.broadcast_to(real[:, None, :], (len(tiles), rows.shape[1], width))
    if host.tree is None:
        distance = row_at[:, :, None] - key_at[:, None, :]
        if params.causal or params.window is not None:
            visible = visible & (distance >= 0)
    else:
        tree = _TreePart(host, host.tree, seqs, rows, slots)
        distance = row_at[:, :, None] - tree.key_positions(key_at)[:, None, :]
        by_position = distance >= 0 if params.causal or params.window is not None else np.ones_like(distance, np.bool_)
        visible = visible & tree.overlay(by_position)
    if params.window is not None:
        visible = visible & (distance < params.window)
    return _without_waste(seqs, rows, slots, visible, distance if params.alibi else None)


def _without_waste(seqs: Ints, rows: Ints, slots: Ints, visible: Bools, distance: Ints | None) -> GroupIndex:
    """Point unseen columns at seen ones, give rows that see nothing something finite to see, drop needless masks."""
    if visible.all():
        return GroupIndex(seqs, rows, slots, None, distance, rows[:0, 0])
    seen = visible.any(axis=1)
    stand_in = seen.argmax(axis=1)
    each = np.arange(len(seqs))
    slots = np.where(seen, slots, slots[each, stand_in][:, None])
    blind = np.logical_not(visible.any(axis=2))
    if blind.any():
        visible = visible.copy()
        tile, row = np.nonzero(blind)
        visible[tile, row, stand_in[tile]] = True
    return GroupIndex(seqs, rows, slots, visible, distance, rows[blind])


class _TreePart:
    """Where a group's rows and columns fall in the tree mask `[B, Q, Q]`, which is aligned to each sequence's end."""

    def __init__(self, host: HostBatch, tree: Bools, seqs: Ints, rows: Ints, slots: Ints) -> None:
        self._host, self._mask, self._seqs = host, tree, seqs
        span = tree.shape[1]
        covered = np.array([host.in_tree(int(s)) for s in seqs], dtype=np.int64)[:, None]
        self._end = host.q_indptr[seqs + 1][:, None]
        self._row = span - (self._end - rows)
        self._col = span - (host.kv_lens[seqs][:, None] - slots)
        self._row_in = self._row >= span - covered
        self._col_in = self._col >= span - covered

    def key_positions(self, by_slot: Ints) -> Ints:
        """Keys inside the tree stand at the positions of their rows, the others at their slots."""
        row_of_key = np.where(self._col_in, self._end - self._mask.shape[1] + self._col, 0)
        return np.where(self._col_in, self._host.positions[row_of_key], by_slot)

    def overlay(self, by_position: Bools) -> Bools:
        """Inside the tree the mask decides, elsewhere positions do."""
        inside = self._row_in[:, :, None] & self._col_in[:, None, :]
        row, col = np.maximum(self._row, 0), np.maximum(self._col, 0)
        told = self._mask[self._seqs[:, None, None], row[:, :, None], col[:, None, :]]
        chosen: Bools = np.where(inside, told, by_position)
        return chosen
