"""Service: what all routes share: the engine once it is there, the model's names, and who may come in."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from tokloom import AsyncEngine
from tokloom.api.formats import AnswerFormat
from tokloom.sdk import CapacityError, RequestError, Tokenizer
from tokloom.serve.http.config import ServeSection
from tokloom.serve.http.errors import HttpError


class Service:
    """Belongs to one event loop.

    Attributes:
        phase: `loading` until `open`, then `ready`, then `draining` for good.
        live: sequences that run or wait for a client.
    """

    def __init__(self, section: ServeSection, names: Sequence[str]) -> None:
        self.section = section
        self.names = tuple(names)
        self.created = int(time.time())
        self.phase: Literal["loading", "ready", "draining"] = "loading"
        self.live = 0
        self._engine: AsyncEngine | None = None
        self._answers: AnswerFormat | None = None

    def open(self, engine: AsyncEngine) -> None:
        """Requests may come."""
        self._engine = engine
        if self.phase == "loading":
            self.phase = "ready"

    def close(self) -> None:
        """No new requests; live ones go on."""
        self.phase = "draining"

    @property
    def loaded(self) -> AsyncEngine | None:
        """The engine in whatever phase."""
        return self._engine

    def engine(self) -> AsyncEngine:
        """The engine, for new requests. Raises HttpError 503 while there is none or the server drains."""
        if self.phase == "draining":
            raise HttpError(
                503, "the server is shutting down", kind="shutting_down", remedy="Send it to another server"
            )
        if self._engine is None:
            raise HttpError(503, "the model is loading", kind="loading", remedy="Retry in some seconds")
        return self._engine

    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises RequestError if it has none."""
        tokenizer = self.engine().tokenizer
        if tokenizer is None:
            raise RequestError("the model has no tokenizer", remedy="Send token ids to /v1/completions")
        return tokenizer

    def answer_format(self) -> AnswerFormat:
        """How the model's answers are taken apart. Raises RequestError if it has no tokenizer."""
        if self._answers is None:
            section = self.section
            self._answers = AnswerFormat(
                self.tokenizer(), tools=section.tool_format, reasoning=section.reasoning_format
            )
        return self._answers

    @property
    def failed(self) -> bool:
        """Whether the engine broke: only a new process helps."""
        return self._engine is not None and self._engine.failure is not None

    @property
    def context(self) -> int:
        """Tokens of the longest sequence, prompt included."""
        return self.engine().core.composition.settings.max_model_tokens

    @property
    def adapters(self) -> tuple[str, ...]:
        """Adapters that are served as models of their own; a name of the model comes first."""
        loaded = () if self._engine is None else self._engine.adapters
        return tuple(name for name in loaded if name not in self.names)

    def model(self, name: str | None) -> str:
        """The name to answer with. Raises HttpError 404 for a model that is not served."""
        if name is None:
            return self.names[0]
        served = (*self.names, *self.adapters)
        if name not in served:
            raise HttpError(
                404,
                f"the model {name[:200]!r} is not served",
                kind="model_not_found",
                param="model",
                remedy=f"Served: {', '.join(served)}",
            )
        return name

    def adapter(self, model: str) -> str:
        """The adapter behind a model's name; empty: none."""
        return "" if model in self.names else model

    @contextmanager
    def admitted(self, sequences: int) -> Iterator[AsyncEngine]:
        """The engine for that many sequences, which count as live meanwhile. Raises CapacityError if too many wait."""
        engine = self.engine()
        limit = engine.core.composition.settings.max_sequences + self.section.max_queue
        if self.live and self.live + sequences > limit:
            raise CapacityError(f"{self.live} sequences run or wait and the limit is {limit}", remedy="Retry later")
        self.live += sequences
        try:
            yield engine
        finally:
            self.live -= sequences
