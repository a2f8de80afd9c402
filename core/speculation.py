"""Speculation from the core's side: guarded calls to a host speculator, and device speculators inside the launch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tokloom.core.composition import Part
from tokloom.core.faults import Faults
from tokloom.core.plan import RowBegin, Span
from tokloom.core.rows import Rows
from tokloom.core.sampling import Sampler
from tokloom.core.sequence import Sequence as CoreSequence
from tokloom.core.sequence import View
from tokloom.sdk import (
    NO_DRAFT,
    Draft,
    DraftPages,
    GroupId,
    IngestBatch,
    Proposal,
    ProposeBatch,
    SeqId,
    Speculator,
    SpeculatorCaps,
)

if TYPE_CHECKING:
    from tokloom.core.runner import SpanResult

#: faults after which a speculator is not asked any more
BREAKER = 8


class HostSpeculation:
    """Calls to a host speculator. A fault means plain decoding: for the sequence at once, for all after `BREAKER`."""

    def __init__(self, part: Part[Speculator, SpeculatorCaps], sampler: Sampler, faults: Faults) -> None:
        self._part = part
        self._plugin = part.plugin
        self._sampler = sampler
        self._faults = faults
        self._begun: set[SeqId] = set()

    @property
    def broken(self) -> bool:
        """Whether it failed too often."""
        return self._faults.count(self._part.id) >= BREAKER

    def follows(self, seq_id: SeqId) -> bool:
        """Whether the speculator has all rows of the sequence, so that it may propose."""
        return seq_id in self._begun and not self.broken

    def begin(self, seq: CoreSequence, parent: SeqId) -> None:
        self._begun.add(seq.seq_id)
        try:
            self._plugin.begin(seq.view, parent)
        except Exception as error:
            self._drop(seq.seq_id, "begin", error)

    def end(self, seq_id: SeqId) -> None:
        if seq_id not in self._begun:
            return
        self._begun.discard(seq_id)
        try:
            self._plugin.end(seq_id)
        except Exception as error:
            self._faults.record(self._part.id, "end", error)

    def ingest(self, batch: IngestBatch) -> None:
        """Hand over committed rows of sequences that began."""
        if self.broken or not batch.seq_ids:
            return
        try:
            self._plugin.ingest(batch)
        except Exception as error:
            for seq_id in batch.seq_ids:
                self._drop(seq_id, "ingest", error)

    def propose(self, proposals: Sequence[Proposal], pages: dict[GroupId, DraftPages]) -> list[Draft]:
        """One valid draft per proposal, `NO_DRAFT` where the plugin failed."""
        nothing = [NO_DRAFT] * len(proposals)
        try:
            drafts = list(self._plugin.propose(ProposeBatch(tuple(proposals), pages)))
        except Exception as error:
            self._faults.record(self._part.id, "propose", error)
            return nothing
        if len(drafts) != len(proposals):
            self._faults.record(
                self._part.id, "propose", f"returned {len(drafts)} drafts for {len(proposals)} proposals"
            )
            return nothing
        return [self._clean(proposal, draft) for proposal, draft in zip(proposals, drafts, strict=True)]

    def _clean(self, proposal: Proposal, draft: Draft) -> Draft:
        if not isinstance(draft, Draft):
            self._faults.record(self._part.id, "propose", f"returned {type(draft).__name__}, not a Draft")
            return NO_DRAFT
        cleaned, fault = self._sampler.clean_draft(proposal.seq_id, draft, proposal.k)
        if fault:
            self._faults.record(self._part.id, "propose", fault)
        return cleaned

    def _drop(self, seq_id: SeqId, method: str, error: Exception) -> None:
        self._faults.record(self._part.id, method, error)
        self.end(seq_id)


def subset(batch: IngestBatch, counts: Sequence[int]) -> IngestBatch:
    """The first `counts` rows of each sequence; those without rows are left out."""
    if counts == np.diff(batch.indptr).tolist() and all(counts):
        return batch
    chosen = [b for b, count in enumerate(counts) if count]
    rows = np.concatenate(
        [batch.indptr[b] + np.arange(counts[b], dtype=np.int64) for b in chosen] or [np.zeros(0, np.int64)]
    )
    indptr = np.zeros(len(chosen) + 1, dtype=np.int32)
    np.cumsum([counts[b] for b in chosen], out=indptr[1:])
    return IngestBatch(
        seq_ids=tuple(batch.seq_ids[b] for b in chosen),
        indptr=indptr,
        ids=batch.ids[rows],
        next_ids=batch.next_ids[rows],
        positions=batch.positions[rows],
        features={layer: feature[rows.tolist()] for layer, feature in batch.features.items()},
        pages={
            group: DraftPages(pages.layers, pages.slots[rows], pages.tables[chosen])
            for group, pages in batch.pages.items()
        },
    )


class _RowView(View):
    """A view whose tokens are those of the runner's row: exact inside a launch."""

    __slots__ = ("_rows",)

    def __init__(self, seq: CoreSequence, rows: Rows) -> None:
        super().__init__(seq)
        self._rows = rows

    @property
    def tokens(self) -> Sequence[int]:
        row = self._rows.of(self._seq.seq_id)
        tokens: list[int] = self._rows.tokens[row, : self._rows.length[row]].tolist()
        return tokens


class DeviceSpeculation:
    """A device speculator's calls, inside the launch after sampling. Faults surface as missing drafts."""

    def __init__(self, plugin: Speculator, rows: Rows, sampler: Sampler) -> None:
        self._plugin = plugin
        self._rows = rows
        self._sampler = sampler
        self._begun: set[SeqId] = set()
        self.errors: list[tuple[str, str]] = []

    def begin(self, seq: CoreSequence, begin: RowBegin) -> None:
        self._begun.add(seq.seq_id)
        try:
            self._plugin.begin(_RowView(seq, self._rows), begin.parent)
        except Exception as error:
            self._drop(seq.seq_id, "begin", error)

    def end(self, seq_id: SeqId) -> None:
        if seq_id not in self._begun:
            return
        self._begun.discard(seq_id)
        try:
            self._plugin.end(seq_id)
        except Exception as error:
            self.errors.append(("end", repr(error)))

    def after(self, spans: Sequence[Span], results: "Sequence[SpanResult]", batch: IngestBatch) -> None:
        """Ingest what stands, then draft for the next span of those that want it."""
        try:
            self._plugin.ingest(batch)
        except Exception as error:
            for seq_id in batch.seq_ids:
                self._drop(seq_id, "ingest", error)
            return
        proposals = []
        for span, result in zip(spans, results, strict=True):
            row = self._rows.of(span.seq_id)
            if span.propose and not result.ended and result.error is None and span.seq_id in self._begun:
                length = int(self._rows.length[row])
                last = int(self._rows.tokens[row, length - 1])
                proposals.append(Proposal(span.seq_id, span.propose, last, length - 1))
        if not proposals:
            return
        try:
            at = [batch.seq_ids.index(proposal.seq_id) for proposal in proposals]
            pages = {g: DraftPages(own.layers, own.slots[:0], own.tables[at]) for g, own in batch.pages.items()}
            drafts = self._plugin.propose(ProposeBatch(tuple(proposals), pages))
            for proposal, draft in zip(proposals, drafts, strict=True):
                cleaned, fault = self._sampler.clean_draft(proposal.seq_id, draft, proposal.k)
                if fault:
                    self.errors.append(("propose", fault))
                self._rows.drafts[self._rows.of(proposal.seq_id)] = cleaned
        except Exception as error:
            self.errors.append(("propose", repr(error)))

    def _drop(self, seq_id: SeqId, method: str, error: Exception) -> None:
        self.errors.append((method, repr(error)))
        self.end(seq_id)
