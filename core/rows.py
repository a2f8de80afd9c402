"""Rows: the runner's mirror of running sequences: tokens, lengths and page tables, one row each.

Host and device never disagree here: rows change only inside launches, which run in stream order.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tokloom.core.plan import RowBegin
from tokloom.sdk import NO_DRAFT, Draft, GroupId, KVLayout, Pool, SeqId, TableDelta

Table = NDArray[np.int32]


class Rows:
    """Arrays indexed by row.

    Attributes:
        tokens: `[rows, capacity]`; the first `length` are exact, drafts under verification follow.
        length: tokens that stand.
        computed: leading positions whose KV is final.
        tables: per group and pool `[rows, pages]`; -1 where there is no page.
        sealed: per group `[rows]`; leading pages that live in the main pool. Only kept for groups with an open pool.
        drafts: what a device speculator proposed for the next span.
    """

    def __init__(self, layout: KVLayout, rows: int, max_tokens: int, max_draft: int) -> None:
        self.tokens = np.zeros((rows, max_tokens + max_draft + 1), dtype=np.int64)
        self.length = np.zeros(rows, dtype=np.int64)
        self.computed = np.zeros(rows, dtype=np.int64)
        self.tables: dict[tuple[GroupId, Pool], Table] = {}
        self.sealed: dict[GroupId, NDArray[np.int32]] = {}
        for group in layout.groups:
            pages = -(-(max_tokens + max_draft + 1) // group.page_tokens)
            self.tables[group.id, "main"] = np.full((rows, pages), -1, dtype=np.int32)
            if group.open is not None:
                self.tables[group.id, "open"] = np.full((rows, pages), -1, dtype=np.int32)
                self.sealed[group.id] = np.zeros(rows, dtype=np.int32)
        self.drafts: list[Draft] = [NO_DRAFT] * rows
        self._of: dict[SeqId, int] = {}

    def of(self, seq_id: SeqId) -> int:
        """The row of a sequence that began and did not end."""
        return self._of[seq_id]

    def end(self, seq_ids: Iterable[SeqId]) -> list[SeqId]:
        """Free rows; returns those that were in use."""
        return [seq_id for seq_id in seq_ids if self._of.pop(seq_id, None) is not None]

    def begin(self, begin: RowBegin) -> None:
        row = begin.row
        count = len(begin.tokens)
        self._of[begin.seq_id] = row
        self.tokens[row, :count] = begin.tokens
        self.length[row] = count
        self.computed[row] = begin.computed
        self.drafts[row] = NO_DRAFT
        for table in self.tables.values():
            table[row] = -1
        for sealed in self.sealed.values():
            sealed[row] = 0

    def apply(self, deltas: Sequence[TableDelta]) -> None:
        """Set table entries, in order. Entries of sequences that ended are ignored."""
        for delta in deltas:
            row = self._of.get(delta.seq_id)
            if row is None:
                continue
            self.tables[delta.group, delta.pool][row, delta.index] = delta.page
            if delta.pool == "main" and delta.page >= 0:
                sealed = self.sealed.get(delta.group)
                if sealed is not None:
                    sealed[row] = max(int(sealed[row]), delta.index + 1)

    def append(self, row: int, tokens: Sequence[int]) -> None:
        """Tokens were drawn."""
        start = int(self.length[row])
        if len(tokens) == 1:
            self.tokens[row, start] = tokens[0]
        else:
            self.tokens[row, start : start + len(tokens)] = tokens
        self.length[row] = start + len(tokens)
