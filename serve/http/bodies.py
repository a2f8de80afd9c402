"""Bodies: read within limits, parsed and checked; whatever comes, the refusal names what is wrong."""

import asyncio
import difflib
from collections.abc import Sequence
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import ClientDisconnect, Request

from tokloom.serve.http.conversations import ROLES
from tokloom.serve.http.errors import ClientGone, HttpError
from tokloom.serve.http.requests import EXPECTED, UNSUPPORTED

M = TypeVar("M", bound=BaseModel)
#: what is read and thrown away of a body that is refused, so that its sender gets to read why: a connection that is
#: closed with unread bytes is reset
DISCARD: Final = 1 << 20
_SHOWN: Final = 5
#: what pydantic says of a message whose role is none, or is not there
_TAGS: Final = frozenset({"union_tag_invalid", "union_tag_not_found"})
#: how pydantic calls the members of a union
_MEMBERS: Final = frozenset({"str", "int", "constrained-str", "constrained-int", "list", "none"})


async def read_request(request: Request, model: type[M], *, limit: int, seconds: float) -> M:
    """The body of a request as `model`. Raises HttpError 400, 408, 413 or 415, ClientGone."""
    _check_headers(request, limit)
    try:
        async with asyncio.timeout(seconds):
            body = await _read(request, limit)
    except TimeoutError:
        raise HttpError(408, f"the body did not come within {seconds:g} seconds", kind="body_timeout") from None
    except ClientDisconnect:
        raise ClientGone from None
    return parse(model, body)


def _check_headers(request: Request, limit: int) -> None:
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise _unsupported(f"the content type is {kind[:80]!r}", "Send application/json")
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise _unsupported(f"the content encoding is {encoding[:80]!r}", "Send it plain")
    length = request.headers.get("content-length", "")
    if length.isdigit() and len(length) < 20 and int(length) > limit and "expect" in request.headers:
        raise _too_long(limit)


async def _read(request: Request, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > limit:
            pieces.clear()
            if size > limit + DISCARD:
                break
        else:
            pieces.append(piece)
    if size > limit:
        raise _too_long(limit)
    return b"".join(pieces)


def _too_long(limit: int) -> HttpError:
    return HttpError(413, f"the body is longer than {limit} bytes", kind="request_too_large", remedy="Shorten it")


def _unsupported(message: str, remedy: str) -> HttpError:
    return HttpError(415, message, kind="unsupported_media_type", remedy=remedy)


def parse(model: type[M], body: bytes) -> M:
    """JSON as `model`; null stands for a field that was left out. Raises HttpError 400."""
    try:
        values = from_json(body, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise HttpError(400, f"the body is not JSON: {error}", kind="invalid_json") from None
    if not isinstance(values, dict):
        raise HttpError(400, "the body is no JSON object", kind="invalid_json")
    given = {key: value for key, value in values.items() if value is not None or key not in model.model_fields}
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise _refusal(model, error.errors(include_url=False, include_context=False)) from None


def _refusal(model: type[BaseModel], details: Sequence[ErrorDetails]) -> HttpError:
    """All that is wrong in one message. A field of several types has a detail for each: together they are one."""
    found: dict[str, list[str]] = {}
    kinds: dict[str, str] = {}
    for detail in details:
        path = _path(detail["loc"])
        if detail["type"] in _TAGS:
            path += ".role"
        field, name = path.rpartition(".")[2], _last_name(detail["loc"])
        unsupported = [step for step in detail["loc"] if step in UNSUPPORTED]
        if unsupported:
            text, kind = UNSUPPORTED[str(unsupported[0])], "unsupported_parameter"
        elif field in EXPECTED and (detail["type"] != "missing" or name != field):
            text, kind = f"expected {EXPECTED[field]}", "invalid_value"
        elif detail["type"] == "extra_forbidden":
            text, kind = _unknown(model, name, len(detail["loc"]) == 1), "unknown_parameter"
        elif detail["type"] == "union_tag_invalid":
            text, kind = f"expected one of {', '.join(ROLES)}", "invalid_value"
        elif detail["type"] in ("missing", "union_tag_not_found"):
            text, kind = "is missing", "missing_required_parameter"
        else:
            text, kind = _lower(detail["msg"]), "invalid_value"
        kinds.setdefault(path, kind)
        texts = found.setdefault(path, [])
        if text not in texts:
            texts.append(text)
    shown = [f"{path}: {', or '.join(texts)}" for path, texts in list(found.items())[:_SHOWN]]
    if len(found) > _SHOWN:
        shown.append(f"and {len(found) - _SHOWN} more")
    first = next(iter(found))
    return HttpError(400, "; ".join(shown), kind=kinds[first], param=first)


def _unknown(model: type[BaseModel], name: str, top: bool) -> str:
    near = difflib.get_close_matches(name[:64], model.model_fields, 1) if top else []
    return f"is no known field; did you mean {near[0]}?" if near else "is no known field"


def _lower(message: str) -> str:
    """pydantic's sentences begin with `Input should be`."""
    return message[:1].lower() + message[1:]


def _path(location: Sequence[int | str]) -> str:
    """`messages[0].content`, without the names of a union's members."""
    path = ""
    for before, step in zip(("", *location), location, strict=False):
        if isinstance(step, int):
            path += f"[{step}]"
        elif isinstance(before, int) and step in ROLES:
            continue
        elif _is_member(step) and path:
            break
        else:
            path += f".{step[:64]}" if path else step[:64]
    return path


def _is_member(step: str) -> bool:
    return "[" in step or step in _MEMBERS


def _last_name(location: Sequence[int | str]) -> str:
    names = [step for step in location if isinstance(step, str) and not _is_member(step)]
    return names[-1] if names else ""
