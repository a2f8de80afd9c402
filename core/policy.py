"""GuardedPolicy: a scheduling policy whose every answer is checked; first come, first served where one is wrong."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from tokloom.core.composition import Part
from tokloom.core.faults import Faults
from tokloom.sdk import (
    Admission,
    Admit,
    Budget,
    Candidate,
    Defer,
    DraftStats,
    Order,
    Quote,
    Reject,
    SchedEvent,
    SchedulerCaps,
    SchedulerPolicy,
    SeqId,
    SequenceView,
    fcfs,
)

T = TypeVar("T")


class GuardedPolicy:
    """Same methods as `SchedulerPolicy`. With `overruled` set, the plugin is not asked at all."""

    def __init__(self, part: Part[SchedulerPolicy, SchedulerCaps], faults: Faults) -> None:
        self._part = part
        self._plugin = part.plugin
        self._faults = faults
        self.overruled = False
        self.strict = part.caps.head_of_line == "strict"

    def _decide(self, method: str, ask: Callable[[], T], fine: Callable[[T], bool], fallback: Callable[[], T]) -> T:
        if self.overruled:
            return fallback()
        try:
            answer = ask()
            if fine(answer):
                return answer
            self._faults.record(self._part.id, method, f"invalid answer {answer!r}")
        except Exception as error:
            self._faults.record(self._part.id, method, error)
        return fallback()

    def order(self, waiting: Sequence[SequenceView], running: Sequence[SequenceView], now: float) -> Order:
        return self._decide(
            "order",
            lambda: self._plugin.order(waiting, running, now),
            lambda order: (
                isinstance(order, Order) and _drawn_from(order.waiting, waiting) and _drawn_from(order.running, running)
            ),
            lambda: fcfs.order(waiting, running, now),
        )

    def draft_k(self, seq: SequenceView, stats: DraftStats, decoding: int, max_k: int) -> int:
        return self._decide(
            "draft_k",
            lambda: self._plugin.draft_k(seq, stats, decoding, max_k),
            lambda k: _whole(k) and 0 <= k <= max_k,
            lambda: fcfs.draft_k(seq, stats, decoding, max_k),
        )

    def admit(self, seq: SequenceView, quote: Quote, budget: Budget) -> Admission:
        return self._decide(
            "admit",
            lambda: self._plugin.admit(seq, quote, budget),
            lambda answer: isinstance(answer, (Admit, Defer, Reject)),
            lambda: fcfs.admit(seq, quote, budget),
        )

    def chunk(self, seq: SequenceView, remaining: int, budget: Budget) -> int:
        return self._decide(
            "chunk",
            lambda: self._plugin.chunk(seq, remaining, budget),
            lambda rows: _whole(rows) and 0 <= rows <= min(remaining, budget.rows),
            lambda: fcfs.chunk(seq, remaining, budget),
        )

    def victim(self, candidates: Sequence[Candidate], need: int, requester: SequenceView) -> SeqId:
        allowed = {candidate.view.seq_id for candidate in candidates} | {-1}
        return self._decide(
            "victim",
            lambda: self._plugin.victim(candidates, need, requester),
            lambda seq_id: _whole(seq_id) and seq_id in allowed,
            lambda: fcfs.victim(candidates, need, requester),
        )

    def wait_for_tier(self, seq: SequenceView, waited: float) -> bool:
        return self._decide(
            "wait_for_tier",
            lambda: self._plugin.wait_for_tier(seq, waited),
            lambda answer: isinstance(answer, bool),
            lambda: fcfs.wait_for_tier(seq, waited),
        )

    def observe(self, event: SchedEvent) -> None:
        try:
            self._plugin.observe(event)
        except Exception as error:
            self._faults.record(self._part.id, "observe", error)

    def stalled(self) -> None:
        """Note that the policy served nobody for too long."""
        self._faults.record(self._part.id, "order/admit/chunk", "nobody was served although work and room were there")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _drawn_from(ids: Sequence[SeqId], views: Sequence[SequenceView]) -> bool:
    if ids == ():
        return True
    given = {view.seq_id for view in views}
    return isinstance(ids, tuple) and len(set(ids)) == len(ids) and given.issuperset(ids)
