"""Trace contexts from what came beside a request: HTTP headers, or metadata of gRPC. Both have the same names."""

from collections.abc import Iterable
from typing import Any

from tokloom.sdk import TraceContext


def trace_of(pairs: Iterable[tuple[Any, Any]]) -> TraceContext | None:
    """From names in lower case and values, both text or bytes; None where there is no valid `traceparent`."""
    found: dict[str, list[str]] = {"traceparent": [], "tracestate": []}
    for name, value in pairs:
        values = found.get(_text(name))
        if values is not None:
            values.append(_text(value))
    return TraceContext.parse(found["traceparent"], found["tracestate"])


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
