"""From finished requests to OTLP spans.

Names follow OpenTelemetry's semantic conventions for generative AI, https://opentelemetry.io/docs/specs/semconv/gen-ai/
(status: development); what they do not name is called `tokloom.…`. No text and no token is in any of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import frozen
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from tokloom.sdk import RequestStats, RequestSummary

Value = str | int | float | bool | Sequence[str]

_NANOS: Final = 1_000_000_000
#: events of one span; a request that is preempted without end keeps its first ones
_MOST_EVENTS: Final = 128
#: W3C flag `sampled`, and OTLP's: it is known whether the parent is remote, and it is
_SAMPLED, _REMOTE_KNOWN, _REMOTE = 0x1, 0x100, 0x200
_KINDS: Final = {"server": Span.SPAN_KIND_SERVER, "internal": Span.SPAN_KIND_INTERNAL}


@frozen(kw_only=True)
class Ended:
    """A request whose sequences have all ended.

    Attributes:
        sequences: as they ended.
        begin: nanoseconds since 1970 when it arrived.
        trace_id, span_id: of the span to write.
    """

    sequences: tuple[RequestStats, ...]
    begin: int
    trace_id: bytes
    span_id: bytes


class Writer:
    """Writes the spans of one engine.

    Args:
        model: name of the model, for requests without an adapter.
        resource: attributes of the resource.
        kind: `server` or `internal`.
        version: of the instrumentation.
    """

    def __init__(self, model: str, resource: Mapping[str, str], kind: str, version: str) -> None:
        self._model = model
        self._kind = _KINDS[kind]
        self._resource = Resource(attributes=_attributes(resource))
        self._scope = InstrumentationScope(name="tokloom", version=version)

    def encode(self, requests: Sequence[Ended]) -> bytes:
        """A serialised `ExportTraceServiceRequest`."""
        scoped = ScopeSpans(scope=self._scope, spans=[self.span(ended) for ended in requests])
        message = ExportTraceServiceRequest(
            resource_spans=[ResourceSpans(resource=self._resource, scope_spans=[scoped])]
        )
        return message.SerializeToString()

    def span(self, ended: Ended) -> Span:
        """One span from arrival to the end of the last sequence."""
        sequences = sorted(ended.sequences, key=lambda stats: stats.child)
        first = sequences[0]
        asked = first.asked
        operation = _operation(asked)
        model = asked.adapter or self._model
        span = Span(
            trace_id=ended.trace_id,
            span_id=ended.span_id,
            flags=_SAMPLED | _REMOTE_KNOWN,
            name=f"{operation} {model}",
            kind=self._kind,
            start_time_unix_nano=ended.begin,
            end_time_unix_nano=_moment(ended.begin, max(stats.total for stats in sequences)),
            attributes=_attributes(
                {
                    "gen_ai.operation.name": operation,
                    "gen_ai.provider.name": "tokloom",
                    "gen_ai.request.model": model,
                    "gen_ai.response.model": model,
                    **_sampling(asked),
                    **_results(first, sequences),
                }
            ),
        )
        if first.trace is not None:
            span.parent_span_id = bytes.fromhex(first.trace.span_id)
            span.trace_state = first.trace.state
            span.flags = first.trace.flags | _SAMPLED | _REMOTE_KNOWN | _REMOTE
        events = sorted(_events(ended.begin, sequences), key=lambda event: event.time_unix_nano)
        span.events.extend(events[:_MOST_EVENTS])
        span.dropped_events_count = max(len(events) - _MOST_EVENTS, 0)
        failure = _failure(sequences)
        if failure:
            span.attributes.extend(_attributes({"error.type": failure}))
            span.status.CopyFrom(Status(code=Status.STATUS_CODE_ERROR))
        return span


def _operation(asked: RequestSummary) -> str:
    if asked.task == "embed":
        return "embeddings"
    if asked.task == "score":
        return "score"
    return "chat" if asked.chat else "text_completion"


def _sampling(asked: RequestSummary) -> dict[str, Value]:
    """What was asked for; a seed and a number of choices where they were given."""
    if asked.task != "generate":
        return {}
    found: dict[str, Value] = {
        "gen_ai.request.max_tokens": asked.max_tokens,
        "gen_ai.request.temperature": float(asked.temperature),
        "gen_ai.request.top_p": float(asked.top_p),
        "gen_ai.request.presence_penalty": float(asked.presence_penalty),
        "gen_ai.request.frequency_penalty": float(asked.frequency_penalty),
    }
    if asked.top_k:
        found["gen_ai.request.top_k"] = asked.top_k
    if asked.seed is not None:
        found["gen_ai.request.seed"] = asked.seed
    if asked.n != 1:
        found["gen_ai.request.choice.count"] = asked.n
    if asked.min_p:
        found["tokloom.request.min_p"] = float(asked.min_p)
    if asked.repetition_penalty != 1:
        found["tokloom.request.repetition_penalty"] = float(asked.repetition_penalty)
    if asked.grammar:
        found["tokloom.request.grammar"] = asked.grammar
        if asked.grammar in ("json_schema", "json_object"):
            found["gen_ai.output.type"] = "json"
    return found


def _results(first: RequestStats, sequences: Sequence[RequestStats]) -> dict[str, Value]:
    """Counts over all sequences; the prompt, and what the cache had of it, once. Times from arrival, in seconds."""
    reasons = [stats.finish_reason for stats in sequences]
    reasons += [first.finish_reason] * (first.asked.n - len(sequences))  # never forked: they ended as the first did
    found: dict[str, Value] = {
        "gen_ai.response.finish_reasons": reasons,
        "gen_ai.usage.input_tokens": first.prompt_tokens,
        "gen_ai.usage.output_tokens": sum(stats.output_tokens for stats in sequences),
        "gen_ai.usage.cache_read.input_tokens": first.hit_tokens,
        "tokloom.request.id": first.request_id,
        "tokloom.prefix_hit_tokens": first.hit_tokens,
        "tokloom.tier_hit_tokens": sum(stats.tier_tokens for stats in sequences),
        "tokloom.drafted_tokens": sum(stats.drafted for stats in sequences),
        "tokloom.accepted_tokens": sum(stats.accepted for stats in sequences),
        "tokloom.preemptions": sum(stats.preemptions for stats in sequences),
    }
    if first.tenant:
        found["tokloom.tenant"] = first.tenant
    if first.queued >= 0:
        found["tokloom.queue_seconds"] = first.queued
    begun = [stats.ttft for stats in sequences if stats.ttft >= 0]
    if begun:
        found["tokloom.time_to_first_token_seconds"] = min(begun)
    return found


def _events(begin: int, sequences: Sequence[RequestStats]) -> Iterator[Span.Event]:
    for stats in sequences:
        choice = _attributes({"tokloom.choice": stats.child}) if stats.asked.n > 1 else []
        if stats.ttft >= 0:
            yield Span.Event(name="tokloom.first_token", time_unix_nano=_moment(begin, stats.ttft), attributes=choice)
        for when in stats.preempted:
            yield Span.Event(name="tokloom.preempted", time_unix_nano=_moment(begin, when), attributes=choice)


def _failure(sequences: Sequence[RequestStats]) -> str:
    """`error.type`: an error's code, or `deadline`; empty: none. A client that leaves is no failure."""
    errors = [stats.error or "internal" for stats in sequences if stats.finish_reason == "error"]
    if errors:
        return errors[0]
    return "deadline" if any(stats.finish_reason == "deadline" for stats in sequences) else ""


def _moment(begin: int, seconds: float) -> int:
    return begin + round(seconds * _NANOS)


def _attributes(values: Mapping[str, Value]) -> list[KeyValue]:
    return [KeyValue(key=key, value=_value(value)) for key, value in values.items()]


def _value(value: Value) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    return AnyValue(array_value=ArrayValue(values=[_value(item) for item in value]))
