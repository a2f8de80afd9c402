"""POST /v1/responses: OpenAI's newer way to ask for text. Nothing is stored.

A stream is a sequence of named events around the text:

    response.created, response.in_progress, response.output_item.added, response.content_part.added,
    response.output_text.delta ...,
    response.output_text.done, response.content_part.done, response.output_item.done, response.completed
"""

import time
from collections.abc import Mapping
from typing import Any, Literal, NotRequired
from uuid import uuid4

import attrs
from starlette.requests import Request
from typing_extensions import TypedDict

from tokloom import ChatMessage, Event, GenerateRequest
from tokloom.serve.http.bodies import read_request
from tokloom.serve.http.chat import conversation
from tokloom.serve.http.errors import encode
from tokloom.serve.http.generation import Generation
from tokloom.serve.http.rendering import Counts
from tokloom.serve.http.requests import ResponseRequest
from tokloom.serve.http.service import Service
from tokloom.serve.http.structured import grammar_of
from tokloom.serve.tracing import trace_of


class OutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[str]


class OutputMessage(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: str
    content: list[OutputText]


class CachedTokens(TypedDict):
    cached_tokens: int


class ReasoningTokens(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class Incomplete(TypedDict):
    reason: str


class ResponseObject(TypedDict):
    id: str
    object: Literal["response"]
    created_at: int
    status: str
    error: None
    incomplete_details: Incomplete | None
    model: str
    output: list[OutputMessage]
    usage: ResponseUsage | None
    metadata: dict[str, str]
    instructions: str | None
    max_output_tokens: int | None
    temperature: float
    top_p: float
    tools: list[str]
    tool_choice: str
    parallel_tool_calls: bool
    previous_response_id: None


class ResponseEvent(TypedDict):
    """The data of one event; which fields it has depends on the type."""

    type: str
    sequence_number: int
    response: NotRequired[ResponseObject]
    item: NotRequired[OutputMessage]
    part: NotRequired[OutputText]
    item_id: NotRequired[str]
    output_index: NotRequired[int]
    content_index: NotRequired[int]
    delta: NotRequired[str]
    text: NotRequired[str]


async def responses(service: Service, request: Request) -> Generation:
    """Answer an input with text."""
    engine, section = service.engine(), service.section
    body = await read_request(request, ResponseRequest, limit=section.max_body_bytes, seconds=section.body_seconds)
    model = service.model(body.model)
    given = {name: getattr(body, name) for name in ("temperature", "top_p") if name in body.model_fields_set}
    sampling = attrs.evolve(
        engine.default_sampling,
        **given,
        max_tokens=service.context if body.max_output_tokens is None else body.max_output_tokens,
        grammar=grammar_of(None if body.text is None else body.text.format),
    )
    generate = GenerateRequest(
        messages=_messages(body),
        sampling=sampling,
        adapter=service.adapter(model),
        priority=body.priority,
        tenant=body.user,
        salt=body.cache_salt,
        trace=trace_of(request.scope["headers"]),
    )
    shown: dict[str, Any] = {
        "model": model,
        "metadata": body.metadata,
        "instructions": body.instructions or None,
        "max_output_tokens": body.max_output_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    return Generation(service, [generate], ResponseRendering(shown), stream=body.stream)


def _messages(body: ResponseRequest) -> tuple[ChatMessage, ...]:
    first = (ChatMessage("system", body.instructions),) if body.instructions else ()
    if isinstance(body.input, str):
        return (*first, ChatMessage("user", body.input))
    return (*first, *conversation(body.input))


class ResponseRendering:
    """One answer as a `response`, whole or as events. `shown`: what is repeated of the request."""

    def __init__(self, shown: Mapping[str, Any]) -> None:
        self._shown = dict(shown)
        self._id, self._item = f"resp_{uuid4().hex}", f"msg_{uuid4().hex}"
        self._created = int(time.time())
        self._counts = Counts()
        self._texts: list[str] = []
        self._reason = ""
        self._number = 0

    # -- streaming -----------------------------------------------------------------------------------------------------

    def chunk(self, choice: int, event: Event) -> bytes:
        data = b"" if self._number else self._begin()
        if event.text:
            self._texts.append(event.text)
            data += self._event("response.output_text.delta", **self._where(), delta=event.text)
        if event.finish_reason is not None:
            self._end(event)
        return data

    def _begin(self) -> bytes:
        empty: OutputMessage = {**self._message(), "content": [], "status": "in_progress"}
        response: ResponseObject = {**self.body(), "status": "in_progress", "output": [], "usage": None}
        response["incomplete_details"] = None
        return (
            self._event("response.created", response=response)
            + self._event("response.in_progress", response=response)
            + self._event("response.output_item.added", output_index=0, item=empty)
            + self._event("response.content_part.added", **self._where(), part=self._part(""))
        )

    def last(self) -> bytes:
        text = "".join(self._texts)
        status = self.body()["status"]
        return (
            self._event("response.output_text.done", **self._where(), text=text)
            + self._event("response.content_part.done", **self._where(), part=self._part(text))
            + self._event("response.output_item.done", output_index=0, item=self._message())
            + self._event(f"response.{status}", response=self.body())
        )

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = encode({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

    def _where(self) -> dict[str, Any]:
        return {"item_id": self._item, "output_index": 0, "content_index": 0}

    # -- one body ------------------------------------------------------------------------------------------------------

    def take(self, choice: int, event: Event) -> None:
        self._texts.append(event.text)
        if event.finish_reason is not None:
            self._end(event)

    def _end(self, event: Event) -> None:
        self._counts.add(event)
        self._reason = event.finish_reason or ""

    def body(self) -> ResponseObject:
        whole = self._reason == "stop"
        counts = self._counts
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": "completed" if whole else "incomplete",
            "error": None,
            "incomplete_details": None if whole else {"reason": _why(self._reason)},
            "model": self._shown["model"],
            "output": [self._message()],
            "usage": {
                "input_tokens": counts.prompt,
                "input_tokens_details": {"cached_tokens": counts.cached},
                "output_tokens": counts.output,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counts.prompt + counts.output,
            },
            "metadata": self._shown["metadata"],
            "instructions": self._shown["instructions"],
            "max_output_tokens": self._shown["max_output_tokens"],
            "temperature": self._shown["temperature"],
            "top_p": self._shown["top_p"],
            "tools": [],
            "tool_choice": "none",
            "parallel_tool_calls": False,
            "previous_response_id": None,
        }

    def _message(self) -> OutputMessage:
        return {
            "id": self._item,
            "type": "message",
            "role": "assistant",
            "status": "completed" if self._reason == "stop" else "incomplete",
            "content": [self._part("".join(self._texts))],
        }

    def _part(self, text: str) -> OutputText:
        return {"type": "output_text", "text": text, "annotations": []}


def _why(reason: str) -> str:
    """OpenAI's word for a finish reason that is not `stop`."""
    return "max_output_tokens" if reason == "length" else reason
