"""EngineCore: one step loop over sequences, token ids in and out."""

from collections.abc import Callable

from tokloom.core.composition import Composition
from tokloom.core.events import OutputEvent
from tokloom.sdk import Request


def _no_progress(done: int, total: int, what: str) -> None:
    """Reports nothing."""


class EngineCore:
    """One engine. `add` and `abort` may be called from any thread; everything else belongs to one loop thread.

    Args:
        composition: from `tokloom.core.compose.compose`.
        progress: told how far weight loading is.
    """

    def __init__(self, composition: Composition, *, progress: Callable[[int, int, str], None] = _no_progress) -> None:
        raise NotImplementedError

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestError if it is invalid, CapacityError if the queue is full or the request can
        never fit; nothing is kept in either case.
        """
        raise NotImplementedError

    def abort(self, request_id: str) -> bool:
        """Ask for the end of all sequences of a request; False if it is not live. Their last events say `abort`."""
        raise NotImplementedError

    def stop(self, request_id: str, child: int) -> None:
        """End one sequence as if it had met a stop id: for callers that look for stop strings. Loop thread only.

        The sequence's last event, with finish reason `stop`, comes with the next `step`.
        """
        raise NotImplementedError

    def step(self) -> list[OutputEvent]:
        """Do one step of work; may return nothing while a tier is loading."""
        raise NotImplementedError

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do: live sequences, launches in flight, transfers, pending operations."""
        raise NotImplementedError

    def wait(self, timeout: float) -> None:
        """Sleep until `add`, `abort` or a plugin wakes the engine, at most `timeout` seconds."""
        raise NotImplementedError

    def close(self) -> None:
        """End every sequence (events are dropped), close plugins, free memory. Idempotent."""
        raise NotImplementedError
