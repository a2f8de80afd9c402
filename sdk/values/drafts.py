"""Proposed tokens and how they fared."""

from collections.abc import Iterable

from attrs import field, frozen


def _ints(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(values)


@frozen
class Draft:
    """Tokens proposed to follow the last committed one, as a tree in topological order.

    Attributes:
        tokens: token ids of the target's vocabulary.
        parents: for each, the index of its parent among `tokens`; -1 is the last committed token. `parents[i] < i`;
            children of one node have distinct tokens. A chain has parents `(-1, 0, 1, ...)`.
        sampled: every token was drawn by the core through `Context.sample_draft`, in order, so that rejection sampling
            may be used. False: proposals are verified by matching.
    """

    tokens: tuple[int, ...] = field(converter=_ints)
    parents: tuple[int, ...] = field(converter=_ints)
    sampled: bool = False

    @classmethod
    def chain(cls, tokens: Iterable[int], *, sampled: bool = False) -> "Draft":
        """Tokens one after another."""
        ids = tuple(tokens)
        return cls(ids, tuple(range(-1, len(ids) - 1)), sampled)

    @property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(-1, len(self.tokens) - 1))

    def prefix(self, k: int) -> "Draft":
        """The first k nodes: a topological prefix, chosen without looking at tokens."""
        return self if k >= len(self.tokens) else Draft(self.tokens[:k], self.parents[:k], self.sampled)


@frozen
class OnDevice:
    """k drafts that a device speculator left in the runner's row; their tokens are not known on the host."""

    k: int


NO_DRAFT = Draft((), ())


@frozen
class DraftStats:
    """Acceptance so far, for choosing K.

    Attributes:
        steps: verified spans that had drafts.
        drafted, accepted: tokens.
        recent: exponential moving average of accepted tokens per drafted span, 0 before the first.
    """

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    recent: float = 0.0
