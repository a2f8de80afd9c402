"""Scheduling policies: plain, erratic but valid, refusing, and broken."""

import hashlib
from collections.abc import Sequence
from typing import Any

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
    Reject,
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
        self._now = 0.0
        self._steps = 0

    def _roll(self, *parts: object) -> int:
        text = repr((self._seed, self._now, self._steps, *parts)).encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:6], "little")

    def order(self, waiting: Sequence[SequenceView], running: Sequence[SequenceView], now: float) -> Order:
        self._now = now  # every plan rolls anew, so that nobody waits for ever

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
        self._steps += event.kind == "step"


class Refusing(Plain):
    """Refuses every request of tenant `banned` for good."""

    def __init__(self, options: NoOptions, context: Context) -> None:
        super().__init__(options, context)
        self.refused: list[SeqId] = []

    def admit(self, seq: SequenceView, quote: Quote, budget: Budget) -> Admission:
        if seq.request.tenant != "banned":
            return Admit()
        self.refused.append(seq.seq_id)
        return Reject("this tenant is banned", retry_after=2.5)


class Broken:
    """Every decision is invalid, in turn in another way; or raises in mode `raise`; or nobody is ever served in mode
    `starve`. `asked` counts the decisions.
    """

    def __init__(self, options: Seeded, context: Context) -> None:
        self._mode = options.mode
        self.asked = 0

    def _answer(self, *answers: Any) -> Any:
        """The next of the invalid answers."""
        if self._mode == "raise":
            raise RuntimeError("broken policy")
        self.asked += 1
        return answers[self.asked % len(answers)]

    def order(self, waiting: Sequence[SequenceView], running: Sequence[SequenceView], now: float) -> Order:
        if self._mode == "starve":
            return Order((), ())
        first, second = (tuple(view.seq_id for view in views) for views in (waiting, running))
        return self._answer(  # type: ignore[no-any-return]
            Order((10_000,), second),
            Order(first, second + (second or (-1,))),
            Order(first, first or (7,)) if first else Order((3,), ()),
            Order(list(first), second),  # type: ignore[arg-type]
            (first, second),
            None,
        )

    def draft_k(self, seq: SequenceView, stats: DraftStats, decoding: int, max_k: int) -> int:
        return self._answer(max_k + 1, -1, 0.5, True, None, "2")  # type: ignore[no-any-return]

    def admit(self, seq: SequenceView, quote: Quote, budget: Budget) -> Admission:
        return self._answer("yes", None, True, Admit)  # type: ignore[no-any-return]

    def chunk(self, seq: SequenceView, remaining: int, budget: Budget) -> int:
        most = min(remaining, budget.rows)
        return self._answer(-3, most + 1, 10**9, 1.0, True, None, float("nan"))  # type: ignore[no-any-return]

    def victim(self, candidates: Sequence[Candidate], need: int, requester: SequenceView) -> SeqId:
        return self._answer(77_777, requester.seq_id, -2, None, "0", True)  # type: ignore[no-any-return]

    def wait_for_tier(self, seq: SequenceView, waited: float) -> bool:
        return self._answer(1, None, "yes")  # type: ignore[no-any-return]

    def observe(self, event: SchedEvent) -> None:
        raise RuntimeError("broken observer")
