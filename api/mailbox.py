"""Mailbox: events of one request on their way from the engine's thread to one asyncio loop."""

import asyncio
import threading
from collections import deque
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
        self._loop = loop
        self._ready = asyncio.Event()
        self._lock = threading.Lock()
        self._pending: dict[int, list[Event]] = {}
        self._order: deque[int] = deque()
        self._failure: TokloomError | None = None

    def put(self, event: Event) -> None:
        """From any thread."""
        with self._lock:
            waiting = self._pending.get(event.index)
            if waiting is None:
                self._pending[event.index] = [event]
                self._order.append(event.index)
            else:
                waiting.append(event)
                if len(waiting) > _JOIN_AFTER:
                    waiting[:] = [join(waiting)]
        self._signal()

    def fail(self, error: TokloomError) -> None:
        """Nothing more will come. From any thread."""
        with self._lock:
            self._failure = error
        self._signal()

    def _signal(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._ready.set)
        except RuntimeError:  # the reader's loop is closed: nobody waits any more
            return

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
