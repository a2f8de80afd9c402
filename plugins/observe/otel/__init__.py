"""Observer `otel`: one span per request, sent to a collector by OTLP."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

from attrs import Attribute, field, frozen, validators

from tokloom.sdk import CompositionError, Context, Observer, ObserverCaps, Offer, Secret, hookimpl

Check = Any


def _between(low: float, high: float) -> Check:
    return [validators.ge(low), validators.le(high)]


def _url(options: "OtelOptions", _: "Attribute[str]", value: str) -> None:
    try:
        parts = urlsplit(value)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        good = good and not (parts.username or parts.password or parts.query or parts.fragment)
        good = good and value.isascii() and value.isprintable() and " " not in value
    except ValueError:
        good = False
    if not good:
        raise ValueError('must be a URL such as "http://collector:4318", without a password, a query or a fragment')


def _names(options: "OtelOptions", _: "Attribute[Mapping[str, Secret]]", value: Mapping[str, Secret]) -> None:
    for name in value:
        if not name or not name.isascii() or not name.replace("-", "").replace("_", "").isalnum() or not name.islower():
            raise ValueError(f"{name!r} is no name of a header in lower case")


@frozen(kw_only=True)
class OtelOptions:
    """Options of the `otel` observer. No variable of the environment changes any of them.

    Attributes:
        endpoint: URL of the collector; `https` verifies its certificate. Over HTTP a URL without a path gets
            `/v1/traces`; over gRPC only host and port count.
        protocol: `http/protobuf` or `grpc`.
        headers: name in lower case -> where its value is kept; sent with every export.
        ca_file: PEM file with the certificates to trust instead of the system's.
        compression: of what is sent: `gzip` or `none`.
        service_name: `service.name` of the resource.
        attributes: more attributes of the resource.
        model: what `gen_ai.request.model` says; empty: the model's own name.
        kind: of the spans: `server`, or `internal` where the engine is a part of the caller.
        sample: share of the requests to record whose callers did not decide, 0 to 1. A caller's `traceparent` decides.
        interval: seconds that a span waits for others to be sent with.
        batch: spans sent together at the most.
        max_queue: spans that may wait; more are dropped, and counted.
        timeout: seconds that a batch may take, retries included; then its spans are dropped.
        close_timeout: seconds that the engine's end may wait for the last spans to be sent.
    """

    endpoint: str = field(default="http://127.0.0.1:4318", validator=_url)
    protocol: Literal["http/protobuf", "grpc"] = field(
        default="http/protobuf", validator=validators.in_(("http/protobuf", "grpc"))
    )
    headers: Mapping[str, Secret] = field(factory=dict, validator=_names)
    ca_file: str = ""
    compression: Literal["none", "gzip"] = field(default="none", validator=validators.in_(("none", "gzip")))
    service_name: str = field(default="tokloom", validator=validators.min_len(1))
    attributes: Mapping[str, str] = field(factory=dict)
    model: str = ""
    kind: Literal["server", "internal"] = field(default="server", validator=validators.in_(("server", "internal")))
    sample: float = field(default=1.0, validator=_between(0.0, 1.0))
    interval: float = field(default=1.0, validator=_between(0.01, 60.0))
    batch: int = field(default=512, validator=_between(1, 8192))
    max_queue: int = field(default=4096, validator=_between(1, 1 << 20))
    timeout: float = field(default=10.0, validator=_between(0.01, 300.0))
    close_timeout: float = field(default=5.0, validator=_between(0.0, 300.0))


def _make(options: OtelOptions, context: Context) -> Observer:
    try:
        from tokloom.plugins.observe.otel.observer import make
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    return make(options, context)


def _missing(error: ModuleNotFoundError) -> CompositionError:
    return CompositionError(str(error), subject="observer.otel", remedy="pip install 'tokloom[otel]'")


@hookimpl
def tokloom_observer() -> "Sequence[Offer[OtelOptions, Observer]]":
    """The offer."""
    return [
        Offer(
            kind="observer",
            name="otel",
            capabilities=ObserverCaps(),
            factory=_make,
            config=OtelOptions,
            contract="0.1",
            summary="OpenTelemetry traces: one span per request, by OTLP over HTTP or gRPC",
        )
    ]
