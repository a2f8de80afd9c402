"""Messages of `tokloom.v1` to and from the values of the embedding API."""

from collections.abc import Sequence
from typing import Any, Final

import attrs

from tokloom import ChatMessage, Event, GenerateRequest, SamplingParams, TokenLogprobs
from tokloom.sdk import GrammarSpec, Objectives, RequestError, Task, TraceContext
from tokloom.serve.grpc import messages

_TASKS: Final[dict[int, Task]] = {0: "generate", 1: "generate", 2: "score", 3: "embed"}


def to_request(message: Any, seconds: float | None, trace: TraceContext | None = None) -> GenerateRequest:
    """The request that a `GenerateRequest` message asks for; `seconds` are left of the call's deadline.
    `trace`: what its metadata says.

    Raises RequestError naming the field. What values may be is the engine's to check.
    """
    kind = message.WhichOneof("prompt")
    if kind is None:
        raise RequestError("the request has no prompt", subject="prompt", remedy="Set text, token_ids or messages")
    if message.task not in _TASKS:
        raise RequestError(f"task {message.task} is not known", subject="task", remedy="Use a value of the enum Task")
    given: dict[str, Any] = {}
    if kind == "text":
        given["prompt"] = message.text
    elif kind == "token_ids":
        given["token_ids"] = tuple(message.token_ids.ids)
    else:
        given["messages"] = tuple(ChatMessage(item.role, item.content) for item in message.messages.messages)
    return GenerateRequest(
        **given,
        raw=message.raw,
        sampling=_sampling(message.sampling),
        stop=tuple(message.stop),
        include_stop=message.include_stop,
        task=_TASKS[message.task],
        pooling=message.pooling,
        normalize=not message.unnormalized,
        adapter=message.adapter,
        request_id=message.request_id,
        priority=message.priority,
        tenant=message.tenant,
        salt=message.salt,
        objectives=Objectives(deadline=None if seconds is None else max(seconds, 1e-9)),
        trace=trace,
    )


def _sampling(message: Any) -> SamplingParams:
    """Fields that are set; their names are those of SamplingParams."""
    values: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.name == "logit_bias":
            values[field.name] = dict(value)
        elif field.name == "bad_words":
            values[field.name] = tuple(tuple(item.ids) for item in value)
        elif field.name == "grammar":
            values[field.name] = GrammarSpec(value.syntax, value.text)
        elif field.name == "stop_token_ids":
            values[field.name] = tuple(value)
        else:
            values[field.name] = value
    return SamplingParams(**values)


def to_message(event: Event) -> Any:
    """The `GenerateEvent` of an event; its error becomes the call's status."""
    return messages.GenerateEvent(
        request_id=event.request_id,
        index=event.index,
        text=event.text,
        token_ids=event.token_ids,
        logprobs=_logprobs(event.logprobs),
        prompt_logprobs=_logprobs(event.prompt_logprobs),
        embedding=event.embedding,
        finish_reason=event.finish_reason or "",
        usage=None if event.usage is None else attrs.asdict(event.usage),
    )


def _logprobs(values: Sequence[TokenLogprobs]) -> list[dict[str, Any]]:
    return [
        {
            "token": item.token,
            "logprob": item.logprob,
            "top": [{"token": token, "logprob": logprob} for token, logprob in item.top],
        }
        for item in values
    ]
