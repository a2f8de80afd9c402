"""EngineLoop: the one thread that owns a core, and what crosses to and from it.

any asyncio loop              worker threads                  the engine's thread
----------------              --------------                  -------------------
generate ------------------>  admit: check, tokenise, add -->  step, detokenise, look for stop strings
Mailbox.get  <----------------------------------------------  Mailbox.put
leave, abort ---------------------------------------------->  the next step ends the request
"""

import atexit
import copy
import threading
from typing import Final

from tokloom.api.mailbox import Mailbox, wake
from tokloom.api.requests import prepare
from tokloom.api.session import Session
from tokloom.api.types import GenerateRequest
from tokloom.core.engine import EngineCore
from tokloom.core.events import OutputEvent
from tokloom.core.logs import get_logger
from tokloom.core.numbers import Numbers
from tokloom.sdk import ClosedError, PluginFault, RequestError, Tokenizer, TokloomError

#: every reason to go on wakes an idle engine, so it sleeps as long as it likes; seconds
_IDLE: Final = 3600.0


class EngineLoop:
    """Thread-safe.

    An interpreter that ends while a thread computes crashes inside that thread; therefore a running loop is stopped at
    exit, after its current step.
    """

    def __init__(self, core: EngineCore, tokenizer: Tokenizer | None) -> None:
        self.core = core
        self._tokenizer = tokenizer
        self._session = Session(core, tokenizer)
        self._boxes: dict[str, Mailbox] = {}
        self._lock = threading.Lock()
        self._empty = threading.Condition(self._lock)
        self._refusing = False
        self._ending = False
        self._failure: TokloomError | None = None
        self._numbers = Numbers()
        self._thread = threading.Thread(target=self._run, name="tokloom-engine", daemon=True)
        atexit.register(self.end)
        self._thread.start()

    # -- any thread ------------------------------------------------------------------------------------------------

    def admit(self, request: GenerateRequest, box: Mailbox) -> None:
        """Queue a request whose events go to `box`. Blocks while it tokenises, so it belongs in a worker thread."""
        prepared = prepare(request, self._tokenizer, self.core.adapters)
        request_id = prepared.request_id
        with self._lock:
            self._check_open(request_id)
            box.open = prepared.sampling.n
            self._boxes[request_id] = box
            self._session.begin(request, prepared)
        try:
            self.core.add(prepared)
        except BaseException:
            with self._lock:
                self._forget(request_id)
                self._session.drop(request_id)
            raise
        with self._lock:
            box.request_id = request_id
            left = box.left
        if left:
            self.core.abort(request_id)

    def _check_open(self, request_id: str) -> None:
        if self._failure is not None:
            raise _again(self._failure)
        if self._refusing:
            raise _closed(f"request {request_id!r}")
        if request_id in self._boxes:
            raise RequestError(
                "a request with this id is live", subject=f"request {request_id!r}", remedy="Use a fresh request_id"
            )

    @property
    def failure(self) -> TokloomError | None:
        """Why the engine stopped by itself; None while it works and after `end`."""
        with self._lock:
            return self._failure

    @property
    def numbers(self) -> Numbers:
        """What the core had counted at the end of its last step."""
        return self._numbers

    def leave(self, box: Mailbox) -> None:
        """Nobody reads `box` any more: its request ends unless it has. Idempotent."""
        with self._lock:
            box.left = True
            live = box.open > 0 and self._boxes.get(box.request_id) is box
        if live:
            self.core.abort(box.request_id)

    def end(self, drain: float = 0.0) -> None:
        """Refuse new requests, wait up to `drain` seconds for the live ones, end the rest, close the core. Idempotent.

        Blocks for at least the current step. Mailboxes of requests that were ended get a CapacityError.
        """
        with self._empty:
            self._refusing = True
            self._empty.wait_for(lambda: not self._boxes, drain)
        self._ending = True
        self.core.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # -- the engine's thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        failure: TokloomError | None = None
        try:
            self._numbers = self.core.numbers()
            while not self._ending:
                if not self.core.busy:
                    self.core.wait(_IDLE)
                    continue
                self._step()
        except BaseException as error:
            failure = error if isinstance(error, TokloomError) else _fault(error)
        self._finish(failure)

    def _step(self) -> None:
        sleepers: list[Mailbox] = []
        try:
            for event in self.core.step():
                box = self._deliver(event)
                if box is not None:
                    sleepers.append(box)
            self._numbers = self.core.numbers()
        finally:
            wake(sleepers)

    def _deliver(self, event: OutputEvent) -> Mailbox | None:
        """Put an event into its mailbox; returns the mailbox if its reader must be woken."""
        translated = self._session.translate(event)
        if translated is None:
            return None
        with self._lock:
            box = self._boxes.get(translated.request_id)
            if box is None:
                return None
            if translated.finish_reason is not None:
                box.open -= 1
                if not box.open:
                    self._forget(translated.request_id)
        return box if box.put(translated) else None

    def _forget(self, request_id: str) -> None:
        self._boxes.pop(request_id, None)
        if not self._boxes:
            self._empty.notify_all()

    def _finish(self, failure: TokloomError | None) -> None:
        """Tell everyone who still waits, and free the core's memory."""
        with self._lock:
            self._failure = failure
            self._refusing = True
            boxes = list(self._boxes.values())
            self._boxes.clear()
            self._empty.notify_all()
        for box in boxes:
            box.fail(_closed("") if failure is None else _again(failure))
        try:
            self.core.close()
        except Exception as error:
            get_logger("api").error("closing failed", error=str(error), exc_info=error)
        atexit.unregister(self.end)


def _closed(subject: str) -> ClosedError:
    return ClosedError("the engine is closed", subject=subject, remedy="Send the request to a running engine")


def _again(failure: TokloomError) -> TokloomError:
    """A copy to raise: each raise of one exception would lengthen its traceback, and many tasks may raise this one."""
    fresh = copy.copy(failure)
    fresh.__cause__ = failure
    return fresh


def _fault(error: BaseException) -> PluginFault:
    fault = PluginFault(
        f"the engine stopped: {type(error).__name__}: {error}", remedy="Start a new engine; this one is broken"
    )
    fault.__cause__ = error
    return fault
