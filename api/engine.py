"""Engine: the synchronous embedding API."""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tokloom.api.gather import Gathered
from tokloom.api.loading import Loader, Progress
from tokloom.api.recommended import recommended
from tokloom.api.requests import prepare
from tokloom.api.session import Session
from tokloom.api.snapshot import Snapshot, snapshot
from tokloom.api.types import Event, GenerateRequest, Result
from tokloom.core.catalog import Catalog
from tokloom.core.composition import Composition
from tokloom.core.engine import EngineCore
from tokloom.sdk import CapacityError, SamplingParams, Tokenizer


class Engine:
    """One engine, driven by the caller: `add` requests, call `step` until their events end. Not thread-safe.

    Usable as a context manager. Nothing is printed, no logging is configured, no signal is handled.
    """

    def __init__(self, core: EngineCore, tokenizer: Tokenizer | None) -> None:
        self.core = core
        self.tokenizer = tokenizer
        self._made = time.monotonic()
        self._session = Session(core, tokenizer)
        self._kept: list[Event] = []

    @classmethod
    def from_profile(
        cls,
        profile: str | Path | Mapping[str, Any] = "builtin:cpu",
        *,
        model: str | Path | Mapping[str, Any] | None = None,
        sets: Sequence[str] = (),
        catalog: Catalog | None = None,
        progress: Progress | None = None,
        **overrides: Any,
    ) -> "Engine":
        """Compose a profile and load its model.

        Args:
            profile: a path, `builtin:NAME`, or a mapping of a profile's shape.
            model: shorthand for the profile's `model.path`; a mapping overrides the section `model`.
            sets: `section.key=value` texts as on the command line; strongest.
            catalog: where plugins come from; None finds the installed ones.
            progress: called with (done, total, what) while weights load.
            overrides: sections of the profile, for example `engine={"max_sequences": 4}`; dotted keys are accepted,
                for example `**{"engine.max_sequences": 4}`.
        """
        core = Loader.of_profile(profile, model, sets, overrides, catalog, progress).load()
        return cls(core, core.composition.model.tokenizer)

    @classmethod
    def from_composition(cls, composition: Composition, progress: Progress | None = None) -> "Engine":
        """Load the model of a composition."""
        core = Loader(lambda: composition, progress).load()
        return cls(core, core.composition.model.tokenizer)

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names that `GenerateRequest.adapter` may have, sorted."""
        return tuple(sorted(self.core.adapters))

    def add(self, request: GenerateRequest) -> str:
        """Queue a request; returns its id. Raises RequestError or CapacityError and keeps nothing then."""
        prepared = prepare(request, self.tokenizer, self.core.adapters)
        self.core.add(prepared)
        self._session.begin(request, prepared)
        return prepared.request_id

    def prompt_ids(self, request_id: str) -> tuple[int, ...]:
        """The prompt of a live request as ids."""
        return self._session.prompt(request_id)

    def abort(self, request_id: str) -> bool:
        """Ask for a request's end; its last events say `abort`. False if it is not live."""
        return self.core.abort(request_id)

    @property
    def default_sampling(self) -> SamplingParams:
        """What the model's authors recommend, in parameters that are otherwise as by default. A request takes it only
        if it is given it.
        """
        return recommended(self.core.composition.model.spec)

    def snapshot(self) -> Snapshot:
        """What the engine is made of, and its numbers now."""
        return snapshot(self.core.composition, self.core.numbers(), time.monotonic() - self._made)

    @property
    def busy(self) -> bool:
        """Whether there is anything left to do or to report."""
        return bool(self._kept) or self.core.busy

    def step(self) -> list[Event]:
        """Do one step of work; events that are new, and those that `generate` met of other requests."""
        kept, self._kept = self._kept, []
        return kept + self._step()

    def _step(self) -> list[Event]:
        events = [self._session.translate(event) for event in self.core.step()]
        return [event for event in events if event is not None]

    def generate(
        self, requests: GenerateRequest | str | Iterable[GenerateRequest | str], sampling: SamplingParams | None = None
    ) -> list[Result]:
        """Run requests to their end, as many at once as the engine takes; results in the order given, `n` per request.

        Strings are prompts that use `sampling`. A request that is refused raises at once and ends the others; of those
        that fail while they run, the first raises its error after all have ended. Events of requests that were added
        before come with the next `step`.
        """
        given = [requests] if isinstance(requests, (GenerateRequest, str)) else requests
        batch = _Batch(self)
        try:
            for item in given:
                if isinstance(item, str):
                    item = GenerateRequest(prompt=item, sampling=sampling or SamplingParams())
                batch.start(item)
            while batch.open:
                batch.advance()
        except BaseException:
            for request_id in {key[0] for key in batch.open}:
                self.abort(request_id)
            raise
        results = [item.result() for item in batch.gathered.values()]
        for result in results:
            if result.error is not None:
                raise result.error
        return results

    def close(self) -> None:
        """End everything and free memory. Idempotent."""
        self.core.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Batch:
    """What `generate` runs. `gathered`: (request id, index) -> its events; `open`: those that have not ended."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.gathered: dict[tuple[str, int], Gathered] = {}
        self.open: set[tuple[str, int]] = set()

    def start(self, request: GenerateRequest) -> None:
        """Add a request; while the queue is full, work."""
        engine = self._engine
        while True:
            try:
                request_id = engine.add(request)
                break
            except CapacityError:
                if not engine.core.busy:
                    raise
            self.advance()
        prompt = engine.prompt_ids(request_id)
        for index in range(request.sampling.n):
            self.gathered[request_id, index] = Gathered(prompt)
            self.open.add((request_id, index))

    def advance(self) -> None:
        """One step."""
        for event in self._engine._step():
            key = (event.request_id, event.index)
            if key not in self.open:
                self._engine._kept.append(event)
                continue
            self.gathered[key].take(event)
            if event.finish_reason is not None:
                self.open.discard(key)
