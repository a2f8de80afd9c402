"""Interrupts: Ctrl-C between two steps of the engine instead of inside one."""

import signal
import threading
from types import FrameType, TracebackType


class Interrupts:
    """While entered, the first SIGINT is noted and raised as KeyboardInterrupt by the next `check`, when no step is
    half done; a second one is raised at once. Signals that the caller ignores or handles stay as they are.
    """

    def __init__(self) -> None:
        self._noted = False
        self._installed = False

    def __enter__(self) -> "Interrupts":
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)
            self._installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._installed = False
        if error is None:
            self.check()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted:
            raise KeyboardInterrupt
        self._noted = True

    def check(self) -> None:
        """Raise KeyboardInterrupt if one was noted."""
        if self._noted:
            self._noted = False
            raise KeyboardInterrupt
