"""Errors as gRPC statuses: one table from classes."""

from typing import Final

import grpc

from tokloom.sdk import CapacityError, ClosedError, OversizeError, RequestError, TokloomError

#: class -> status; subclasses inherit the nearest entry
_STATUS: Final[dict[type[TokloomError], grpc.StatusCode]] = {
    RequestError: grpc.StatusCode.INVALID_ARGUMENT,
    OversizeError: grpc.StatusCode.INVALID_ARGUMENT,
    ClosedError: grpc.StatusCode.UNAVAILABLE,
    CapacityError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TokloomError: grpc.StatusCode.INTERNAL,
}
#: milliseconds after which to try again
_PUSHBACK: Final = {grpc.StatusCode.RESOURCE_EXHAUSTED: "1000", grpc.StatusCode.UNAVAILABLE: "5000"}
#: longest text in metadata: headers are bounded, messages of errors are not
_LONGEST: Final = 2048


def status_of(error: Exception) -> grpc.StatusCode:
    """The status that says what kind of error it is."""
    if not isinstance(error, TokloomError):
        return grpc.StatusCode.INTERNAL
    return next(_STATUS[cls] for cls in type(error).__mro__ if cls in _STATUS)


def details_of(error: Exception) -> str:
    """What happened; of errors that nobody foresaw, nothing is told."""
    if not isinstance(error, TokloomError):
        return "an internal error"
    return str(error)[:_LONGEST]


def trailers_of(error: Exception) -> tuple[tuple[str, str | bytes], ...]:
    """Trailing metadata: code, subject, remedy, when to try again."""
    found: list[tuple[str, str | bytes]] = []
    if isinstance(error, TokloomError):
        found.append(("tokloom-code", error.code))
        for name, text in (("subject", error.subject), ("remedy", error.remedy)):
            if text:
                found.append((f"tokloom-{name}-bin", text[:_LONGEST].encode("utf-8", "replace")))
    pushback = _PUSHBACK.get(status_of(error))
    if pushback is not None:
        found.append(("grpc-retry-pushback-ms", pushback))
    return tuple(found)
