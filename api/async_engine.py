"""AsyncEngine: the embedding API for asyncio."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from tokloom.api.loading import Loader, Progress
from tokloom.api.loop import EngineLoop
from tokloom.api.mailbox import Mailbox
from tokloom.api.recommended import recommended
from tokloom.api.snapshot import Snapshot, snapshot
from tokloom.api.types import Event, GenerateRequest
from tokloom.core.catalog import Catalog
from tokloom.core.composition import Composition
from tokloom.core.engine import EngineCore
from tokloom.sdk import Exposition, SamplingParams, Tokenizer, TokloomError


class AsyncEngine:
    """One engine for any number of concurrent requests, from any number of event loops and threads.

    One thread owns the core. Prompts are checked and tokenised in worker threads (`asyncio.to_thread`), text is put
    together in the engine's thread, so that the caller's loop only passes events on. Nothing is printed, no logging is
    configured, no signal is handled. An engine that is still running when the process ends is stopped first.
    """

    def __init__(self, core: EngineCore, tokenizer: Tokenizer | None) -> None:
        self.core = core
        self.tokenizer = tokenizer
        self._made = time.monotonic()
        self._loop = EngineLoop(core, tokenizer)

    @classmethod
    async def from_profile(
        cls,
        profile: str | Path | Mapping[str, Any] = "builtin:cpu",
        *,
        model: str | Path | Mapping[str, Any] | None = None,
        sets: Sequence[str] = (),
        catalog: Catalog | None = None,
        progress: Progress | None = None,
        **overrides: Any,
    ) -> "AsyncEngine":
        """Compose a profile and load its model in a worker thread. Arguments as of `Engine.from_profile`; `progress`
        is called on that thread. If the caller is cancelled meanwhile, what was loaded is closed.
        """
        loader = Loader.of_profile(profile, model, sets, overrides, catalog, progress)
        return await cls._load(loader)

    @classmethod
    async def from_composition(cls, composition: Composition, progress: Progress | None = None) -> "AsyncEngine":
        """Load the model of a composition, as `from_profile` does."""
        return await cls._load(Loader(lambda: composition, progress))

    @classmethod
    async def _load(cls, loader: Loader) -> "AsyncEngine":
        try:
            core = await asyncio.to_thread(loader.load)
        except asyncio.CancelledError:
            loader.abandon()
            raise
        return cls(core, core.composition.model.tokenizer)

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names that `GenerateRequest.adapter` may have, sorted."""
        return tuple(sorted(self.core.adapters))

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """Events of a request until all of its sequences have ended.

        Closing the iterator, leaving the loop over it, or cancelling the task that reads it cancels the request; its
        pages return to the pool. Raises RequestError or CapacityError before the first event if the request is
        refused, and a sequence's own error after its last event.
        """
        box = Mailbox(asyncio.get_running_loop())
        try:
            await asyncio.to_thread(self._loop.admit, request, box)
            remaining = request.sampling.n
            while remaining:
                event = await box.get()
                if event.finish_reason is not None:
                    remaining -= 1
                yield event
                if event.error is not None:
                    raise event.error
        finally:
            self._loop.leave(box)

    @property
    def default_sampling(self) -> SamplingParams:
        """What the model's authors recommend, in parameters that are otherwise as by default. A request takes it only
        if it is given it.
        """
        return recommended(self.core.composition.model.spec)

    def abort(self, request_id: str) -> bool:
        """Ask for a request's end; its events end with `abort`. False if it is not live."""
        return self.core.abort(request_id)

    @property
    def failure(self) -> TokloomError | None:
        """Why the engine broke: every later request raises it too. None while it works and after `aclose`."""
        return self._loop.failure

    def exposition(self) -> tuple[str, bytes] | None:
        """Content type and content of what an observer shows, the first that shows anything; None if there is none."""
        for part in self.core.composition.observers:
            if part.caps.exposition:
                return cast("Exposition", part.plugin).render()
        return None

    def snapshot(self) -> Snapshot:
        """What the engine is made of, and its numbers at the end of its last step. Waits for nothing: from any thread,
        in any loop, also after `aclose`.
        """
        return snapshot(self.core.composition, self._loop.numbers, time.monotonic() - self._made)

    async def aclose(self, drain: float = 0.0) -> None:
        """Refuse new requests, wait up to `drain` seconds for the live ones, end the rest (their iterators raise
        CapacityError), stop the thread, free memory. Idempotent.
        """
        await asyncio.to_thread(self._loop.end, drain)

    async def __aenter__(self) -> "AsyncEngine":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
