"""Collectors that keep what they are sent, over HTTP and over gRPC, and that can be made slow, full or unable."""

import gzip
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

METHOD = "opentelemetry.proto.collector.trace.v1.TraceService"


class Collector:
    """What was sent, and how it answers.

    Attributes:
        url: where it listens.
        resources: resource attributes of each export.
        headers: of each export, names in lower case.
        statuses: what the next exports are answered with, HTTP statuses or gRPC codes; then all is well.
        refuse: spans of each export that it says it did not want.
        gate: it answers only while this is set.
    """

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.statuses: list[Any] = []
        self.refuse = 0
        self.gate = threading.Event()
        self.gate.set()
        self.asked = threading.Semaphore(0)
        self._changed = threading.Condition()

    def take(self, data: bytes, headers: dict[str, str], path: str = "") -> Any:
        """The status to answer with, None: well."""
        self.asked.release()
        self.gate.wait(60)
        with self._changed:
            self.headers.append(headers)
            self.paths.append(path)
            status = self.statuses.pop(0) if self.statuses else None
            if status is None:
                message = ExportTraceServiceRequest.FromString(data)
                for resource in message.resource_spans:
                    self.resources.append(plain(resource.resource.attributes))
                    for scope in resource.scope_spans:
                        self.spans += scope.spans
            self._changed.notify_all()
            return status

    def answer(self) -> bytes:
        partial = ExportTracePartialSuccess(rejected_spans=self.refuse)
        return ExportTraceServiceResponse(partial_success=partial).SerializeToString()

    def wait(self, count: int) -> list[Span]:
        """The spans, once there are that many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.spans) >= count, 60), f"{len(self.spans)} of {count}"
            return list(self.spans)


def plain(attributes: Any) -> dict[str, Any]:
    """Attributes as a dictionary, each with its own type."""
    found: dict[str, Any] = {}
    for item in attributes:
        assert item.key not in found, item.key
        kind = item.value.WhichOneof("value")
        value = getattr(item.value, kind)
        found[item.key] = [v.string_value for v in value.values] if kind == "array_value" else value
    return found


@contextmanager
def http_collector() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            data = self.rfile.read(int(headers["content-length"]))
            if headers.get("content-encoding") == "gzip":
                data = gzip.decompress(data)
            status = collector.take(data, headers, self.path)
            body = collector.answer() if status is None else b"no"
            try:
                self.send_response(status or 200)
                if status == 503:
                    self.send_header("retry-after", "0")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield collector
    finally:
        collector.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def grpc_collector() -> Iterator[Collector]:
    collector = Collector()

    def export(data: bytes, call: Any) -> bytes:
        status = collector.take(data, {name: str(value) for name, value in call.invocation_metadata()})
        if status is not None:
            call.abort(status, "no")
        return collector.answer()

    server = grpc.server(ThreadPoolExecutor(4))
    handlers = {"Export": grpc.unary_unary_rpc_method_handler(export)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(METHOD, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    collector.url = f"http://127.0.0.1:{port}"
    try:
        yield collector
    finally:
        collector.gate.set()
        server.stop(None).wait()


#: protocol -> collector
KINDS: dict[str, Callable[[], Any]] = {"http/protobuf": http_collector, "grpc": grpc_collector}
