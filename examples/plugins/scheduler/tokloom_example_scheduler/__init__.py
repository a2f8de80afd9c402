"""Shortest prompt first, so that short questions do not wait behind long documents."""

from collections.abc import Sequence

from tokloom.sdk import (
    Context,
    NoOptions,
    Offer,
    Order,
    SchedEvent,
    SchedulerCaps,
    SchedulerPolicy,
    SequenceView,
    fcfs,
    hookimpl,
)


class ShortestFirst:
    """Implements `tokloom.sdk.SchedulerPolicy`: its own order, everything else first come, first served."""

    draft_k = staticmethod(fcfs.draft_k)
    admit = staticmethod(fcfs.admit)
    chunk = staticmethod(fcfs.chunk)
    victim = staticmethod(fcfs.victim)
    wait_for_tier = staticmethod(fcfs.wait_for_tier)

    def order(self, waiting: Sequence[SequenceView], running: Sequence[SequenceView], now: float) -> Order:
        # a sequence that has waited a minute goes first whatever its length: nobody starves
        def rank(view: SequenceView) -> tuple[bool, int, float, int]:
            patient = now - view.arrival < 60
            return (patient, len(view.tokens) if patient else 0, view.arrival, view.seq_id)

        shortest = tuple(view.seq_id for view in sorted(waiting, key=rank))
        return Order(shortest, fcfs.order((), running, now).running)

    def observe(self, event: SchedEvent) -> None:
        pass


@hookimpl
def tokloom_scheduler() -> list[Offer[NoOptions, SchedulerPolicy]]:
    def make(options: NoOptions, context: Context) -> SchedulerPolicy:
        return ShortestFirst()

    return [
        Offer(
            kind="scheduler",
            name="shortest",
            contract="0.1",
            capabilities=SchedulerCaps(head_of_line="skip"),
            factory=make,
            summary="shortest prompt first, with ageing",
        )
    ]
