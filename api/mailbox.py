"""Mailbox: events of one request on their way from the engine's thread to one asyncio loop."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Iterable
from typing import Final

from tokloom.api.gather import join
from tokloom.api.types import Event
from tokloom.sdk import TokloomError

#: events of one sequence that wait before they are joined into one
_JOIN_AFTER: Final = 64


class Mailbox:
    """A slow reader costs memory for the tokens it has not read, at most those of its sequences; nobody waits for it.
    What is pending of one sequence is read as one event.

    Attributes:
        request_id: of the request, once the core has it.
        open: sequences whose last event was not put yet.
        left: nobody reads any more.

    The three belong to whoever holds the lock of the loop that delivers here.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.request_id = ""
        self.open = 0
        self.left = False
        self.loop = loop
        self._ready = asyncio.Event()
        self._lock = threading.Lock()
        self._pending: dict[int, list[Event]] = {}
        self._order: deque[int] = deque()
        self._failure: TokloomError | None = None

    def put(self, event: Event) -> bool:
        """From any thread. Returns whether the reader may sleep: then `wake` must follow."""
        with self._lock:
            sleeps = not self._order
            waiting = self._pending.get(event.index)
            if waiting is None:
                self._pending[event.index] = [event]
                self._order.append(event.index)
            else:
                waiting.append(event)
                if len(waiting) > _JOIN_AFTER:
                    waiting[:] = [join(waiting)]
        return sleeps

    def fail(self, error: TokloomError) -> None:
        """Nothing more will come. From any thread; wakes the reader."""
        with self._lock:
            self._failure = error
        wake([self])

    def ring(self) -> None:
        """On the reader's loop."""
        self._ready.set()

    async def get(self) -> Event:
        """The next event. Raises the failure once everything before it was read."""
        while True:
            with self._lock:
                if self._order:
                    return join(self._pending.pop(self._order.popleft()))
                if self._failure is not None:
                    raise self._failure
                self._ready.clear()
            await self._ready.wait()


def wake(boxes: Iterable[Mailbox]) -> None:
    """Wake the readers of mailboxes, with one call into each of their loops. From any thread."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Mailbox]] = {}
    for box in boxes:
        by_loop.setdefault(box.loop, []).append(box)
    for loop, sleepers in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(_ring, sleepers)


def _ring(boxes: Iterable[Mailbox]) -> None:
    for box in boxes:
        box.ring()
