"""Engine: the synchronous embedding API."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from attrs import define, field

from tokloom.api.loading import Progress, start
from tokloom.api.profiles import read_profile
from tokloom.api.requests import prepare
from tokloom.api.session import Session
from tokloom.api.types import Event, GenerateRequest, Result, TokenLogprobs, Usage
from tokloom.core.catalog import Catalog
from tokloom.core.engine import EngineCore
from tokloom.sdk import FinishReason, SamplingParams, Tokenizer, TokloomError


class Engine:
    """One engine, driven by the caller: `add` requests, call `step` until their events end. Not thread-safe.

    Usable as a context manager. Nothing is printed, no logging is configured, no signal is handled.
    """

    def __init__(self, core: EngineCore, tokenizer: Tokenizer | None) -> None:
        self.core = core
        self.tokenizer = tokenizer
        self._session = Session(core, tokenizer)

    @classmethod
    def from_profile(
        cls,
        profile: str | Path | Mapping[str, Any] = "builtin:cpu",
        *,
        model: str | Path | None = None,
        sets: Sequence[str] = (),
        catalog: Catalog | None = None,
        progress: Progress | None = None,
        **overrides: Any,
    ) -> "Engine":
        """Compose a profile and load its model.

        Args:
            profile: a path, `builtin:NAME`, or a mapping of a profile's shape.
            model: shorthand for the profile's `model.path`.
            sets: `section.key=value` texts as on the command line; strongest.
            catalog: where plugins come from; None finds the installed ones.
            progress: called with (done, total, what) while weights load.
            overrides: sections of the profile, for example `engine={"max_sequences": 4}`.
        """
        core = start(read_profile(profile, model=model, sets=sets, overrides=overrides), catalog, progress)
        return cls(core, core.composition.model.tokenizer)

    def add(self, request: GenerateRequest) -> str:
        """Queue a request; returns its id. Raises RequestError or CapacityError and keeps nothing then."""
        prepared = prepare(request, self.tokenizer)
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
    def busy(self) -> bool:
        """Whether there is anything left to do."""
        return self.core.busy

    def step(self) -> list[Event]:
        """Do one step of work."""
        events = [self._session.translate(event) for event in self.core.step()]
        return [event for event in events if event is not None]

    def generate(
        self, requests: GenerateRequest | str | Iterable[GenerateRequest | str], sampling: SamplingParams | None = None
    ) -> list[Result]:
        """Run requests to their end, all at once; results in the order given, `n` per request.

        Strings are prompts that use `sampling`. The first request that fails raises its error after all have ended.
        """
        given = [requests] if isinstance(requests, (GenerateRequest, str)) else list(requests)
        gathered: dict[tuple[str, int], _Gathered] = {}
        try:
            for item in given:
                self._start(item, sampling, gathered)
            while any(item.reason is None for item in gathered.values()):
                for event in self.step():
                    found = gathered.get((event.request_id, event.index))
                    if found is not None:
                        found.take(event)
        except BaseException:
            for request_id in {key[0] for key, item in gathered.items() if item.reason is None}:
                self.abort(request_id)
            raise
        results = [item.result(*key) for key, item in gathered.items()]
        for result in results:
            if result.error is not None:
                raise result.error
        return results

    def _start(
        self,
        item: GenerateRequest | str,
        sampling: SamplingParams | None,
        gathered: "dict[tuple[str, int], _Gathered]",
    ) -> None:
        request = item
        if isinstance(item, str):
            request = GenerateRequest(prompt=item, sampling=sampling or SamplingParams())
        assert isinstance(request, GenerateRequest)
        request_id = self.add(request)
        prompt = self._session.prompt(request_id)
        for index in range(request.sampling.n):
            gathered[request_id, index] = _Gathered(prompt)

    def close(self) -> None:
        """End everything and free memory. Idempotent."""
        self.core.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@define
class _Gathered:
    prompt: tuple[int, ...]
    texts: list[str] = field(factory=list)
    tokens: list[int] = field(factory=list)
    logprobs: list[TokenLogprobs] = field(factory=list)
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    reason: FinishReason | None = None
    usage: Usage | None = None
    error: TokloomError | None = None

    def take(self, event: Event) -> None:
        self.texts.append(event.text)
        self.tokens += event.token_ids
        self.logprobs += event.logprobs
        self.prompt_logprobs = event.prompt_logprobs or self.prompt_logprobs
        self.reason = event.finish_reason
        self.usage = event.usage or self.usage
        self.error = event.error

    def result(self, request_id: str, index: int) -> Result:
        assert self.reason is not None
        return Result(
            request_id=request_id,
            index=index,
            text="".join(self.texts),
            token_ids=tuple(self.tokens),
            prompt_token_ids=self.prompt,
            finish_reason=self.reason,
            usage=self.usage,
            logprobs=tuple(self.logprobs),
            prompt_logprobs=self.prompt_logprobs,
            error=self.error,
        )
