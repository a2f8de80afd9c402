"""From what a caller gives to what the core takes."""

import itertools
import secrets

from tokloom.api.types import GenerateRequest
from tokloom.sdk import ChatMessage, Request, RequestError, Scope, Tokenizer, TokenSegment

_PREFIX = secrets.token_hex(4)
_COUNTER = itertools.count(1)


def fresh_id() -> str:
    """An id that no other request of this process has."""
    return f"{_PREFIX}-{next(_COUNTER)}"


def prepare(request: GenerateRequest, tokenizer: Tokenizer | None) -> Request:
    """Tokenise and translate. Raises RequestError naming the field that is wrong."""
    request_id = request.request_id or fresh_id()
    subject = f"request {request_id!r}"
    given = [name for name in ("prompt", "token_ids", "messages") if getattr(request, name) is not None]
    if len(given) != 1:
        raise RequestError(
            f"{' and '.join(given) or 'neither prompt, token_ids nor messages'} given",
            subject=subject,
            remedy="Give exactly one of prompt, token_ids and messages",
        )
    for stop in request.stop:
        if not isinstance(stop, str) or not stop:
            raise RequestError(f"stop string {stop!r} is not text", subject=subject, remedy="Use non-empty strings")
    if request.stop and tokenizer is None:
        raise RequestError("stop strings need a tokenizer", subject=subject, remedy="Use stop_token_ids")
    return Request(
        request_id=request_id,
        segments=(TokenSegment(_ids(request, tokenizer, subject)),),
        sampling=request.sampling,
        task=request.task,
        priority=request.priority,
        tenant=request.tenant,
        objectives=request.objectives,
        scope=Scope(salt=request.salt),
    )


def _ids(request: GenerateRequest, tokenizer: Tokenizer | None, subject: str) -> tuple[int, ...]:
    if request.token_ids is not None:
        return tuple(request.token_ids)
    if tokenizer is None:
        raise RequestError("the model has no tokenizer", subject=subject, remedy="Send token_ids")
    if request.messages is not None:
        if not request.messages:
            raise RequestError("messages is empty", subject=subject, remedy="Send at least one message")
        return tuple(tokenizer.chat(request.messages, add_generation_prompt=True))
    text = request.prompt
    if not isinstance(text, str):
        raise RequestError(f"prompt is {type(text).__name__}", subject=subject, remedy="Send text")
    if not request.raw and request.task == "generate" and tokenizer.has_chat_template:
        return tuple(tokenizer.chat([ChatMessage("user", text)], add_generation_prompt=True))
    return tuple(tokenizer.encode(text, add_special=True))
