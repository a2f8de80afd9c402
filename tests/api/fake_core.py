"""A core without a model: every request answers with tokens that a test chose. And tokenizers of bytes."""

import threading
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from attrs import define, field

from tokloom.core.events import OutputEvent, TokenLogprobs, Usage
from tokloom.core.numbers import Numbers
from tokloom.sdk import JSON, CapacityError, ChatMessage, FinishReason, Request, RequestError, Tool

BOS, EOS = 256, 257


class ByteTokenizer:
    """Ids 0 to 255 are bytes, 256 and 257 are special, further ids are the given pieces of bytes."""

    special_ids = frozenset({BOS, EOS})

    def __init__(self, pieces: Sequence[bytes] = (), *, template: bool = True, strips: bool = False) -> None:
        self._pieces = [*(bytes([value]) for value in range(256)), b"<bos>", b"<eos>", *pieces]
        self._strips = strips
        self.chat_template = "[role]content" if template else ""
        self.threads: set[str] = set()
        self.before_encode: Callable[[], None] = lambda: None

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id]

    def encode(self, text: str, *, add_special: bool) -> Sequence[int]:
        self.threads.add(threading.current_thread().name)
        self.before_encode()
        return [*([BOS] if add_special else []), *text.encode()]

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        data = b"".join(self._pieces[i] for i in ids if not (skip_special and i in self.special_ids))
        text = data.decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self._strips else text

    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool],
        options: Mapping[str, JSON],
        add_generation_prompt: bool,
    ) -> Sequence[int]:
        if not self.chat_template:
            raise RequestError("the model has no chat template")
        text = "".join(f"[{message.role}]{message.content}" for message in messages) + "[assistant]"
        return self.encode(text, add_special=True)


@define
class _Row:
    request: Request
    child: int
    tokens: Sequence[int]
    reason: FinishReason
    done: int = 0
    over: FinishReason | None = None


class FakeCore:
    """The interface of EngineCore that the embedding API uses.

    Args:
        answer: prompt and child -> tokens to answer with, cut at max_tokens.
        burst: tokens per sequence and step, as a verified draft would give.
        limit: requests that may be live.

    Attributes:
        held: (request id, child) that hold pages.
        gate: steps wait for it; a test clears it to hold the engine inside a step.
        broken: raised by the next step.
    """

    def __init__(
        self, answer: Callable[[Request, int], Sequence[int]], *, burst: Callable[[], int] = lambda: 1, limit: int = 64
    ) -> None:
        self._answer = answer
        self._burst = burst
        self._limit = limit
        self.adapters = {"red": "digest-of-red"}
        self._woken = threading.Event()
        self._lock = threading.Lock()
        self._inbox: list[Request] = []
        self._aborts: list[str] = []
        self._rows: dict[tuple[str, int], _Row] = {}
        self.known: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.broken: BaseException | None = None
        self.closed = 0
        self.steps = 0
        self.drawn = 0
        self.before_return: Callable[[list[OutputEvent]], None] = lambda events: None
        settings = SimpleNamespace(max_sequences=4, threads=1)
        self.composition: Any = SimpleNamespace(settings=settings, observers=())

    @property
    def held(self) -> set[tuple[str, int]]:
        return set(self._rows)

    def add(self, request: Request) -> None:
        with self._lock:
            if self.closed:
                raise CapacityError("the engine is closed")
            if request.request_id in self.known:
                raise RequestError("a request with this id is live")
            if not request.prompt_ids:
                raise RequestError("the prompt has no tokens")
            if len(self.known) >= self._limit:
                raise CapacityError("the queue is full")
            self.known.add(request.request_id)
            self._inbox.append(request)
        self._woken.set()

    def abort(self, request_id: str) -> bool:
        with self._lock:
            if request_id not in self.known:
                return False
            self._aborts.append(request_id)
        self._woken.set()
        return True

    def stop(self, request_id: str, child: int) -> None:
        row = self._rows.get((request_id, child))
        if row is not None and row.over is None:
            row.over = "stop"

    def numbers(self) -> Numbers:
        return Numbers(running=len(self._rows), steps=self.steps, generated_tokens=self.drawn)

    def wait(self, timeout: float) -> None:
        self._woken.wait(timeout)
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()

    @property
    def busy(self) -> bool:
        return bool(self._inbox or self._aborts or self._rows)

    def step(self) -> list[OutputEvent]:
        assert not self.closed
        self.gate.wait()
        self.steps += 1
        if self.broken is not None:
            raise self.broken
        with self._lock:
            fresh, self._inbox = self._inbox, []
            aborts, self._aborts = self._aborts, []
        for request in fresh:
            for child in range(request.sampling.n):
                tokens = self._answer(request, child)
                reason: FinishReason = "stop"
                if len(tokens) > request.sampling.max_tokens:
                    tokens, reason = tokens[: request.sampling.max_tokens], "length"
                self._rows[request.request_id, child] = _Row(request, child, tokens, reason)
        for row in self._rows.values():
            if row.request.request_id in aborts and row.over is None:
                row.over = "abort"
        events = [event for row in list(self._rows.values()) for event in self._work(row)]
        with self._lock:
            self.known -= {e.request_id for e in events if e.finish_reason} - {key[0] for key in self._rows}
        self.before_return(events)
        return events

    def _work(self, row: _Row) -> list[OutputEvent]:
        request = row.request
        tokens: tuple[int, ...] = ()
        if row.over is None:
            tokens = tuple(row.tokens[row.done : row.done + self._burst()])
            row.done += len(tokens)
            self.drawn += len(tokens)
        logprobs = tuple(TokenLogprobs(token, -float(token)) for token in tokens)
        whole = OutputEvent(
            request_id=request.request_id,
            child=row.child,
            tokens=tokens,
            logprobs=logprobs if request.sampling.logprobs is not None else (),
        )
        if row.over is None and row.done < len(row.tokens):
            return [whole]
        del self._rows[request.request_id, row.child]
        usage = Usage(prompt_tokens=len(request.prompt_ids), output_tokens=row.done)
        last = OutputEvent(
            request_id=request.request_id, child=row.child, finish_reason=row.over or row.reason, usage=usage
        )
        return [whole, last] if tokens else [last]

    def close(self) -> None:
        self.closed += 1
        self._rows.clear()


class Forever(Sequence[int]):
    """The letter a without end."""

    def __len__(self) -> int:
        return 10**12

    def __getitem__(self, part: Any) -> Any:
        return [97] * len(range(*part.indices(len(self)))) if isinstance(part, slice) else 97


def spell(text: str) -> Callable[[Request, int], Sequence[int]]:
    """Every request answers with the bytes of a text."""
    return lambda request, child: list(text.encode())


@define
class Recorder:
    """What a test has seen of each sequence."""

    texts: dict[tuple[str, int], str] = field(factory=dict)
    tokens: dict[tuple[str, int], list[int]] = field(factory=dict)
    reasons: dict[tuple[str, int], FinishReason] = field(factory=dict)

    def take(self, events: Sequence[Any]) -> None:
        for event in events:
            key = (event.request_id, event.index)
            assert key not in self.reasons, f"{key} goes on after its end"
            self.texts[key] = self.texts.get(key, "") + event.text
            self.tokens.setdefault(key, []).extend(event.token_ids)
            if event.finish_reason is not None:
                self.reasons[key] = event.finish_reason
