"""A tier with a thread of its own, which moves the bytes while the loop goes on and wakes it at the end of each job."""

import queue
import threading
from collections.abc import Sequence

from tokloom.conformance.doubles.connectors import Slow
from tokloom.conformance.doubles.offers import Seeded
from tokloom.sdk import Context, Done, Job


class Threaded(Slow):
    """As `Slow`, but jobs run on one worker thread in order. `threads` are the idents of threads that moved pages."""

    def __init__(self, options: Seeded, context: Context) -> None:
        super().__init__(options, context)
        self._inbox: queue.SimpleQueue[tuple[Job, bool] | None] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self._cancelled: set[int] = set()
        self._thread: threading.Thread | None = None
        self.threads: set[int] = set()

    def _start(self, job: Job, load: bool) -> None:
        self._raise("job")
        self.started += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="tokloom-double", daemon=True)
            self._thread.start()
        self._inbox.put((job, load))

    def _work(self) -> None:
        while (entry := self._inbox.get()) is not None:
            job, load = entry
            cancelled = self.closed or job.job_id in self._cancelled
            self.threads.add(threading.get_ident())
            self._outbox.put(Done(job.job_id, "cancelled") if cancelled else self._finish(job, load))
            self._context.wake()

    def poll(self) -> Sequence[Done]:
        done = []
        while not self._outbox.empty():
            done.append(self._outbox.get())
        self.ended += len(done)
        self._cancelled.difference_update(end.job_id for end in done)
        return done

    def cancel(self, job_id: int) -> None:
        self._cancelled.add(job_id)

    def close(self) -> None:
        self.closed = True
        if self._thread is not None:
            self._inbox.put(None)
            self._thread.join()
            self._thread = None
