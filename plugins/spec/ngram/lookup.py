"""Prompt lookup decoding: drafts copied from where the sequence's last n tokens stood before (Saxena 2023)."""

from collections.abc import Sequence

from tokloom.sdk import NO_DRAFT, Draft, IngestBatch, Proposal, ProposeBatch, SeqId, SequenceView, SpecNeeds

Gram = tuple[int, ...]


class NgramSpeculator:
    """Proposes from committed history alone, without weights or KV.

    The longest suffix of `min_n` to `max_n` tokens that stood earlier in the history is continued as it was. Of several
    earlier places the latest one wins: text that is being copied or edited goes on from where it last was, and one
    entry per n-gram is enough, so the index costs O(max_n) per new token. Where the copy reaches the end of the history
    it goes round: the latest place of a repeated token or phrase is close to the end, and repetition tends to last.
    """

    def __init__(self, min_n: int, max_n: int) -> None:
        self._sizes = range(max_n, min_n - 1, -1)
        self._histories: dict[SeqId, _History] = {}

    def needs(self, page_tokens: int) -> SpecNeeds:
        return SpecNeeds()

    def begin(self, view: SequenceView, parent: SeqId) -> None:
        """The history is read from the view when first needed, so hits, forks and preemptions leave no gap."""
        self._histories[view.seq_id] = _History(view, self._sizes)

    def ingest(self, batch: IngestBatch) -> None:
        """Nothing to do: every committed token is in the view."""

    def propose(self, batch: ProposeBatch) -> Sequence[Draft]:
        return [self._draft(proposal) for proposal in batch.proposals]

    def end(self, seq_id: SeqId) -> None:
        self._histories.pop(seq_id, None)

    def _draft(self, proposal: Proposal) -> Draft:
        history = self._histories.get(proposal.seq_id)
        if history is None or proposal.k <= 0:
            return NO_DRAFT
        # At most the tokens up to `last` are committed for this proposal, whatever the view holds by now.
        tokens = history.continuation(proposal.position + 1, proposal.k)
        return Draft.chain(tokens) if tokens else NO_DRAFT


class _History:
    """The index of one sequence: n-gram -> where it last ended, for n-grams that end before the last token.

    Invariant: every n-gram that ends at a position below `_indexed` (the position of its last token) is in `_ends`, at
    its latest such position. The n-grams that end at the very last token are looked up, not indexed, or they would
    only find themselves.
    """

    def __init__(self, view: SequenceView, sizes: range) -> None:
        self._view = view
        self._sizes = sizes
        self._ends: dict[Gram, int] = {}
        self._indexed = 0

    def continuation(self, length: int, k: int) -> Sequence[int]:
        """Up to k tokens that followed the latest earlier place of the longest suffix of the first `length` tokens."""
        tokens = self._view.tokens
        if length > len(tokens):
            return ()
        if length - 1 < self._indexed:  # asked for an earlier place: an older end that a later one replaced is unknown
            self._ends.clear()
            self._indexed = 0
        self._index(tokens, length - 1)
        for n in self._sizes:
            if n < length:
                end = self._ends.get(tuple(int(token) for token in tokens[length - n : length]))
                if end is not None:
                    period = [int(token) for token in tokens[end + 1 : min(end + 1 + k, length)]]
                    return [period[i % len(period)] for i in range(k)]
        return ()

    def _index(self, tokens: Sequence[int], stop: int) -> None:
        """Add the n-grams that end at the positions from `_indexed` up to `stop`, exclusive."""
        reach = self._sizes[0]
        start = max(self._indexed - reach + 1, 0)
        recent = [int(token) for token in tokens[start:stop]]
        for position in range(self._indexed, stop):
            at = position - start + 1
            for n in self._sizes:
                if n <= at:
                    self._ends[tuple(recent[at - n : at])] = position
        self._indexed = stop
