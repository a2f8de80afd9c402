"""AsyncEngine: the embedding API for asyncio. One thread owns the core; events cross to the caller's loop."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import attrs

from tokloom.api.loading import Progress, start
from tokloom.api.profiles import read_profile
from tokloom.api.requests import prepare
from tokloom.api.session import Session
from tokloom.api.types import Event, GenerateRequest
from tokloom.core.catalog import Catalog
from tokloom.core.engine import EngineCore
from tokloom.sdk import CapacityError, PluginFault, Tokenizer, TokloomError

#: how long an idle loop thread sleeps between checks that it should end, seconds
_IDLE = 1.0


class _Mailbox:
    """Events of one request on their way to one event loop. A slow reader costs one pending event per sequence: new
    events of a sequence are joined to its pending one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ready = asyncio.Event()
        self._lock = threading.Lock()
        self._pending: dict[int, Event] = {}
        self._order: deque[int] = deque()
        self._failure: TokloomError | None = None

    def put(self, event: Event) -> None:
        """From the loop thread of the engine."""
        with self._lock:
            waiting = self._pending.get(event.index)
            if waiting is None:
                self._order.append(event.index)
            self._pending[event.index] = event if waiting is None else _join(waiting, event)
        self._signal()

    def fail(self, error: TokloomError) -> None:
        """Nothing more will come."""
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
                    return self._pending.pop(self._order.popleft())
                if self._failure is not None:
                    raise self._failure
                self._ready.clear()
            await self._ready.wait()


def _join(first: Event, second: Event) -> Event:
    return attrs.evolve(
        second,
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        logprobs=first.logprobs + second.logprobs,
        prompt_logprobs=first.prompt_logprobs or second.prompt_logprobs,
        error=first.error or second.error,
    )


class AsyncEngine:
    """One engine for any number of concurrent requests, from any number of event loops.

    Prompts are tokenised in worker threads and text is put together in the engine's thread, so that the caller's loop
    only passes events on. Nothing is printed, no logging is configured, no signal is handled.
    """

    def __init__(self, core: EngineCore, tokenizer: Tokenizer | None) -> None:
        self.core = core
        self.tokenizer = tokenizer
        self._session = Session(core, tokenizer)
        self._boxes: dict[str, _Mailbox] = {}
        self._lock = threading.Lock()
        self._ending = False
        self._failure: TokloomError | None = None
        self._thread = threading.Thread(target=self._run, name="tokloom-engine", daemon=True)
        self._thread.start()

    @classmethod
    async def from_profile(
        cls,
        profile: str | Path | Mapping[str, Any] = "builtin:cpu",
        *,
        model: str | Path | None = None,
        sets: Sequence[str] = (),
        catalog: Catalog | None = None,
        progress: Progress | None = None,
        **overrides: Any,
    ) -> "AsyncEngine":
        """Compose a profile and load its model in a worker thread. Arguments as of `Engine.from_profile`."""
        loaded = read_profile(profile, model=model, sets=sets, overrides=overrides)
        core = await asyncio.to_thread(start, loaded, catalog, progress)
        return cls(core, core.composition.model.tokenizer)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        """Events of a request until all of its sequences have ended.

        Closing the iterator, breaking out of it with `aclose`, or cancelling the task that reads it cancels the
        request; its pages return to the pool. Raises RequestError or CapacityError before the first event if the
        request is refused, and a sequence's own error after its last event.
        """
        prepared = await asyncio.to_thread(prepare, request, self.tokenizer)
        box = _Mailbox(asyncio.get_running_loop())
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._ending:
                raise CapacityError("the engine is closed", subject=f"request {prepared.request_id!r}")
            if prepared.request_id in self._boxes:
                self.core.add(prepared)  # raises: the id is live
            self._boxes[prepared.request_id] = box
            self._session.begin(request, prepared)
            try:
                self.core.add(prepared)
            except TokloomError:
                del self._boxes[prepared.request_id]
                self._session.drop(prepared.request_id)
                raise
        remaining = prepared.sampling.n
        try:
            while remaining:
                event = await box.get()
                if event.finish_reason is not None:
                    remaining -= 1
                yield event
                if event.error is not None:
                    raise event.error
        finally:
            with self._lock:
                self._boxes.pop(prepared.request_id, None)
            if remaining:
                self.core.abort(prepared.request_id)

    def abort(self, request_id: str) -> bool:
        """Ask for a request's end; its events end with `abort`. False if it is not live."""
        return self.core.abort(request_id)

    def _run(self) -> None:
        """The loop thread."""
        try:
            while not self._ending:
                if not self.core.busy:
                    self.core.wait(_IDLE)
                    continue
                for event in self.core.step():
                    self._deliver(event)
        except BaseException as error:
            fault = error if isinstance(error, TokloomError) else _wrap(error)
            with self._lock:
                self._failure = fault
                boxes = list(self._boxes.values())
            for box in boxes:
                box.fail(fault)

    def _deliver(self, event: Any) -> None:
        translated = self._session.translate(event)
        if translated is None:
            return
        with self._lock:
            box = self._boxes.get(translated.request_id)
        if box is not None:
            box.put(translated)

    async def aclose(self) -> None:
        """End every request (their iterators raise CapacityError), stop the thread, free memory. Idempotent."""
        with self._lock:
            self._ending = True
            boxes = list(self._boxes.values())
        self.core.composition.context.wake()
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self.core.close)
        for box in boxes:
            box.fail(CapacityError("the engine was closed", remedy="Send the request to a running engine"))

    async def __aenter__(self) -> "AsyncEngine":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _wrap(error: BaseException) -> PluginFault:
    fault = PluginFault(
        f"the engine stopped: {type(error).__name__}: {error}", remedy="Start a new engine; this one is broken"
    )
    fault.__cause__ = error
    return fault
