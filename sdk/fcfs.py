"""First come, first served: one pure function per scheduling decision. The core's fallback, and a base to build on."""

from collections.abc import Sequence

from tokloom.sdk.contracts.scheduler import Admission, Admit, Budget, Candidate, Order
from tokloom.sdk.values.drafts import DraftStats
from tokloom.sdk.values.kv import Quote
from tokloom.sdk.values.requests import SeqId, SequenceView


def order(waiting: Sequence[SequenceView], running: Sequence[SequenceView], now: float) -> Order:
    """Higher priority first, then earlier arrival, then lower id. A preempted sequence keeps its arrival."""
    return Order(
        tuple(v.seq_id for v in sorted(waiting, key=_rank)), tuple(v.seq_id for v in sorted(running, key=_rank))
    )


def draft_k(seq: SequenceView, stats: DraftStats, decoding: int, max_k: int) -> int:
    """As many as allowed; the core's controller lowers it where drafting does not pay."""
    return max_k


def admit(seq: SequenceView, quote: Quote, budget: Budget) -> Admission:
    """Always. The core has checked budget and pages."""
    return Admit()


def chunk(seq: SequenceView, remaining: int, budget: Budget) -> int:
    """All that the budget allows."""
    return min(remaining, budget.rows)


def victim(candidates: Sequence[Candidate], need: int, requester: SequenceView) -> SeqId:
    """The last in order among those that rank after the requester and free something."""
    later = [c.view for c in candidates if c.reclaimable > 0 and _rank(c.view) > _rank(requester)]
    return max(later, key=_rank).seq_id if later else -1


def wait_for_tier(seq: SequenceView, waited: float) -> bool:
    """Up to 50 milliseconds."""
    return waited < 0.05


def _rank(view: SequenceView) -> tuple[int, float, int]:
    return (-view.request.priority, view.arrival, view.seq_id)
