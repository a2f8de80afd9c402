"""What the runner hands to the sampler for one step, and what it gets back."""

from collections.abc import Sequence

from attrs import field, frozen

from tokloom.core.sampling.logprobs import TokenLogprobs
from tokloom.core.sampling.state import Ids
from tokloom.sdk import NO_DRAFT, Draft, SeqId, TokloomError


@frozen(eq=False)
class SpanRows:
    """The sampling rows of one span.

    Attributes:
        tokens: `[n]` int64, the committed tokens up to and including the root (the last committed one).
        row_start: row of the logits that follows the root; the rows of the draft's nodes come after it, in order.
        draft: what was verified in this span.
        samples: first tokens to draw from the root row, one per child 0, 1, …; more than 1 only without a draft.
    """

    seq_id: SeqId
    tokens: Ids = field()
    row_start: int
    draft: Draft = NO_DRAFT
    samples: int = 1


@frozen
class SpanSample:
    """What a span yields.

    Attributes:
        tokens: per child (one, unless `samples` asked for more) the tokens emitted: the accepted drafts, then the
            token after them. That last one is missing where nothing may follow: the grammar has ended, or `error`.
        accepted: the draft's nodes that stand, root side first.
        logprobs: aligned with `tokens`; empty tuples unless the request asks for them.
        error: why this sequence cannot go on after `tokens`; other sequences are not affected.
    """

    tokens: tuple[tuple[int, ...], ...]
    accepted: tuple[int, ...] = ()
    logprobs: tuple[tuple[TokenLogprobs, ...], ...] = ()
    error: TokloomError | None = None


@frozen
class ScoreRows:
    """Rows whose next token is known: row `row_start + i` of the logits is followed by `targets[i]`."""

    seq_id: SeqId
    row_start: int
    targets: Sequence[int]


@frozen
class ScoreSample:
    """`logprobs[i]` belongs to `targets[i]`. With an `error` it is empty."""

    logprobs: tuple[TokenLogprobs, ...] = ()
    error: TokloomError | None = None
