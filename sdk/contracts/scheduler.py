"""SchedulerPolicy: decides; the core keeps state, budgets and fences and validates every decision."""

from collections.abc import Sequence
from typing import Literal, Protocol

from attrs import frozen

from tokloom.sdk.values.drafts import DraftStats
from tokloom.sdk.values.kv import Quote
from tokloom.sdk.values.requests import SeqId, SequenceView
from tokloom.sdk.values.stats import SchedEvent


@frozen(kw_only=True)
class SchedulerCaps:
    """What a policy promises.

    Attributes:
        head_of_line: `strict`: a waiting sequence that does not fit stops those behind it; `skip`: they may pass.
    """

    head_of_line: Literal["strict", "skip"] = "strict"


@frozen(kw_only=True)
class Budget:
    """What is left of this step.

    Attributes:
        rows: target rows still to give, of `max_rows`; drafts count.
        sequences: sequences that may still start running.
        decoding: sequences in decode in this step.
        now: seconds on the engine's clock.
    """

    rows: int
    max_rows: int
    sequences: int
    decoding: int
    now: float


@frozen
class Order:
    """Sequence ids, most urgent first. Ids that are left out are not served in this step."""

    waiting: tuple[SeqId, ...]
    running: tuple[SeqId, ...]


@frozen
class Admit:
    """Start the sequence now."""


@frozen
class Defer:
    """Keep it waiting in this step."""


@frozen
class Reject:
    """Refuse it for good. `retry_after` in seconds; 0 says nothing."""

    reason: str
    retry_after: float = 0.0


Admission = Admit | Defer | Reject


@frozen
class Candidate:
    """A settled sequence that could be preempted, and the pages that would come free at once."""

    view: SequenceView
    reclaimable: int


class SchedulerPolicy(Protocol):
    """Pure decisions on frozen views: equal views give equal decisions; time comes from the arguments. An exception or
    an invalid answer is counted as a fault and the core decides first-come-first-served for that decision.
    """

    def order(self, waiting: Sequence[SequenceView], running: Sequence[SequenceView], now: float) -> Order:
        """Called first in every step."""
        ...

    def draft_k(self, seq: SequenceView, stats: DraftStats, decoding: int, max_k: int) -> int:
        """Tokens to draft for a decoding sequence, 0 to `max_k`. Asked before any proposal is made."""
        ...

    def admit(self, seq: SequenceView, quote: Quote, budget: Budget) -> Admission:
        """Whether to start a waiting sequence. `quote` is for as many rows as the step has left, or for the pages of a
        load from a tier. A sequence that can never fit is refused by the core before this is asked.
        """
        ...

    def chunk(self, seq: SequenceView, remaining: int, budget: Budget) -> int:
        """Prompt rows to compute in this step, 0 to `min(remaining, budget.rows)`; 0 skips the sequence. The core may
        shorten it to what pages, or the chunk grid of a `stepwise` codec, allow.
        """
        ...

    def victim(self, candidates: Sequence[Candidate], need: int, requester: SequenceView) -> SeqId:
        """Whom to preempt so that `requester` gets `need` pages: the id of a candidate, or -1 for nobody."""
        ...

    def wait_for_tier(self, seq: SequenceView, waited: float) -> bool:
        """A tier answered Pending, `waited` seconds since the first time: wait on (True) or start without it. The core
        bounds the wait.
        """
        ...

    def observe(self, event: SchedEvent) -> None:
        """Something happened. The only method that may change the policy's state."""
        ...
