"""OtelObserver: decides which requests become spans, and hands them over when their last sequence has ended."""

import random
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from tokloom.plugins.observe.otel import OtelOptions
from tokloom.plugins.observe.otel.exporting import Counts, Exporter
from tokloom.plugins.observe.otel.sending import GrpcSender, HttpSender, Sender
from tokloom.plugins.observe.otel.spans import Ended, Writer
from tokloom.sdk import CompositionError, Context, RequestStats, StepStats, TraceContext

_NANOS: Final = 1_000_000_000
#: of the low 64 bits of a trace's id, by which a share of all traces is chosen
_RANGE: Final = 1 << 64


class OtelObserver:
    """Implements `tokloom.sdk.Observer`. Two of them share nothing.

    Args:
        put: takes a request that is to be recorded; must not block.
        sample: share of the requests without a caller's decision.
        stop: gives back what `put` leads to.
        counts: what became of the spans.
        wall: nanoseconds since 1970.
    """

    def __init__(
        self,
        put: Callable[[Ended], None],
        sample: float,
        stop: Callable[[], None],
        counts: Callable[[], Counts],
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        self._put = put
        self._below = round(sample * _RANGE)
        self._stop = stop
        self._counts = counts
        self._wall = wall
        self._random = random.Random()
        self._open: dict[str, list[RequestStats]] = {}

    @property
    def counts(self) -> Counts:
        """What became of the spans, from any thread."""
        return self._counts()

    def on_step(self, stats: StepStats) -> None:
        """Steps are no spans."""

    def on_request(self, stats: RequestStats) -> None:
        if stats.trace is not None and not stats.trace.sampled:
            return
        if stats.remaining:
            self._open.setdefault(stats.request_id, []).append(stats)
            return
        sequences = (*self._open.pop(stats.request_id, ()), stats)
        trace_id = self._trace_id(stats.trace)
        if stats.trace is None and int.from_bytes(trace_id[8:], "big") >= self._below:
            return
        begin = self._wall() - round(stats.total * _NANOS)
        self._put(Ended(sequences=sequences, begin=begin, trace_id=trace_id, span_id=self._id(8)))

    def close(self) -> None:
        self._open.clear()
        self._stop()

    def _trace_id(self, trace: TraceContext | None) -> bytes:
        return self._id(16) if trace is None else bytes.fromhex(trace.trace_id)

    def _id(self, size: int) -> bytes:
        """Random bytes that are not all zero, which W3C forbids."""
        while not any(drawn := self._random.randbytes(size)):
            pass
        return drawn


def make(options: OtelOptions, context: Context) -> OtelObserver:
    """The observer and its thread. Raises CompositionError for headers that cannot be sent, or without grpcio."""
    resource = {"service.name": options.service_name, "service.version": _version(), **options.attributes}
    writer = Writer(options.model or context.model.name, resource, options.kind, _version())
    exporter = Exporter(
        writer.encode,
        _sender(options),
        context.log,
        interval=options.interval,
        batch=options.batch,
        limit=options.max_queue,
        timeout=options.timeout,
    )
    return OtelObserver(
        exporter.put, options.sample, lambda: exporter.close(options.close_timeout), lambda: exporter.counts
    )


def _sender(options: OtelOptions) -> Sender:
    headers = {name: _header(name, secret.reveal()) for name, secret in options.headers.items()}
    chosen = GrpcSender if options.protocol == "grpc" else HttpSender
    return chosen(options.endpoint, headers, options.ca_file, compress=options.compression == "gzip")


def _header(name: str, value: str) -> str:
    if not value or not value.isascii() or not value.isprintable() or value != value.strip():
        raise CompositionError(
            f"the value of the header {name} is not printable ASCII",
            subject="observer.otel",
            remedy="Keep exactly the header's value where `headers` says",
        )
    return value


def _version() -> str:
    try:
        return version("tokloom")
    except PackageNotFoundError:
        return ""
