"""Errors as OpenAI's clients expect them: one table from classes and statuses to bodies."""

import json
from typing import Any, Final

from tokloom.sdk import CapacityError, ClosedError, ContextLengthError, OversizeError, RequestError, TokloomError
from tokloom.sdk.errors import http_status

#: status -> `error.type`; others below 500 are invalid_request_error, those above server_error
_TYPES: Final = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "unavailable_error",
}
#: class -> `error.code`; subclasses inherit the nearest entry
_CODES: Final[dict[type[TokloomError], str]] = {
    ContextLengthError: "context_length_exceeded",
    RequestError: "invalid_value",
    OversizeError: "request_too_large",
    ClosedError: "shutting_down",
    CapacityError: "queue_full",
    TokloomError: "internal_error",
}
#: seconds that a client is told to wait
RETRY_AFTER: Final = {429: "1", 503: "5"}


class HttpError(TokloomError):
    """A refusal that this server decides itself.

    Args:
        status: HTTP status.
        kind: `error.code`.
        param: the field it is about, or None.
        headers: further response headers.
    """

    code = "http"

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str,
        param: str | None = None,
        headers: dict[str, str] | None = None,
        remedy: str = "",
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.status = status
        self.kind = kind
        self.param = param
        self.headers = headers or {}


class ClientGone(Exception):
    """The client closed the connection: there is nobody to answer."""


def status_of(error: Exception) -> int:
    """The HTTP status."""
    if isinstance(error, HttpError):
        return error.status
    return http_status(error) if isinstance(error, TokloomError) else 500


def headers_of(error: Exception) -> dict[str, str]:
    """Response headers beyond the usual."""
    status = status_of(error)
    own = dict(error.headers) if isinstance(error, HttpError) else {}
    if status in RETRY_AFTER:
        own.setdefault("retry-after", RETRY_AFTER[status])
    return own


def body_of(error: Exception, request_id: str) -> dict[str, Any]:
    """OpenAI's error object. What went wrong inside the server is for its log, not for clients."""
    status = status_of(error)
    if status == 500 or not isinstance(error, TokloomError):
        message = f"the server failed; its log says why under request id {request_id}"
        return _error(message, "server_error", "internal_error", None)
    message = f"{error.message}. {error.remedy}" if error.remedy else error.message
    kind = error.kind if isinstance(error, HttpError) else _code(error)
    param = error.param if isinstance(error, HttpError) else None
    default = "server_error" if status >= 500 else "invalid_request_error"
    return _error(message, _TYPES.get(status, default), kind, param)


def _code(error: TokloomError) -> str:
    return next(_CODES[cls] for cls in type(error).__mro__ if cls in _CODES)


def _error(message: str, kind: str, code: str, param: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def encode(body: object) -> bytes:
    """JSON; what is no number in JSON is an error here, not at the client."""
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
