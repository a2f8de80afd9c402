"""StepPlan: everything a launch needs, as ids and integers only. Frozen and picklable."""

from attrs import frozen

from tokloom.sdk import Draft, OnDevice, PageOp, Pooling, SeqId, TableDelta


@frozen
class Span:
    """The unit of work: rows `[start, stop)` of one sequence.

    Prefill, chunk, decode and verification are spans of different lengths; a prefix hit is one that starts late.

    Attributes:
        epoch: of the sequence when planned; a result of another epoch is dropped.
        start: first row; an upper bound while drafts of an earlier span are in flight.
        stop: one past the last row, drafts included.
        drafts: proposed tokens verified by this span; None without.
        samples: sequences' first tokens to draw from the last row: 0 none, 1 the usual, n for parallel sampling.
        scores: whether logits of every row are turned into log-probabilities of the next prompt token.
        pools: which rows' hidden states go into an embedding: none, the last, or all (`mean`).
        propose: tokens a device speculator shall draft after this span.
    """

    seq_id: SeqId
    epoch: int
    start: int
    stop: int
    drafts: Draft | OnDevice | None = None
    samples: int = 0
    scores: bool = False
    propose: int = 0
    pools: Pooling = ""

    @property
    def k(self) -> int:
        """Drafts at the most."""
        if self.drafts is None:
            return 0
        return self.drafts.k if isinstance(self.drafts, OnDevice) else len(self.drafts.tokens)


@frozen
class RowBegin:
    """A sequence starts using a row of the runner with these tokens, `computed` of which have KV."""

    seq_id: SeqId
    row: int
    tokens: tuple[int, ...]
    computed: int
    parent: SeqId = -1


@frozen(kw_only=True)
class StepPlan:
    """One step. Executed in this order: ends, begins, table deltas, page operations, forward of the spans.

    Attributes:
        spans: decode first, then verify, then prefill.
        num_decode, num_verify: how many of each.
        ends: sequences whose rows are free: finished, aborted or preempted.
    """

    step: int
    spans: tuple[Span, ...]
    num_decode: int = 0
    num_verify: int = 0
    ends: tuple[SeqId, ...] = ()
    begins: tuple[RowBegin, ...] = ()
    deltas: tuple[TableDelta, ...] = ()
    ops: tuple[PageOp, ...] = ()

    @property
    def rows(self) -> int:
        """Target rows at the most."""
        return sum(span.stop - span.start for span in self.spans)
