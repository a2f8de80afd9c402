"""From what a caller gives to what the core takes."""

import itertools
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from types import MappingProxyType
from typing import Any, Final

from tokloom.api.conversations import check_conversation, check_text
from tokloom.api.types import GenerateRequest
from tokloom.core.checks import MAX_INTEGER, Checks
from tokloom.core.parameters import validate
from tokloom.core.requests import clean_objectives, clean_priority, clean_trace
from tokloom.core.shown import shown
from tokloom.sdk import (
    ChatMessage,
    Objectives,
    PluginFault,
    Request,
    RequestError,
    SamplingParams,
    Scope,
    Tokenizer,
    TokenSegment,
    TokloomError,
)

_PREFIX = secrets.token_hex(4)
_COUNTER = itertools.count(1)
_NO_ADAPTERS: Final[Mapping[str, str]] = MappingProxyType({})

#: field -> type, for what the core takes on trust
_TYPES: Final[dict[str, type]] = {
    "raw": bool,
    "include_stop": bool,
    "template_options": Mapping,
    "shown_special": frozenset,
    "task": str,
    "pooling": str,
    "normalize": bool,
    "adapter": str,
    "request_id": str,
    "tenant": str,
    "salt": str,
    "sampling": SamplingParams,
    "objectives": Objectives,
}


def fresh_id() -> str:
    """An id that no other request of this process has."""
    return f"{_PREFIX}-{next(_COUNTER)}"


def check(request: GenerateRequest, subject: str) -> None:
    """What can be checked without a model. Raises RequestError naming the field that is wrong."""
    given = [name for name in ("prompt", "token_ids", "messages") if getattr(request, name) is not None]
    if len(given) != 1:
        raise RequestError(
            f"{' and '.join(given) or 'neither prompt, token_ids nor messages'} given",
            subject=subject,
            remedy="Give exactly one of prompt, token_ids and messages",
        )
    for name, kind in _TYPES.items():
        value = getattr(request, name)
        if not isinstance(value, kind):
            raise RequestError(f"{name} is {shown(value)}", subject=subject, remedy=f"Give {name} a {kind.__name__}")
    if request.prompt is not None:
        check_text(request.prompt, "prompt", subject)
        if not request.prompt:
            raise RequestError("prompt is empty", subject=subject, remedy="Give at least one character")
    check_conversation(request, subject)
    for stop in request.stop:
        if not isinstance(stop, str) or not stop:
            raise RequestError(
                f"stop string {shown(stop)} is not text", subject=subject, remedy="Use non-empty strings"
            )
    validate(request.sampling, MAX_INTEGER, subject)
    clean_priority(request.priority, Checks(subject))
    clean_objectives(request.objectives, Checks(subject))
    clean_trace(request.trace, Checks(subject))


def uses_template(request: GenerateRequest, tokenizer: Tokenizer | None) -> bool:
    """Whether the prompt goes through the chat template."""
    if request.messages is not None:
        return True
    if request.prompt is None or request.raw or request.task != "generate" or tokenizer is None:
        return False
    return bool(tokenizer.chat_template)


def prepare(
    request: GenerateRequest, tokenizer: Tokenizer | None, adapters: Mapping[str, str] = _NO_ADAPTERS
) -> Request:
    """Check, tokenise and translate; may take long for a long prompt. Raises RequestError naming what is wrong.

    `adapters`: name -> digest of those that are loaded.
    """
    if not isinstance(request, GenerateRequest):
        raise RequestError(
            f"the request is {type(request).__name__}", remedy="Give a GenerateRequest; its prompt takes text"
        )
    unnamed = isinstance(request.request_id, str) and not request.request_id
    subject = "request" if unnamed else f"request {shown(request.request_id)}"
    check(request, subject)
    if request.stop and tokenizer is None:
        raise RequestError("stop strings need a tokenizer", subject=subject, remedy="Use stop_token_ids")
    if request.stop and request.task == "embed":
        raise RequestError("stop is set and the task is embed", subject=subject, remedy="Leave stop empty")
    scope = Scope(salt=request.salt, adapter=_digest(request.adapter, adapters, subject))
    return Request(
        request_id=request.request_id or fresh_id(),
        segments=(TokenSegment(_ids(request, tokenizer, subject)),),
        sampling=request.sampling,
        task=request.task,
        pooling=request.pooling,
        normalize=request.normalize,
        priority=request.priority,
        tenant=request.tenant,
        objectives=request.objectives,
        scope=scope,
        chat=uses_template(request, tokenizer),
        trace=request.trace,
    )


def _digest(name: str, adapters: Mapping[str, str], subject: str) -> str:
    if not name:
        return ""
    if name not in adapters:
        raise RequestError(
            f"no adapter is called {shown(name)}",
            subject=subject,
            remedy=f"Known adapters: {', '.join(sorted(adapters)) or 'none; name them in [adapters] of the profile'}",
        )
    return adapters[name]


def _ids(request: GenerateRequest, tokenizer: Tokenizer | None, subject: str) -> tuple[int, ...]:
    if request.token_ids is not None:
        _without_template(request, subject)
        return _given_ids(request.token_ids, subject)
    if tokenizer is None:
        raise RequestError("the model has no tokenizer", subject=subject, remedy="Send token_ids")
    if not uses_template(request, tokenizer):
        _without_template(request, subject)
        text = request.prompt or ""
        return _guarded(lambda: tokenizer.encode(text, add_special=True), subject)
    if not tokenizer.chat_template:
        raise RequestError("the model has no chat template", subject=subject, remedy="Send prompt or token_ids")
    messages = request.messages or (ChatMessage("user", request.prompt or ""),)
    tools, options = request.tools, request.template_options
    return _guarded(lambda: tokenizer.chat(messages, tools=tools, options=options, add_generation_prompt=True), subject)


def _without_template(request: GenerateRequest, subject: str) -> None:
    """Nobody would show them to the model."""
    for name in ("tools", "template_options"):
        if getattr(request, name):
            raise RequestError(
                f"{name} are for the chat template, and this prompt goes through none",
                subject=subject,
                remedy="Give messages, to a model with a chat template",
            )


def _given_ids(values: Any, subject: str) -> tuple[int, ...]:
    """Anything whose items are integers: lists, arrays, tensors."""
    try:
        items = values.tolist() if hasattr(values, "tolist") else values
        if isinstance(items, str | bytes) or not isinstance(items, Iterable):
            raise TypeError("it is no sequence")
        given = tuple(items)
    except Exception as error:
        raise RequestError(
            f"token_ids is {type(values).__name__} and cannot be read: {error}",
            subject=subject,
            remedy="Give a flat sequence of ids",
        ) from None
    return tuple(_id(position, value, subject) for position, value in enumerate(given))


def _id(position: int, value: Any, subject: str) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError("it is a boolean")
        return index(value)
    except Exception as error:
        raise RequestError(
            f"token_ids[{position}] is no integer: {error}", subject=subject, remedy="Give a flat sequence of ids"
        ) from None


def _guarded(encode: Callable[[], Sequence[int]], subject: str) -> tuple[int, ...]:
    """A tokenizer is a plugin's: whatever it raises ends this request only."""
    try:
        return tuple(encode())
    except TokloomError:
        raise
    except Exception as error:
        raise PluginFault(f"the tokenizer raised {type(error).__name__}: {error}", subject=subject) from error
