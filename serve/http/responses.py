"""POST /v1/responses: OpenAI's newer way to ask for text. Nothing is stored.

A stream is a sequence of named events around the text; what the model thinks before comes as an item of its own:

    response.created, response.in_progress,
    response.output_item.added, response.reasoning_text.delta ...,
    response.reasoning_text.done, response.output_item.done,
    response.output_item.added, response.content_part.added, response.output_text.delta ...,
    response.output_text.done, response.content_part.done, response.output_item.done, response.completed
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Literal, NotRequired
from uuid import uuid4

import attrs
from starlette.requests import Request
from typing_extensions import TypedDict

from tokloom import ChatMessage, Event, GenerateRequest
from tokloom.api.formats import Piece, ToolUse
from tokloom.serve.http.bodies import read_request
from tokloom.serve.http.conversations import spoken
from tokloom.serve.http.errors import encode
from tokloom.serve.http.generation import Generation
from tokloom.serve.http.rendering import Counts
from tokloom.serve.http.requests import ResponseRequest
from tokloom.serve.http.service import Service
from tokloom.serve.http.structured import grammar_of
from tokloom.serve.http.taken_apart import TakenApart
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


class ReasoningText(TypedDict):
    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(TypedDict):
    id: str
    type: Literal["reasoning"]
    status: str
    summary: list[str]
    content: list[ReasoningText]


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
    output: list[OutputReasoning | OutputMessage]
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
    item: NotRequired[OutputReasoning | OutputMessage]
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
    answers, tokenizer = service.answer_format(), service.tokenizer()
    generate, make = await asyncio.to_thread(answers.prepare, generate, ToolUse())
    parts = TakenApart(make, answers.end_of_reasoning, tokenizer)
    return Generation(service, [generate], ResponseRendering(shown, parts), stream=body.stream)


def _messages(body: ResponseRequest) -> tuple[ChatMessage, ...]:
    first = (ChatMessage("system", body.instructions),) if body.instructions else ()
    if isinstance(body.input, str):
        return (*first, ChatMessage("user", body.input))
    return (*first, *spoken(body.input))


class ResponseRendering:
    """One answer as a `response`, whole or as events. `shown`: what is repeated of the request."""

    def __init__(self, shown: Mapping[str, Any], parts: TakenApart) -> None:
        self._shown = dict(shown)
        self._parts = parts
        self._id, self._item, self._thought = f"resp_{uuid4().hex}", f"msg_{uuid4().hex}", f"rs_{uuid4().hex}"
        self._created = int(time.time())
        self._counts = Counts()
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._open: Literal["", "reasoning", "message"] = ""
        self._reason = ""
        self._number = 0

    # -- streaming -----------------------------------------------------------------------------------------------------

    def chunk(self, choice: int, event: Event) -> bytes:
        data = b"" if self._number else self._begin()
        piece = self._take(choice, event)
        if piece.reasoning:
            data += self._enter("reasoning")
            data += self._event("response.reasoning_text.delta", **self._where(), delta=piece.reasoning)
        if piece.text:
            data += self._enter("message")
            data += self._event("response.output_text.delta", **self._where(), delta=piece.text)
        return data

    def _begin(self) -> bytes:
        response: ResponseObject = {**self.body(), "status": "in_progress", "output": [], "usage": None}
        response["incomplete_details"] = None
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def _enter(self, kind: Literal["reasoning", "message"]) -> bytes:
        """Begin an item, if it is not the one that is open."""
        if self._open == kind:
            return b""
        data = self._leave()
        self._open = kind
        if kind == "reasoning":
            thought: OutputReasoning = {**self._thinking(), "content": [], "status": "in_progress"}
            return data + self._event("response.output_item.added", output_index=0, item=thought)
        message: OutputMessage = {**self._message(), "content": [], "status": "in_progress"}
        return (
            data
            + self._event("response.output_item.added", output_index=self._index(), item=message)
            + self._event("response.content_part.added", **self._where(), part=self._part(""))
        )

    def _leave(self) -> bytes:
        """End the item that is open."""
        if not self._open:
            return b""
        if self._open == "reasoning":
            text = "".join(self._reasoning)
            return self._event("response.reasoning_text.done", **self._where(), text=text) + self._event(
                "response.output_item.done", output_index=0, item=self._thinking()
            )
        text = "".join(self._texts)
        return (
            self._event("response.output_text.done", **self._where(), text=text)
            + self._event("response.content_part.done", **self._where(), part=self._part(text))
            + self._event("response.output_item.done", output_index=self._index(), item=self._message())
        )

    def last(self) -> bytes:
        data = self._enter("message") + self._leave()
        return data + self._event(f"response.{self.body()['status']}", response=self.body())

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = encode({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

    def _index(self) -> int:
        """Of the message among the items."""
        return 1 if self._reasoning else 0

    def _where(self) -> dict[str, Any]:
        """The item that is open."""
        if self._open == "reasoning":
            return {"item_id": self._thought, "output_index": 0, "content_index": 0}
        return {"item_id": self._item, "output_index": self._index(), "content_index": 0}

    # -- one body ------------------------------------------------------------------------------------------------------

    def take(self, choice: int, event: Event) -> None:
        self._take(choice, event)

    def _take(self, choice: int, event: Event) -> Piece:
        piece = self._parts.piece(choice, event)
        if piece.text:
            self._texts.append(piece.text)
        if piece.reasoning:
            self._reasoning.append(piece.reasoning)
        if event.finish_reason is not None:
            self._counts.add(event)
            self._reason = event.finish_reason
        return piece

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
            "output": [self._thinking(), self._message()] if self._reasoning else [self._message()],
            "usage": {
                "input_tokens": counts.prompt,
                "input_tokens_details": {"cached_tokens": counts.cached},
                "output_tokens": counts.output,
                "output_tokens_details": {"reasoning_tokens": self._parts.reasoning_tokens},
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

    def _thinking(self) -> OutputReasoning:
        content: list[ReasoningText] = [{"type": "reasoning_text", "text": "".join(self._reasoning)}]
        return {"id": self._thought, "type": "reasoning", "status": "completed", "summary": [], "content": content}

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
