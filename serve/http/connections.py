"""Connections: uvicorn's HTTP protocol with what it lacks: time limits for headers and for reading, a number."""

import asyncio
from typing import ClassVar, Final

from attrs import frozen
from uvicorn.protocols.http.h11_impl import H11Protocol

from tokloom.serve.http.config import ServeSection
from tokloom.serve.http.errors import RETRY_AFTER, encode

#: bytes of a request's line and headers
MAX_HEAD: Final = 64 << 10


@frozen
class Limits:
    """Seconds for headers to come and for a client to read, and open connections."""

    header_seconds: float
    write_seconds: float
    max_connections: int


def protocol_class(section: ServeSection) -> type[asyncio.Protocol]:
    """The protocol for one server."""
    limits = Limits(section.header_seconds, section.write_seconds, section.max_connections)
    made: type[asyncio.Protocol] = type("LimitedProtocol", (Limited,), {"limits": limits})
    return made


class Limited(H11Protocol):
    """A connection without a request in progress has `header_seconds` from its first byte (or its beginning) to the end
    of a request's headers; idling between requests is uvicorn's keep-alive time. Where the client does not read what
    was sent, the connection is cut after `write_seconds`.
    """

    limits: ClassVar[Limits]
    _head: asyncio.TimerHandle | None = None
    _write: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            self._refuse(503, "too many connections are open", "too_many_connections")
        else:
            self._arm_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm_head()
        self._disarm_write()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._disarm_head()
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD:
            self._refuse(431, "the headers are too long", "headers_too_long")
        elif self._head is None:
            self._arm_head()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls for bytes that are no HTTP."""
        self._refuse(400, "the request is not HTTP", "invalid_http")

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write is None:
            self._write = self.loop.call_later(self.limits.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._disarm_write()
        super().resume_writing()

    def _disarm_write(self) -> None:
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
