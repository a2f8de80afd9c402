"""Senders: one payload to a collector, once. They read no variable of the environment."""

import contextlib
import gzip
import http.client
import socket
import ssl
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from time import monotonic
from typing import Final, Protocol
from urllib.parse import urlsplit

from attrs import frozen
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tokloom.sdk import CompositionError

#: bytes of an answer that are read
_MOST: Final = 1 << 20
#: HTTP statuses after which the same may be sent again, by the specification of OTLP
_AGAIN: Final = frozenset((429, 502, 503, 504))
_METHOD: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


class Verdict(Enum):
    """`again`: the collector may take the same later."""

    TAKEN = "taken"
    AGAIN = "again"
    REFUSED = "refused"


@frozen
class Answer:
    """What became of a payload.

    Attributes:
        refused: spans of it that the collector did not want, though it took the rest.
        after: seconds the collector asks to wait for; negative: it does not say.
    """

    verdict: Verdict
    reason: str = ""
    refused: int = 0
    after: float = -1.0


class Sender(Protocol):
    """Used by one thread, but for `close`."""

    def send(self, payload: bytes, timeout: float) -> Answer:
        """Send a serialised `ExportTraceServiceRequest`. Raises nothing."""
        ...

    def close(self) -> None:
        """End what is being sent, from any thread. Idempotent."""
        ...


class HttpSender:
    """OTLP over HTTP/1.1 with binary protobuf; the connection is kept. Proxies are not used."""

    def __init__(self, endpoint: str, headers: Mapping[str, str], ca_file: str, *, compress: bool) -> None:
        parts = urlsplit(endpoint)
        assert parts.hostname is not None
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path if parts.path not in ("", "/") else "/v1/traces"
        self._tls = _tls(ca_file) if parts.scheme == "https" else None
        self._compress = compress
        self._headers = {**headers, "content-type": "application/x-protobuf", "user-agent": "tokloom"}
        if compress:
            self._headers["content-encoding"] = "gzip"
        self._connection: http.client.HTTPConnection | None = None
        self._closed = False

    def send(self, payload: bytes, timeout: float) -> Answer:
        body = gzip.compress(payload, 1) if self._compress else payload
        deadline = monotonic() + timeout
        fresh = self._connection is None
        try:
            return self._post(body, deadline)
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            if fresh or isinstance(error, TimeoutError) or monotonic() >= deadline:
                return Answer(Verdict.AGAIN, _said(error))
        try:  # the connection may have been closed while it idled
            return self._post(body, deadline)
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            return Answer(Verdict.AGAIN, _said(error))

    def _post(self, body: bytes, deadline: float) -> Answer:
        connection = self._connect(deadline)
        connection.request("POST", self._path, body, self._headers)
        response = connection.getresponse()
        data = _read(response, deadline)
        if not response.isclosed():
            self._drop()
        status = response.status
        if 200 <= status < 300:
            return _taken(data)
        reason = f"status {status}"
        return (
            Answer(Verdict.AGAIN, reason, after=_seconds(response))
            if status in _AGAIN
            else Answer(Verdict.REFUSED, reason)
        )

    def _connect(self, deadline: float) -> http.client.HTTPConnection:
        left = max(deadline - monotonic(), 0.001)
        connection = self._connection
        if connection is None:
            if self._tls is None:
                connection = http.client.HTTPConnection(self._host, self._port, timeout=left)
            else:
                connection = http.client.HTTPSConnection(self._host, self._port, timeout=left, context=self._tls)
            self._connection = connection
            connection.connect()
        if self._closed:
            raise ConnectionAbortedError("the observer is closed")
        if connection.sock is not None:
            connection.sock.settimeout(left)
        return connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        self._closed = True
        connection = self._connection
        sock = None if connection is None else connection.sock
        if sock is not None:
            with contextlib.suppress(OSError):  # wakes the thread that waits for an answer; it closes the socket
                sock.shutdown(socket.SHUT_RDWR)


class GrpcSender:
    """OTLP over gRPC."""

    def __init__(self, endpoint: str, headers: Mapping[str, str], ca_file: str, *, compress: bool) -> None:
        import grpc

        parts = urlsplit(endpoint)
        secure = parts.scheme == "https"
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        target = f"{host}:{parts.port or (443 if secure else 4317)}"
        options: Sequence[tuple[str, int]] = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
        self._grpc = grpc
        compression = grpc.Compression.Gzip if compress else grpc.Compression.NoCompression
        if secure:
            roots = _certificates(ca_file) if ca_file else None
            credentials = grpc.ssl_channel_credentials(roots)
            self._channel = grpc.secure_channel(target, credentials, options, compression)
        else:
            self._channel = grpc.insecure_channel(target, options, compression)
        self._metadata = tuple(headers.items())
        self._call = self._channel.unary_unary(_METHOD)
        codes = grpc.StatusCode
        self._again = {codes.CANCELLED, codes.DEADLINE_EXCEEDED, codes.ABORTED, codes.OUT_OF_RANGE}
        self._again |= {codes.UNAVAILABLE, codes.DATA_LOSS}

    def send(self, payload: bytes, timeout: float) -> Answer:
        try:
            return _taken(self._call(payload, timeout=timeout, metadata=self._metadata))
        except self._grpc.RpcError as error:
            code = error.code()
            again = code in self._again or (code is self._grpc.StatusCode.RESOURCE_EXHAUSTED and _may_retry(error))
            return Answer(Verdict.AGAIN if again else Verdict.REFUSED, f"status {code.name}")
        except ValueError:  # the channel is closed
            return Answer(Verdict.REFUSED, "the observer is closed")

    def close(self) -> None:
        self._channel.close()


def _may_retry(error: object) -> bool:
    """Whether a collector that is full says that it will not always be: it sends google.rpc.RetryInfo."""
    trailers = getattr(error, "trailing_metadata", tuple)() or ()
    return any(
        name == "grpc-status-details-bin" and isinstance(value, bytes) and b"google.rpc.RetryInfo" in value
        for name, value in trailers
    )


def _taken(data: bytes) -> Answer:
    """Taken, if not all of it; an answer that cannot be read says no less."""
    try:
        partial = ExportTraceServiceResponse.FromString(data).partial_success
    except DecodeError:
        return Answer(Verdict.TAKEN)
    return Answer(Verdict.TAKEN, refused=max(partial.rejected_spans, 0))


def _read(response: http.client.HTTPResponse, deadline: float) -> bytes:
    parts, size = [], 0
    while size < _MOST and (part := response.read1(65536)):
        parts.append(part)
        size += len(part)
        if monotonic() >= deadline:
            raise TimeoutError("the answer takes too long")
    return b"".join(parts)


def _seconds(response: http.client.HTTPResponse) -> float:
    """`Retry-After` in seconds; a date is not read."""
    value = response.getheader("retry-after", "").strip()
    return float(value) if value.isascii() and value.isdigit() and len(value) < 7 else -1.0


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _tls(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise _unreadable(ca_file, error) from None


def _certificates(ca_file: str) -> bytes:
    try:
        return Path(ca_file).read_bytes()
    except OSError as error:
        raise _unreadable(ca_file, error) from None


def _unreadable(ca_file: str, error: Exception) -> CompositionError:
    return CompositionError(
        f"ca_file {ca_file} cannot be used: {error}", subject="observer.otel", remedy="Give a PEM file"
    )
