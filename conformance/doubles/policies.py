"""Scheduling policies: plain, erratic but valid, and broken."""

import hashlib
from collections.abc import Sequence

from tokloom.conformance.doubles.offers import Seeded
from tokloom.sdk import (
    Admission,
    Admit,
    Budget,
    Candidate,
    Context,
    Defer,
    DraftStats,
    NoOptions,
    Order,
    Quote,
    SchedEvent,
    SeqId,
    SequenceView,
    fcfs,
)


class Plain:
    """First come, first served."""

    order = staticmethod(fcfs.order)
    draft_k = staticmethod(fcfs.draft_k)
    admit = staticmethod(fcfs.admit)
    chunk = staticmethod(fcfs.chunk)
    victim = staticmethod(fcfs.victim)
    wait_for_tier = staticmethod(fcfs.wait_for_tier)

    def __init__(self, options: NoOptions, context: Context) -> None:
        self.events: list[SchedEvent] = []

    def observe(self, event: SchedEvent) -> None:
        self.events.append(event)


class Chaos:
    """Valid decisions that follow a hash of what is seen."""

    def __init__(self, options: Seeded, context: Context) -> None:
        self._seed = options.seed
        self._plans = 0

    def _roll(self, *parts: object) -> int:
        text = repr((self._seed, self._plans, *parts)).encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:6], "little")

    def order(self, waiting: Sequence[SequenceView], running: Sequence[SequenceView], now: float) -> Order:
        self._plans += 1  # every plan rolls anew, so that nobody waits for ever

        def shuffled(views: Sequence[SequenceView], keep: int) -> tuple[SeqId, ...]:
            ids = sorted((v.seq_id for v in views), key=lambda i: self._roll("order", i))
            return tuple(i for i in ids if self._roll("serve", i) % 8 < keep)

        return Order(shuffled(waiting, 6), shuffled(running, 7))

    def draft_k(self, seq: SequenceView, stats: DraftStats, decoding: int, max_k: int) -> int:
        return self._roll("k", seq.seq_id) % (max_k + 1)

    def admit(self, seq: SequenceView, quote: Quote, budget: Budget) -> Admission:
        return Defer() if self._roll("admit", seq.seq_id) % 4 == 0 else Admit()

    def chunk(self, seq: SequenceView, remaining: int, budget: Budget) -> int:
        return self._roll("chunk", seq.seq_id) % (min(remaining, budget.rows) + 1)

    def victim(self, candidates: Sequence[Candidate], need: int, requester: SequenceView) -> SeqId:
        able = [c.view.seq_id for c in candidates if c.reclaimable > 0]
        return able[self._roll("victim", requester.seq_id) % len(able)] if able else -1

    def wait_for_tier(self, seq: SequenceView, waited: float) -> bool:
        return waited < 0.01

    def observe(self, event: SchedEvent) -> None:
        """Remembers nothing."""


class Broken:
    """Every decision is invalid, or raises in mode `raise`, or nobody is ever served in mode `starve`."""

    def __init__(self, options: Seeded, context: Context) -> None:
        self._mode = options.mode

    def _raise(self) -> None:
        if self._mode == "raise":
            raise RuntimeError("broken policy")

    def order(self, waiting: Sequence[SequenceView], running: Sequence[SequenceView], now: float) -> Order:
        self._raise()
        if self._mode == "starve":
            return Order((), ())
        return Order((10_000,), tuple(v.seq_id for v in running) * 2)

    def draft_k(self, seq: SequenceView, stats: DraftStats, decoding: int, max_k: int) -> int:
        self._raise()
        return max_k + 1

    def admit(self, seq: SequenceView, quote: Quote, budget: Budget) -> Admission:
        self._raise()
        return "yes"  # type: ignore[return-value]

    def chunk(self, seq: SequenceView, remaining: int, budget: Budget) -> int:
        self._raise()
        return -3

    def victim(self, candidates: Sequence[Candidate], need: int, requester: SequenceView) -> SeqId:
        self._raise()
        return 77_777

    def wait_for_tier(self, seq: SequenceView, waited: float) -> bool:
        self._raise()
        return 1  # type: ignore[return-value]

    def observe(self, event: SchedEvent) -> None:
        raise RuntimeError("broken observer")
