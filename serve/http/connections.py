"""Connections: uvicorn's HTTP protocol with what it lacks: time limits for headers and for reading, a bound on number."""

import asyncio
from typing import Any, ClassVar, Final

from attrs import frozen

from tokloom.serve.http.config import ServeSection
from tokloom.serve.http.errors import RETRY_AFTER, encode

#: bytes of a request's line and headers
_MAX_HEAD: Final = 64 << 10


@frozen
class Limits:
    """Seconds for headers to come and for a client to read, and open connections."""

    header_seconds: float
    write_seconds: float
    max_connections: int


def protocol_class(section: ServeSection) -> type[asyncio.Protocol]:
    """The protocol for one server; the faster parser if it is installed."""
    base: Any
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as base
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol as base
    limits = Limits(section.header_seconds, section.write_seconds, section.max_connections)
    made: type[asyncio.Protocol] = type("LimitedProtocol", (Limited, base), {"limits": limits})
    return made


class Limited:
    """Mixed into a protocol of uvicorn, whose attributes it names.

    A connection without a request in progress has `header_seconds` from its first byte (or its beginning) to the end
    of a request's headers; idling between requests is uvicorn's keep-alive time. Where the client does not read what
    was sent, the connection is cut after `write_seconds`.
    """

    limits: ClassVar[Limits]
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    connections: set[Any]
    cycle: Any

    _head: asyncio.TimerHandle | None = None
    _write: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        if len(self.connections) > self.limits.max_connections:
            self._refuse(503, "too many connections are open", "too_many_connections")
        else:
            self._arm_head()

    def connection_lost(self, error: Exception | None) -> None:
        self._disarm_head()
        self.resume_timer()
        super().connection_lost(error)  # type: ignore[misc]

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)  # type: ignore[misc]
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._disarm_head()
            return
        self._head_bytes += len(data)
        if self._head_bytes > _MAX_HEAD:
            self._refuse(431, "the headers are too long", "headers_too_long")
        elif self._head is None:
            self._arm_head()

    def send_400_response(self, message: str) -> None:
        """What uvicorn calls for bytes that are no HTTP."""
        self._refuse(400, "the request is not HTTP", "invalid_http")

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        if self._write is None:
            self._write = self.loop.call_later(self.limits.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self.resume_timer()
        super().resume_writing()  # type: ignore[misc]

    def resume_timer(self) -> None:
        """The client reads."""
        if self._write is not None:
            self._write.cancel()
            self._write = None

    def _arm_head(self) -> None:
        self._head = self.loop.call_later(self.limits.header_seconds, self._head_late)

    def _disarm_head(self) -> None:
        self._head_bytes = 0
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _head_late(self) -> None:
        self._head = None
        self._refuse(408, f"the headers did not come within {self.limits.header_seconds:g} seconds", "header_timeout")

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Answer and close, without a request to answer."""
        if self.transport.is_closing():
            return
        kind = "invalid_request_error" if status < 500 else "unavailable_error"
        body = encode({"error": {"message": message, "type": kind, "param": None, "code": code}})
        lines = [f"HTTP/1.1 {status} {code}", "content-type: application/json", f"content-length: {len(body)}"]
        lines += [f"retry-after: {RETRY_AFTER[status]}"] if status in RETRY_AFTER else []
        self.transport.write("\r\n".join([*lines, "connection: close", "", ""]).encode() + body)
        self.transport.close()
