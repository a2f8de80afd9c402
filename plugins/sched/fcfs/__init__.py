"""Scheduler `fcfs`: first come, first served. It exposes the decisions of `tokloom.sdk.fcfs` and adds nothing."""

from collections.abc import Sequence

from tokloom.plugins.sched.fcfs.policy import FirstComeFirstServed
from tokloom.sdk import Context, NoOptions, Offer, SchedulerCaps, SchedulerPolicy, hookimpl


def _make(options: NoOptions, context: Context) -> SchedulerPolicy:
    return FirstComeFirstServed()


@hookimpl
def tokloom_scheduler() -> "Sequence[Offer[NoOptions, SchedulerPolicy]]":
    """The offer."""
    return [
        Offer(
            kind="scheduler",
            name="fcfs",
            capabilities=SchedulerCaps(head_of_line="strict"),
            factory=_make,
            contract="0.1",
            summary="priority, then arrival; nobody overtakes a request that waits for pages",
        )
    ]
