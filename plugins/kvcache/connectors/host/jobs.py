"""JobQueue: transfers that wait, the one that runs, and the ends nobody has collected yet."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Literal

from attrs import define

from tokloom.sdk import Done, Job


@define(eq=False)
class Work:
    """A job on its way. `cancelled` is read by the worker between blocks."""

    job: Job
    kind: Literal["load", "store"]
    cancelled: bool = False


class JobQueue:
    """Every job that is submitted ends with one Done, and `wake` is called after it can be collected.

    Loads go before stores: somebody waits for them. At most `max_jobs` wait; a load takes the place of the youngest
    waiting store.
    """

    def __init__(self, max_jobs: int, wake: Callable[[], None]) -> None:
        self._max_jobs = max_jobs
        self._wake = wake
        self._changed = threading.Condition()
        self._loads: OrderedDict[int, Work] = OrderedDict()
        self._stores: OrderedDict[int, Work] = OrderedDict()
        self._running: Work | None = None
        self._ended: list[Done] = []
        self._closed = False
        self.dropped = 0

    def submit(self, work: Work) -> None:
        """Queue a job, or end it at once where there is no room."""
        with self._changed:
            refused = self._make_room(work)
            if refused is not work:
                queue = self._loads if work.kind == "load" else self._stores
                queue[work.job.job_id] = work
                self._changed.notify()
            if refused is not None:
                self.dropped += 1
                self._end_early(refused)
        if refused is not None:
            self._wake()

    def _make_room(self, work: Work) -> Work | None:
        """Whom to refuse so that at most `max_jobs` wait."""
        if self._closed:
            return work
        if len(self._loads) + len(self._stores) < self._max_jobs:
            return None
        if work.kind == "load" and self._stores:
            return self._stores.popitem()[1]
        return work

    def take(self) -> Work | None:
        """The next job, waiting for one. None: the queue is closed. For the worker thread."""
        with self._changed:
            while not (self._closed or self._loads or self._stores):
                self._changed.wait()
            if self._closed:
                return None
            self._running = (self._loads or self._stores).popitem(last=False)[1]
            return self._running

    def finish(self, done: Done) -> None:
        """The running job is over. For the worker thread."""
        with self._changed:
            self._running = None
            self._ended.append(done)
        self._wake()

    def decline(self, job: Job) -> None:
        """End a job without starting it."""
        with self._changed:
            self._ended.append(Done(job.job_id, "cancelled"))
        self._wake()

    def cancel(self, job_id: int) -> None:
        """End a waiting job now, ask the running one to stop, ignore any other."""
        with self._changed:
            if self._running is not None and self._running.job.job_id == job_id:
                self._running.cancelled = True
                return
            work = self._loads.pop(job_id, None) or self._stores.pop(job_id, None)
            if work is None:
                return
            self._end_early(work)
        self._wake()

    def poll(self) -> list[Done]:
        """Ends since the last call."""
        with self._changed:
            ended, self._ended = self._ended, []
            return ended

    def close(self) -> None:
        """End everything that waits, ask the running job to stop, let the worker go."""
        with self._changed:
            self._closed = True
            for work in (*self._loads.values(), *self._stores.values()):
                self._end_early(work)
            self._loads.clear()
            self._stores.clear()
            if self._running is not None:
                self._running.cancelled = True
            self._changed.notify_all()
        self._wake()

    def _end_early(self, work: Work) -> None:
        self._ended.append(Done(work.job.job_id, "cancelled"))
