"""Exporter: a bounded queue, and the thread that sends what is in it.

engine's thread                     exporter's thread
---------------                     -----------------
put: append, or count a drop  --->  wait for `interval` or a full batch -> encode -> send, again where it may -> count
close: wait, bounded          --->  the same without waiting, until the time is over
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final, Generic, TypeVar

from attrs import frozen

from tokloom.plugins.observe.otel.sending import Answer, Sender, Verdict
from tokloom.sdk import Logger

T = TypeVar("T")

#: first pause before a batch is sent again, seconds; it doubles
_PAUSE: Final = 0.25
#: seconds between two log events about drops
_QUIET: Final = 60.0


@frozen(kw_only=True)
class Counts:
    """Spans since the start; `put` is the sum of the others and of those that wait.

    Attributes:
        sent: taken by the collector.
        overflowed: dropped because the queue was full, or because the observer was closed.
        failed: dropped because the collector did not take them in time, or refused them.
    """

    put: int = 0
    sent: int = 0
    overflowed: int = 0
    failed: int = 0


class Exporter(Generic[T]):
    """`put` belongs to the engine's thread, `counts` to any.

    Args:
        encode: items to a payload; called on the exporter's thread, as is `sender`.
        interval, batch, limit, timeout: as in `OtelOptions`; `limit` is its `max_queue`.
    """

    def __init__(
        self,
        encode: Callable[[Sequence[T]], bytes],
        sender: Sender,
        log: Logger,
        *,
        interval: float,
        batch: int,
        limit: int,
        timeout: float,
    ) -> None:
        self._encode = encode
        self._sender = sender
        self._log = log
        self._interval, self._batch, self._limit, self._timeout = interval, min(batch, limit), limit, timeout
        self._queue: deque[T] = deque()
        self._changed = threading.Condition()
        self._deadline: float | None = None  # set by close
        self._put = self._sent = self._overflowed = self._failed = 0
        self._told_at = -_QUIET
        self._thread = threading.Thread(target=self._run, name="tokloom-otel", daemon=True)
        self._thread.start()

    def put(self, item: T) -> None:
        """Queue an item, or count it as dropped. Waits for nobody: the lock is never held while anything is sent."""
        with self._changed:
            self._put += 1
            if self._deadline is not None or len(self._queue) >= self._limit:
                self._overflowed += 1
                return
            self._queue.append(item)
            if len(self._queue) in (1, self._batch):
                self._changed.notify()

    @property
    def counts(self) -> Counts:
        with self._changed:
            return Counts(put=self._put, sent=self._sent, overflowed=self._overflowed, failed=self._failed)

    def close(self, timeout: float) -> None:
        """Send what waits for at most `timeout` seconds; what is left then is dropped. Idempotent."""
        with self._changed:
            if self._deadline is not None:
                return
            self._deadline = monotonic() + timeout
            self._changed.notify()
        self._thread.join(timeout)
        self._sender.close()
        self._thread.join(0.2)  # what it was sending has just been ended
        with self._changed:
            self._overflowed += len(self._queue)
            self._queue.clear()
        self._tell("", 0.0)

    # -- the exporter's thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while items := self._take():
            try:
                payload = self._encode(items)
                answer = self._deliver(payload)
            except Exception as error:  # a span that cannot be written must not end all others
                answer = Answer(Verdict.REFUSED, f"{type(error).__name__}: {error}")
            refused = min(answer.refused, len(items)) if answer.verdict is Verdict.TAKEN else len(items)
            with self._changed:
                self._sent += len(items) - refused
                self._failed += refused
            self._tell(answer.reason, _QUIET)

    def _take(self) -> list[T]:
        """The next batch; empty when there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._deadline is not None)
            self._changed.wait_for(self._ripe, self._interval)
            if self._deadline is not None and monotonic() >= self._deadline:
                return []
            return [self._queue.popleft() for _ in range(min(len(self._queue), self._batch))]

    def _ripe(self) -> bool:
        return len(self._queue) >= self._batch or self._deadline is not None

    def _deliver(self, payload: bytes) -> Answer:
        """Send until it is taken or refused, or time is over."""
        until, pause = monotonic() + self._timeout, _PAUSE
        while True:
            left = self._left(until)
            if left <= 0:
                return Answer(Verdict.REFUSED, "no time left")
            answer = self._sender.send(payload, left)
            if answer.verdict is not Verdict.AGAIN:
                return answer
            wait = pause if answer.after < 0 else answer.after
            if wait >= self._left(until):
                return answer
            pause *= 2
            self._sleep(wait)

    def _left(self, until: float) -> float:
        return min(until, self._deadline or until) - monotonic()

    def _sleep(self, seconds: float) -> None:
        """Less once the observer closes: then there is one more try, at once."""
        with self._changed:
            closing = self._deadline is not None
            self._changed.wait_for(lambda: not closing and self._deadline is not None, seconds)

    def _tell(self, reason: str, quiet: float) -> None:
        """Log what was dropped: the first time, then at most once in `quiet` seconds."""
        counts, now = self.counts, monotonic()
        dropped = counts.overflowed + counts.failed
        if not dropped or (quiet and now - self._told_at < quiet):
            return
        self._told_at = now
        self._log.warning(
            "spans_dropped", overflowed=counts.overflowed, failed=counts.failed, sent=counts.sent, reason=reason
        )
