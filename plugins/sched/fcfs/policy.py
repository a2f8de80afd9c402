"""FirstComeFirstServed: the pure functions of `tokloom.sdk.fcfs` as a SchedulerPolicy."""

from collections.abc import Sequence

from tokloom.sdk import (
    Admission,
    Budget,
    Candidate,
    DraftStats,
    Order,
    Quote,
    SchedEvent,
    SeqId,
    SequenceView,
    fcfs,
)


class FirstComeFirstServed:
    """Higher priority first, then earlier arrival, then lower id. Stateless, so that every decision is replayable."""

    def order(self, waiting: Sequence[SequenceView], running: Sequence[SequenceView], now: float) -> Order:
        return fcfs.order(waiting, running, now)

    def draft_k(self, seq: SequenceView, stats: DraftStats, decoding: int, max_k: int) -> int:
        return fcfs.draft_k(seq, stats, decoding, max_k)

    def admit(self, seq: SequenceView, quote: Quote, budget: Budget) -> Admission:
        return fcfs.admit(seq, quote, budget)

    def chunk(self, seq: SequenceView, remaining: int, budget: Budget) -> int:
        return fcfs.chunk(seq, remaining, budget)

    def victim(self, candidates: Sequence[Candidate], need: int, requester: SequenceView) -> SeqId:
        return fcfs.victim(candidates, need, requester)

    def wait_for_tier(self, seq: SequenceView, waited: float) -> bool:
        return fcfs.wait_for_tier(seq, waited)

    def observe(self, event: SchedEvent) -> None:
        """Learns nothing."""
