"""What callers of the embedding API give and get."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import field, fields, frozen

from tokloom.core.checks import Checks
from tokloom.core.events import TokenLogprobs, Usage
from tokloom.sdk import (
    JSON,
    ChatMessage,
    FinishReason,
    Objectives,
    Pooling,
    RequestError,
    SamplingParams,
    Task,
    TokloomError,
    Tool,
    TraceContext,
)

__all__ = ["Event", "GenerateRequest", "Result", "TokenLogprobs", "Usage"]


_MESSAGE_KEYS: Final = tuple(item.name for item in fields(ChatMessage))


def _messages(value: Sequence[ChatMessage | Mapping[str, Any]] | None) -> tuple[ChatMessage, ...] | None:
    if value is None:
        return None
    made = []
    for index, message in enumerate(Checks("request").items("messages", value, "a list of messages")):
        if isinstance(message, ChatMessage):
            made.append(message)
            continue
        if not isinstance(message, Mapping):
            raise RequestError(
                f"message {index} is {type(message).__name__}",
                subject="request",
                remedy="Give a ChatMessage, or a mapping with role and content",
            )
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not isinstance(content, str):
            raise RequestError(
                f"message {index} needs the strings role and content", subject="request", remedy="Send both as text"
            )
        unknown = [key for key in message if key not in _MESSAGE_KEYS]
        if unknown:
            raise RequestError(
                f"message {index} has {unknown[0]!r}", subject="request", remedy=f"Known: {', '.join(_MESSAGE_KEYS)}"
            )
        made.append(ChatMessage(**message))
    return tuple(made)


def _tools(value: Sequence[Tool]) -> tuple[Tool, ...]:
    return Checks("request").items("tools", value, "a list of tools")


def _stops(value: str | Sequence[str]) -> tuple[str, ...]:
    """One string is one stop string, not its characters."""
    if isinstance(value, str):
        return (value,)
    return Checks("request").items("stop", value, "a string, or several")


@frozen(kw_only=True)
class GenerateRequest:
    """One request. Exactly one of `prompt`, `token_ids` and `messages` is given.

    Attributes:
        prompt: text; goes through the model's chat template as a user message unless `raw`.
        token_ids: ids, used as they are; any sequence of integers, arrays and tensors too.
        messages: a conversation for the chat template; mappings with role and content are accepted.
        raw: take `prompt` as text to continue.
        tools: functions that the model may call; the chat template shows them to it. `tokloom.api.formats` finds the
            calls in the answer.
        template_options: further variables of the chat template.
        shown_special: ids of special tokens whose text is part of the answer's; that of others is left out.
        sampling: see `tokloom.sdk.SamplingParams`.
        stop: strings that end the text; what matched is cut off unless `include_stop`. They are looked for from token
            `sampling.min_tokens` on. One string is accepted.
        task: `generate`; `score` for the log-probability of each prompt token; `embed` for one vector. `embed` takes no
            sampling parameters and no stop strings.
        pooling, normalize: of `embed`: `last` or `mean` (empty: the model's own way), and whether the vector is divided
            by its Euclidean length.
        adapter: name of the adapter to use, one of the engine's `adapters`; empty: none.
        request_id: empty takes a fresh one.
        salt: requests with different salts never share cached KV.
        objectives: service objectives; its `deadline` ends the request that many seconds after arrival.
        trace: the caller's span (`TraceContext.parse`), the parent of what observers record of this request.
    """

    prompt: str | None = None
    token_ids: Sequence[int] | None = None
    messages: tuple[ChatMessage, ...] | None = field(default=None, converter=_messages)
    raw: bool = False
    tools: tuple[Tool, ...] = field(default=(), converter=_tools)
    template_options: Mapping[str, JSON] = field(factory=dict)
    shown_special: frozenset[int] = frozenset()
    sampling: SamplingParams = field(factory=SamplingParams)
    stop: tuple[str, ...] = field(default=(), converter=_stops)
    include_stop: bool = False
    task: Task = "generate"
    pooling: Pooling = ""
    normalize: bool = True
    adapter: str = ""
    request_id: str = ""
    priority: int = 0
    tenant: str = ""
    salt: str = ""
    objectives: Objectives = field(factory=Objectives)
    trace: TraceContext | None = None


@frozen(kw_only=True)
class Event:
    """Progress of one of a request's sequences.

    Attributes:
        index: which of the request's `n` sequences.
        text: what is new; never half a character. Empty without a tokenizer.
        token_ids: committed since the last event.
        logprobs: one per token where `sampling.logprobs` asked for them.
        prompt_logprobs: once, where `sampling.prompt_logprobs` asked for them.
        embedding: on the last event of the task `embed`: float32 values.
        finish_reason: on the sequence's last event, as are `usage` and, where it failed, `error`.
    """

    request_id: str
    index: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    embedding: tuple[float, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    error: TokloomError | None = field(default=None, eq=False)


@frozen(kw_only=True)
class Result:
    """A finished sequence: all of its events together. `usage` has counts, and times in seconds since arrival."""

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage | None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    embedding: tuple[float, ...] = ()
    error: TokloomError | None = field(default=None, eq=False)
