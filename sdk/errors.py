"""The one tree of errors that Tokloom raises on purpose.

Every error says what happened (`message`), what it happened to (`subject`: a file, key, request, plugin or tensor) and
what to do about it (`remedy`). `STATUS` is the only place where a class becomes a process exit code or an HTTP status.
"""

from typing import ClassVar, Final


class TokloomError(Exception):
    """Base of every deliberate error.

    Args:
        message: what happened, one sentence without a trailing full stop.
        subject: the file, key, request id, plugin or tensor it is about; may be empty.
        remedy: what the reader can do; may be empty.
    """

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, *, subject: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.subject = subject
        self.remedy = remedy

    def __str__(self) -> str:
        head = f"{self.subject}: {self.message}" if self.subject else self.message
        return f"{head}. {self.remedy}" if self.remedy else head

    def __reduce__(self) -> "tuple[object, ...]":
        return (_rebuild, (type(self), self.message, self.subject, self.remedy))


def _rebuild(cls: type[TokloomError], message: str, subject: str, remedy: str) -> TokloomError:
    return cls(message, subject=subject, remedy=remedy)


class ProfileError(TokloomError):
    """A profile file, an environment override or a `--set` is wrong."""

    code = "profile"


class CompositionError(TokloomError):
    """The named plugins are each fine but do not fit together, the model, or the device."""

    code = "composition"


class PluginFault(TokloomError):
    """A plugin broke its contract or raised. `subject` is `KIND.NAME`."""

    code = "plugin"


class CheckpointError(TokloomError):
    """A model file is missing, truncated, misshapen or of an unsupported type."""

    code = "checkpoint"


class RequestError(TokloomError):
    """One request is invalid; the engine goes on."""

    code = "request"


class ContextLengthError(RequestError):
    """The prompt does not fit the context; the message has both lengths."""

    code = "context_length_exceeded"


class CapacityError(TokloomError):
    """A bounded resource is full: the request may succeed later, or never where the text says so."""

    code = "capacity"


class OversizeError(CapacityError):
    """The request needs more than there is in all; it never succeeds here."""

    code = "oversize"


class ClosedError(CapacityError):
    """The engine takes no requests any more; another one may."""

    code = "closed"


#: class -> (process exit code, HTTP status). Subclasses inherit the nearest entry.
STATUS: Final[dict[type[TokloomError], tuple[int, int]]] = {
    TokloomError: (1, 500),
    ProfileError: (2, 500),
    CompositionError: (2, 500),
    PluginFault: (2, 500),
    CheckpointError: (2, 500),
    RequestError: (2, 400),
    CapacityError: (2, 429),
    OversizeError: (2, 400),
    ClosedError: (2, 503),
}


def exit_code(error: TokloomError) -> int:
    """The process exit code of `error`."""
    return _status(error)[0]


def http_status(error: TokloomError) -> int:
    """The HTTP status of `error`."""
    return _status(error)[1]


def _status(error: TokloomError) -> tuple[int, int]:
    return next(STATUS[cls] for cls in type(error).__mro__ if cls in STATUS)
