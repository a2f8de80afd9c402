"""TraceContext: the span of a caller that a request belongs to, as W3C Trace Context writes it.

Source: https://www.w3.org/TR/trace-context/ (level 1, with the forward compatibility that it asks for).
"""

import re
from collections.abc import Sequence
from typing import Final

from attrs import frozen

from tokloom.sdk.errors import RequestError

#: bit of `flags`: the caller records its trace
SAMPLED: Final = 1
#: members of a `tracestate`, and characters of all
_MOST_MEMBERS: Final = 32
_LONGEST_STATE: Final = 8192

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII | re.DOTALL)
_KEY = r"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
_VALUE = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_MEMBER = re.compile(f"({_KEY})=({_VALUE})", re.ASCII)


@frozen
class TraceContext:
    """Where a request stands in its caller's trace. Raises RequestError for what no header could say.

    Attributes:
        trace_id: 32 hexadecimal digits, lower case, not all zero.
        span_id: of the caller's span, the parent of whatever is recorded here: 16 such digits.
        flags: 0 to 255; the lowest bit says that the caller records.
        state: `tracestate`, well-formed or empty.
    """

    trace_id: str
    span_id: str
    flags: int = 0
    state: str = ""

    def __attrs_post_init__(self) -> None:
        written = f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}" if isinstance(self.flags, int) else ""
        if _read_parent(written) is None or not isinstance(self.state, str) or _read_state([self.state]) != self.state:
            raise RequestError(
                "these are no trace context",
                subject="trace",
                remedy="Make it with TraceContext.parse, from the headers traceparent and tracestate",
            )

    @property
    def sampled(self) -> bool:
        """Whether the caller records its trace."""
        return bool(self.flags & SAMPLED)

    @classmethod
    def parse(cls, parents: Sequence[str], states: Sequence[str] = ()) -> "TraceContext | None":
        """From the values of all headers `traceparent` and `tracestate`, in order.

        None unless there is exactly one `traceparent` and it is well-formed: then the request begins a trace of its
        own. A `tracestate` that is not well-formed is dropped, and the parent stays.
        """
        found = _read_parent(parents[0].strip(" \t")) if len(parents) == 1 else None
        return None if found is None else cls(*found, _read_state(states))


def _read_parent(text: str) -> tuple[str, str, int] | None:
    match = _PARENT.fullmatch(text)
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    if not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return trace_id, span_id, int(flags, 16) if version == "00" else int(flags, 16) & SAMPLED


def _read_state(values: Sequence[str]) -> str:
    """All members in order, joined by commas; empty if any of them is wrong."""
    text = ",".join(values)
    members = [member.strip(" \t") for member in text.split(",")] if len(text) <= _LONGEST_STATE else []
    members = [member for member in members if member]
    matches = [_MEMBER.fullmatch(member) for member in members]
    keys = {match[1] for match in matches if match is not None}
    if len(members) > _MOST_MEMBERS or len(keys) < len(members):
        return ""
    return ",".join(members)
