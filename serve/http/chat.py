"""POST /v1/chat/completions: a conversation to an answer.

The conversation goes to the model's template through `GenerateRequest.messages`. Text comes back through `_delta`, the
one place where it becomes what a client sees.
"""

import time
from collections.abc import Sequence
from typing import Any, Literal, NotRequired
from uuid import uuid4

from attrs import define, field
from starlette.requests import Request
from typing_extensions import TypedDict

from tokloom import ChatMessage, Event, GenerateRequest, TokenLogprobs
from tokloom.sdk import RequestError
from tokloom.serve.http.bodies import read_request
from tokloom.serve.http.errors import encode
from tokloom.serve.http.generation import Generation
from tokloom.serve.http.rendering import DONE, Counts, TokenTexts, UsageObject, finite, frame, quote
from tokloom.serve.http.requests import ChatRequest, InputMessage, Message
from tokloom.serve.http.service import Service
from tokloom.serve.http.structured import grammar_of
from tokloom.serve.tracing import trace_of


class TopLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    content: list[ContentLogprob]
    refusal: None


class AnswerMessage(TypedDict):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(TypedDict):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatCompletion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageObject


class ChatDelta(TypedDict):
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]


class ChatChunkChoice(TypedDict):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class ChatChunk(TypedDict):
    """One `data:` line of a stream; the last line is `[DONE]`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[UsageObject | None]


async def chat_completions(service: Service, request: Request) -> Generation:
    """Answer a conversation."""
    engine, section = service.engine(), service.section
    body = await read_request(request, ChatRequest, limit=section.max_body_bytes, seconds=section.body_seconds)
    model = service.model(body.model)
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs is given without logprobs", remedy="Set logprobs to true")
    limits = [limit for limit in (body.max_completion_tokens, body.max_tokens) if limit is not None]
    generate = GenerateRequest(
        messages=conversation(body.messages),
        sampling=body.sampling(
            engine.default_sampling,
            max_tokens=min(limits, default=service.context),
            logprobs=body.top_logprobs if body.logprobs else None,
            grammar=grammar_of(body.response_format, body.structured_outputs),
        ),
        adapter=service.adapter(model),
        stop=body.stops,
        include_stop=body.include_stop_str_in_output,
        priority=body.priority,
        tenant=body.user,
        salt=body.cache_salt,
        trace=trace_of(request.scope["headers"]),
    )
    rendering = ChatRendering(model, TokenTexts(engine.tokenizer), logprobs=body.logprobs, with_usage=body.with_usage)
    return Generation(service, [generate], rendering, stream=body.stream)


def conversation(messages: Sequence[Message | InputMessage]) -> tuple[ChatMessage, ...]:
    """As templates know it: `developer` is OpenAI's newer word for `system`."""
    return tuple(
        ChatMessage("system" if message.role == "developer" else message.role, message.text) for message in messages
    )


@define
class _Choice:
    """One answer.

    Attributes:
        head: a chunk up to its delta.
        texts, logprobs: of the events that were kept for a whole body.
    """

    head: bytes
    begun: bool = False
    finish_reason: str = ""
    texts: list[str] = field(factory=list)
    logprobs: list[ContentLogprob] = field(factory=list)


class ChatRendering:
    """Answers as `chat.completion`, or as `chat.completion.chunk` events.

    Of a chunk only the delta differs from token to token, so the rest is encoded once per choice.
    """

    def __init__(self, model: str, texts: TokenTexts, *, logprobs: bool, with_usage: bool) -> None:
        self._texts = texts
        self._with_logprobs = logprobs
        self._with_usage = with_usage
        self._base: dict[str, Any] = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time()), "model": model}
        self._choices: dict[int, _Choice] = {}
        self._counts = Counts()
        self._end = b',"usage":null}\n\n' if with_usage else b"}\n\n"
        self._tail = b',"logprobs":null,"finish_reason":null}]' + self._end

    def _choice(self, index: int) -> _Choice:
        choice = self._choices.get(index)
        if choice is None:
            base = encode({**self._base, "object": "chat.completion.chunk"})[:-1]
            choice = _Choice(b"data: " + base + b',"choices":[{"index":%d,"delta":' % index)
            self._choices[index] = choice
        return choice

    # -- streaming -----------------------------------------------------------------------------------------------------

    def chunk(self, choice: int, event: Event) -> bytes:
        state = self._choice(choice)
        data = b""
        if not state.begun:
            state.begun = True
            data = state.head + b'{"role":"assistant","content":""}' + self._tail
        if self._with_logprobs and event.logprobs:
            logs = encode(self._logprobs(event))
            tail = b',"logprobs":' + logs + b',"finish_reason":null}]' + self._end
            data += state.head + _delta(event.text) + tail
        elif event.text:
            data += state.head + _delta(event.text) + self._tail
        if event.finish_reason is not None:
            self._counts.add(event)
            reason = quote(event.finish_reason).encode()
            data += state.head + b'{},"logprobs":null,"finish_reason":' + reason + b"}]" + self._end
        return data

    def last(self) -> bytes:
        if not self._with_usage:
            return DONE
        chunk = {**self._base, "object": "chat.completion.chunk", "choices": [], "usage": self._counts.usage()}
        return frame(chunk) + DONE

    # -- one body ------------------------------------------------------------------------------------------------------

    def take(self, choice: int, event: Event) -> None:
        state = self._choice(choice)
        state.texts.append(event.text)
        if self._with_logprobs:
            state.logprobs += [self._logprob(entry) for entry in event.logprobs]
        if event.finish_reason is not None:
            self._counts.add(event)
            state.finish_reason = event.finish_reason

    def body(self) -> ChatCompletion:
        choices: list[ChatChoice] = [
            {
                "index": index,
                "message": {"role": "assistant", "content": "".join(state.texts), "refusal": None},
                "logprobs": {"content": state.logprobs, "refusal": None} if self._with_logprobs else None,
                "finish_reason": state.finish_reason,
            }
            for index, state in sorted(self._choices.items())
        ]
        return {
            "id": self._base["id"],
            "object": "chat.completion",
            "created": self._base["created"],
            "model": self._base["model"],
            "choices": choices,
            "usage": self._counts.usage(),
        }

    def _logprobs(self, event: Event) -> ChatLogprobs:
        return {"content": [self._logprob(entry) for entry in event.logprobs], "refusal": None}

    def _logprob(self, entry: TokenLogprobs) -> ContentLogprob:
        top = [self._top(token, logprob) for token, logprob in entry.top]
        return {**self._top(entry.token, entry.logprob), "top_logprobs": top}

    def _top(self, token: int, logprob: float) -> TopLogprob:
        data = self._texts.data(token)
        return {"token": data.decode("utf-8", "replace"), "logprob": finite(logprob), "bytes": list(data)}


def _delta(text: str) -> bytes:
    """What a client gets of a piece of text."""
    return b'{"content":' + quote(text).encode() + b"}"
