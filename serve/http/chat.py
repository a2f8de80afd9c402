"""POST /v1/chat/completions: a conversation to an answer.

The conversation goes to the model's template through `GenerateRequest.messages`. What comes back is taken apart into
reasoning, text and calls of tools.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any, Literal, NotRequired
from uuid import uuid4

from attrs import define, field
from starlette.requests import Request
from typing_extensions import TypedDict

from tokloom import Event, GenerateRequest, TokenLogprobs
from tokloom.api.formats import Piece
from tokloom.sdk import RequestError, ToolCall
from tokloom.serve.http.bodies import read_request
from tokloom.serve.http.conversations import conversation, options_of, tools_of, use_of
from tokloom.serve.http.errors import encode
from tokloom.serve.http.generation import Generation
from tokloom.serve.http.rendering import DONE, Counts, TokenTexts, UsageObject, finite, frame, quote
from tokloom.serve.http.requests import ChatRequest
from tokloom.serve.http.service import Service
from tokloom.serve.http.structured import grammar_of
from tokloom.serve.http.taken_apart import TakenApart, call_id
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


class CalledFunction(TypedDict):
    name: str
    arguments: str


class AnswerCall(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class CallDelta(AnswerCall):
    index: int


class AnswerMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[AnswerCall]]


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
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[CallDelta]]


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
        tools=tools_of(body.tools),
        template_options=options_of(
            body.chat_template_kwargs, body.reasoning_effort, service.tokenizer().chat_template
        ),
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
    answers, tokenizer = service.answer_format(), service.tokenizer()
    use = use_of(body.tools, body.tool_choice, parallel=body.parallel_tool_calls)
    generate, make = await asyncio.to_thread(answers.prepare, generate, use)
    rendering = ChatRendering(
        model,
        TokenTexts(tokenizer),
        TakenApart(make, answers.end_of_reasoning, tokenizer),
        logprobs=body.logprobs,
        with_usage=body.with_usage,
    )
    return Generation(service, [generate], rendering, stream=body.stream)


@define
class _Choice:
    """One answer.

    Attributes:
        head: a chunk up to its delta.
        calls: how many have come.
        pieces, logprobs: of the events that were kept for a whole body.
    """

    head: bytes
    begun: bool = False
    finish_reason: str = ""
    calls: int = 0
    pieces: list[Piece] = field(factory=list)
    logprobs: list[ContentLogprob] = field(factory=list)


class ChatRendering:
    """Answers as `chat.completion`, or as `chat.completion.chunk` events.

    Of a chunk only the delta differs from token to token, so the rest is encoded once per choice.
    """

    def __init__(self, model: str, texts: TokenTexts, parts: TakenApart, *, logprobs: bool, with_usage: bool) -> None:
        self._texts = texts
        self._parts = parts
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
        deltas = self._deltas(state, self._parts.piece(choice, event))
        if self._with_logprobs and event.logprobs:
            logs = encode(self._logprobs(event))
            tail = b',"logprobs":' + logs + b',"finish_reason":null}]' + self._end
            first = deltas.pop(0) if deltas else _delta("content", "")
            data += state.head + first + tail
        for delta in deltas:
            data += state.head + delta + self._tail
        if event.finish_reason is not None:
            self._counts.add(event)
            reason = quote(self._reason(choice, event.finish_reason)).encode()
            data += state.head + b'{},"logprobs":null,"finish_reason":' + reason + b"}]" + self._end
        return data

    def _deltas(self, state: _Choice, piece: Piece) -> list[bytes]:
        deltas = [_delta("reasoning_content", piece.reasoning)] if piece.reasoning else []
        if piece.text:
            deltas.append(_delta("content", piece.text))
        for call in piece.calls:
            delta: CallDelta = {"index": state.calls, **_called(call)}
            deltas.append(encode({"tool_calls": [delta]}))
            state.calls += 1
        return deltas

    def _reason(self, choice: int, reason: str) -> str:
        return "tool_calls" if reason == "stop" and self._parts.called(choice) else reason

    def _usage(self) -> UsageObject:
        return {
            **self._counts.usage(),
            "completion_tokens_details": {"reasoning_tokens": self._parts.reasoning_tokens},
        }

    def last(self) -> bytes:
        if not self._with_usage:
            return DONE
        chunk = {**self._base, "object": "chat.completion.chunk", "choices": [], "usage": self._usage()}
        return frame(chunk) + DONE

    # -- one body ------------------------------------------------------------------------------------------------------

    def take(self, choice: int, event: Event) -> None:
        state = self._choice(choice)
        state.pieces.append(self._parts.piece(choice, event))
        if self._with_logprobs:
            state.logprobs += [self._logprob(entry) for entry in event.logprobs]
        if event.finish_reason is not None:
            self._counts.add(event)
            state.finish_reason = self._reason(choice, event.finish_reason)

    def body(self) -> ChatCompletion:
        choices: list[ChatChoice] = [
            {
                "index": index,
                "message": _message(state.pieces),
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
            "usage": self._usage(),
        }

    def _logprobs(self, event: Event) -> ChatLogprobs:
        return {"content": [self._logprob(entry) for entry in event.logprobs], "refusal": None}

    def _logprob(self, entry: TokenLogprobs) -> ContentLogprob:
        top = [self._top(token, logprob) for token, logprob in entry.top]
        return {**self._top(entry.token, entry.logprob), "top_logprobs": top}

    def _top(self, token: int, logprob: float) -> TopLogprob:
        data = self._texts.data(token)
        return {"token": data.decode("utf-8", "replace"), "logprob": finite(logprob), "bytes": list(data)}


def _delta(field: str, text: str) -> bytes:
    """What a client gets of a piece of text."""
    return b'{"' + field.encode() + b'":' + quote(text).encode() + b"}"


def _message(pieces: Sequence[Piece]) -> AnswerMessage:
    """The whole answer. Beside calls there need not be any content."""
    reasoning = "".join(piece.reasoning for piece in pieces)
    text = "".join(piece.text for piece in pieces)
    calls = [_called(call) for piece in pieces for call in piece.calls]
    message: AnswerMessage = {"role": "assistant", "content": text or (None if calls else ""), "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _called(call: ToolCall) -> AnswerCall:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {
        "id": call_id(),
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }
