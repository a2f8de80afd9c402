"""Cutting a batch into tiles and collecting like tiles into groups that are computed together. Host arithmetic only.

A tile is a run of query rows of one sequence and the run of key slots that they may see. A decoding sequence is one
tile of one row; a prefill is several tiles, so that a tile never computes scores far above the causal diagonal.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from tokloom.sdk import AttnBatch, AttnParams

if TYPE_CHECKING:
    from torch import Tensor

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: query rows times grouped heads in a tile: large enough for full matrix speed, small enough to follow the diagonal
TILE_ROWS = 384
#: tiles at least this tall are computed alone: padding them to a common length costs more than a call
LONE_ROWS = 192
#: elements of gathered keys in one group, which bounds scratch memory and keeps it near the cache
GROUP_ELEMENTS = 4 << 20
#: scores of one group where they are materialised
GROUP_SCORES = 8 << 20


class Tile(NamedTuple):
    """Rows `[row, row + rows)` of the batch, of sequence `seq`, over its key slots `[lo, hi)`."""

    seq: int
    row: int
    rows: int
    lo: int
    hi: int

    @property
    def keys(self) -> int:
        return self.hi - self.lo


@frozen
class HostBatch:
    """The parts of a batch that planning reads, on the host, exact."""

    q_indptr: Ints
    kv_start: Ints
    kv_lens: Ints
    positions: Ints
    tree: Bools | None

    @classmethod
    def of(cls, batch: AttnBatch) -> "HostBatch":
        rows = batch.rows
        return cls(
            batch.q_indptr.astype(np.int64),
            batch.kv_start.astype(np.int64),
            to_host(batch.device_kv_lens)[: batch.size].astype(np.int64),
            to_host(batch.positions)[:rows].astype(np.int64),
            None if batch.tree is None else to_host(batch.tree).astype(np.bool_),
        )

    def in_tree(self, seq: int) -> int:
        """How many of a sequence's last rows and key slots the tree mask covers."""
        if self.tree is None:
            return 0
        rows = int(self.q_indptr[seq + 1] - self.q_indptr[seq])
        return min(int(self.tree.shape[1]), rows, int(self.kv_lens[seq]))


def to_host(tensor: "Tensor") -> "NDArray[np.generic]":
    array: NDArray[np.generic] = tensor.cpu().numpy()
    return array


def cut(host: HostBatch, params: AttnParams) -> tuple[list[Tile], list[int]]:
    """Tiles of all rows that may see a key, and the rows that see none whatever the mask says."""
    tallest = max(16, TILE_ROWS * params.kv_heads // params.q_heads)
    tiles: list[Tile] = []
    empty: list[int] = []
    for seq in range(len(host.kv_lens)):
        first, stop = int(host.q_indptr[seq]), int(host.q_indptr[seq + 1])
        count = -(-(stop - first) // tallest)
        for i in range(count):
            row = first + (stop - first) * i // count
            end = first + (stop - first) * (i + 1) // count
            lo, hi = _reach(host, params, seq, row, end)
            if lo < hi:
                tiles.append(Tile(seq, row, end - row, lo, hi))
            else:
                empty.extend(range(row, end))
    return tiles, empty


def _reach(host: HostBatch, params: AttnParams, seq: int, row: int, end: int) -> tuple[int, int]:
    """Key slots outside `[lo, hi)` are invisible to rows `[row, end)`; the last `in_tree` slots are always inside."""
    lo, hi = 0, int(host.kv_lens[seq])
    start, tree = int(host.kv_start[seq]), host.in_tree(seq)
    positions = host.positions[row:end]
    if (params.causal or params.window is not None) and tree == 0:
        hi = min(hi, int(positions.max()) + 1 - start)
    if params.window is not None:
        lo = min(max(0, int(positions.min()) - params.window + 1 - start), max(0, hi - tree) if tree else hi)
    return lo, hi


def gather_like(tiles: Sequence[Tile], params: AttnParams) -> list[list[Tile]]:
    """Groups of tiles with equal row counts and similar key counts (padding at most a quarter and a few)."""
    groups: list[list[Tile]] = []
    shortest = 0
    fold = params.q_heads // params.kv_heads
    key_elements = params.kv_heads * max(params.head_k, params.head_v)
    for tile in sorted(tiles, key=lambda t: (t.rows, t.keys, t.row)):
        group = groups[-1] if groups else []
        padded = (len(group) + 1) * tile.keys
        joins = (
            bool(group)
            and group[-1].rows == tile.rows
            and tile.rows * fold < LONE_ROWS
            and tile.keys <= shortest + shortest // 4 + 32
            and padded * key_elements <= GROUP_ELEMENTS
            and padded * tile.rows * params.q_heads <= GROUP_SCORES
        )
        if joins:
            group.append(tile)
        else:
            groups.append([tile])
            shortest = tile.keys
    return groups
