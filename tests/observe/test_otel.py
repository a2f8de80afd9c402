"""Traces by a real collector: what it gets is compared with what the requests were answered."""

import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from engine_world import DIGESTS, World, compose, request

pytest.importorskip("opentelemetry.proto", reason="opentelemetry-proto is not installed")

from collectors import KINDS, Collector, http_collector, plain

from tokloom.core.profile import ProfileProblems
from tokloom.plugins.observe.otel.observer import OtelObserver
from tokloom.plugins.observe.otel.spans import Ended, Writer
from tokloom.sdk import (
    CompositionError,
    Objectives,
    ProfileError,
    RequestError,
    RequestStats,
    RequestSummary,
    TraceContext,
)

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLER = TraceContext(TRACE, PARENT, 1, "vendor=a:1,other=2")
UNSAMPLED = TraceContext(TRACE, PARENT, 0)


@pytest.fixture(params=sorted(KINDS))
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def collector(protocol: str) -> Iterator[Collector]:
    with KINDS[protocol]() as collector:
        yield collector


@pytest.fixture
def http() -> Iterator[Collector]:
    with http_collector() as collector:
        yield collector


class Traced(World):
    """A world whose engine has a recorder and sends spans."""

    def __init__(self, url: str, otel: dict[str, Any] | None = None, **options: Any) -> None:
        section = {"plugin": "otel", "options": {"endpoint": url, "interval": 0.01, **(otel or {})}}
        super().__init__(compose(observers=("recorder", section), **options))
        self.otel: OtelObserver = self.composition.observers[1].plugin  # type: ignore[assignment]

    def close(self) -> None:
        self.core.close()
        counts = self.otel.counts
        assert counts.put == counts.sent + counts.overflowed + counts.failed


def prompts(count: int, length: int, seed: int = 5) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(1, 11) for _ in range(length)] for _ in range(count)]


def dead_url() -> str:
    """Where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{bound.getsockname()[1]}"


# -- what a span says --------------------------------------------------------------------------------------------------


def test_a_span_says_what_the_answer_says(collector: Collector, protocol: str) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    world = Traced(collector.url, {"protocol": protocol}, speculator={"plugin": "oracle"})
    names = [f"r{i}" for i in range(5)]
    asked = [
        request(name, p, max_tokens=3 + i, tenant=f"t{i}", trace=CALLER if i % 2 else None)
        for i, (name, p) in enumerate(zip(names, prompts(5, 9, seed), strict=True))
    ]
    world.run(*asked)
    world.close()
    spans = {plain(span.attributes)["tokloom.request.id"]: span for span in collector.wait(5)}
    assert sorted(spans) == names
    model = world.composition.model.spec.name
    for index, name in enumerate(names):
        span, usage, outcome = spans[name], world.usage(name), world.outcomes[name, 0]
        said = plain(span.attributes)
        assert span.name == f"text_completion {model}"
        assert span.kind == span.SPAN_KIND_SERVER
        assert said["gen_ai.operation.name"] == "text_completion"
        assert said["gen_ai.provider.name"] == "tokloom"
        assert said["gen_ai.request.model"] == said["gen_ai.response.model"] == model
        assert said["gen_ai.request.max_tokens"] == 3 + index
        assert said["gen_ai.request.temperature"] == 0.0
        assert said["gen_ai.response.finish_reasons"] == [outcome.reason]
        assert said["gen_ai.usage.input_tokens"] == 9
        assert said["gen_ai.usage.output_tokens"] == len(outcome.tokens) == usage.output_tokens
        assert said["tokloom.drafted_tokens"] == usage.drafted
        assert said["tokloom.accepted_tokens"] == usage.accepted
        assert said["tokloom.tenant"] == f"t{index}"
        assert said["tokloom.queue_seconds"] == pytest.approx(usage.queued)
        assert said["tokloom.time_to_first_token_seconds"] == pytest.approx(usage.ttft)
        assert "error.type" not in said
        assert span.status.code == span.status.STATUS_CODE_UNSET
        assert seconds(span, span.end_time_unix_nano) == pytest.approx(usage.total)
        (first,) = span.events
        assert first.name == "tokloom.first_token"
        assert seconds(span, first.time_unix_nano) == pytest.approx(usage.ttft)
    assert sum(plain(span.attributes)["tokloom.drafted_tokens"] for span in spans.values()) > 0
    assert collector.resources[0]["service.name"] == "tokloom"
    assert world.otel.counts.sent == 5


def seconds(span: Any, moment: int) -> float:
    return (moment - span.start_time_unix_nano) / 1e9


def test_the_caller_is_the_parent_and_a_request_without_one_begins_a_trace(http: Collector) -> None:
    world = Traced(http.url)
    world.run(request("child", [1, 2], trace=CALLER), request("a", [1, 2]), request("b", [1, 2]))
    world.close()
    spans = {plain(span.attributes)["tokloom.request.id"]: span for span in http.wait(3)}
    child = spans["child"]
    assert child.trace_id.hex() == TRACE
    assert child.parent_span_id.hex() == PARENT
    assert child.trace_state == CALLER.state
    assert child.flags & 0x301 == 0x301  # sampled, and the parent is remote
    roots = [spans["a"], spans["b"]]
    for root in roots:
        assert not root.parent_span_id
        assert len(root.trace_id) == 16
        assert any(root.trace_id)
        assert root.flags & 0x301 == 0x101
    assert len({span.span_id for span in spans.values()} | {b"\0" * 8}) == 4
    assert len({span.trace_id for span in spans.values()}) == 3


@pytest.mark.parametrize("longest", [1, 12])
def test_several_sequences_are_one_span(http: Collector, longest: int) -> None:
    world = Traced(http.url)
    world.run(request("r", prompts(1, 9)[0], n=3, temperature=1.0, seed=3, max_tokens=longest, top_k=5, top_p=0.9))
    world.close()
    (span,) = http.wait(1)
    said = plain(span.attributes)
    outcomes = [world.outcomes["r", child] for child in range(3)]
    assert said["gen_ai.request.choice.count"] == 3
    assert said["gen_ai.request.seed"] == 3
    assert said["gen_ai.request.top_k"] == 5
    assert said["gen_ai.request.top_p"] == 0.9
    assert said["gen_ai.response.finish_reasons"] == [outcome.reason for outcome in outcomes]
    assert said["gen_ai.usage.input_tokens"] == 9
    assert said["gen_ai.usage.output_tokens"] == sum(len(outcome.tokens) for outcome in outcomes)
    assert sorted(plain(event.attributes)["tokloom.choice"] for event in span.events) == [0, 1, 2]
    latest = max(outcome.usage.total for outcome in outcomes if outcome.usage)
    assert seconds(span, span.end_time_unix_nano) == pytest.approx(latest)
    assert world.otel.counts.put == 1


def test_children_that_were_never_forked_end_as_their_parent(http: Collector) -> None:
    world = Traced(http.url)
    world.add(request("r", [1, 2, 3], n=3, temperature=1.0))
    world.core.abort("r")
    world.run()
    world.close()
    (span,) = http.wait(1)
    assert plain(span.attributes)["gen_ai.response.finish_reasons"] == ["abort"] * 3
    assert not span.events


def test_hits_tiers_and_preemptions(http: Collector) -> None:
    tier = {"plugin": "host", "options": {"capacity": "1MiB"}}
    world = Traced(http.url, page=4, pages=14, sequences=4, batch=16, tiers=[tier])
    first, *others = prompts(6, 12, 3)
    world.run(request("a", first))
    world.run(request("b", first))
    world.run(*(request(f"c{i}", p, max_tokens=24, ignore_eos=True) for i, p in enumerate(others)))
    world.run(request("again", first))
    world.close()
    spans = {plain(span.attributes)["tokloom.request.id"]: span for span in http.wait(8)}
    preempted = 0
    for name, span in spans.items():
        said, usage = plain(span.attributes), world.usage(name)
        assert said["tokloom.prefix_hit_tokens"] == said["gen_ai.usage.cache_read.input_tokens"] == usage.hit_tokens
        assert said["tokloom.tier_hit_tokens"] == usage.tier_tokens
        assert said["tokloom.preemptions"] == usage.preemptions
        moments = [event.time_unix_nano for event in span.events]
        assert moments == sorted(moments)
        assert all(span.start_time_unix_nano <= moment <= span.end_time_unix_nano for moment in moments)
        events = [event.name for event in span.events]
        assert events.count("tokloom.preempted") == usage.preemptions
        assert events.count("tokloom.first_token") == 1
        preempted += usage.preemptions
    assert preempted == world.core.state.preempted > 0
    assert world.usage("b").hit_tokens > 0
    assert world.usage("again").tier_tokens > 0


def test_scores_embeddings_adapters_and_grammars_have_names(http: Collector) -> None:
    world = Traced(http.url, {"model": "shown"})
    world.run(
        request("score", [1, 2, 3], task="score"),
        request("embed", [1, 2, 3], task="embed"),
        request("red", [1, 2, 3], adapter="blue", chat=True),
    )
    world.close()
    spans = {plain(span.attributes)["tokloom.request.id"]: span for span in http.wait(3)}
    assert {name: span.name for name, span in spans.items()} == {
        "score": "score shown",
        "embed": "embeddings shown",
        "red": "chat blue",
    }
    assert DIGESTS["blue"] not in str(spans["red"])
    assert "gen_ai.request.temperature" not in plain(spans["embed"].attributes)


def test_a_grammar_is_named_by_its_syntax_alone() -> None:
    asked = RequestSummary(grammar="json_schema", min_p=0.1, repetition_penalty=1.5)
    ended = Ended(sequences=(stats(asked=asked),), begin=0, trace_id=b"a" * 16, span_id=b"b" * 8)
    said = plain(Writer("m", {}, "internal", "1").span(ended).attributes)
    assert said["gen_ai.output.type"] == "json"
    assert said["tokloom.request.grammar"] == "json_schema"
    assert said["tokloom.request.min_p"] == 0.1
    assert said["tokloom.request.repetition_penalty"] == 1.5


def stats(**fields: Any) -> RequestStats:
    given: dict[str, Any] = {
        "request_id": "r",
        "tenant": "",
        "seq_id": 1,
        "finish_reason": "stop",
        "prompt_tokens": 1,
        "output_tokens": 1,
        "hit_tokens": 0,
        "tier_tokens": 0,
        "queued": 0.1,
        "ttft": 0.2,
        "total": 1.0,
        "preemptions": 0,
    }
    return RequestStats(**{**given, **fields})


def test_a_request_that_is_preempted_without_end_has_a_span_of_bounded_size() -> None:
    ended = Ended(
        sequences=(stats(preempted=tuple(i / 1000 for i in range(500)), preemptions=500),),
        begin=0,
        trace_id=b"a" * 16,
        span_id=b"b" * 8,
    )
    span = Writer("m", {}, "server", "1").span(ended)
    assert len(span.events) == 128
    assert span.dropped_events_count == 373


def test_what_a_caller_wrote_is_in_no_span(http: Collector) -> None:
    """Not the prompt, not the answer, not the words that a request forbids, biases or names."""
    world = Traced(http.url)
    marked = [7, 8, 9, 7, 8, 9]
    world.run(
        request("r", marked, bad_words=((3, 4),), logit_bias={5: 1.0}, stop_token_ids=(6,), salt="pepper", max_tokens=4)
    )
    world.close()
    (span,) = http.wait(1)
    said = plain(span.attributes)
    assert "pepper" not in str(span)
    assert not any("prompt" in name or "message" in name or "bias" in name or "stop_" in name for name in said)
    lists = [value for value in said.values() if isinstance(value, list)]
    assert lists == [said["gen_ai.response.finish_reasons"]]


# -- failures ----------------------------------------------------------------------------------------------------------


def test_an_error_an_expiry_and_an_abort(http: Collector) -> None:
    world = Traced(http.url, pages=6)
    world.add(request("huge", prompts(1, 60)[0], max_tokens=2))
    world.run()
    assert world.outcomes["huge", 0].reason == "error"
    world.add(request("late", [1, 2], objectives=Objectives(deadline=1e-9)), request("gone", [1, 2], max_tokens=16))
    world.core.abort("gone")
    world.run()
    world.close()
    spans = {plain(span.attributes)["tokloom.request.id"]: span for span in http.wait(3)}
    error = world.outcomes["huge", 0].error
    assert error is not None
    found = {name: plain(span.attributes).get("error.type") for name, span in spans.items()}
    assert found == {"huge": error.code, "late": "deadline", "gone": None}
    codes = {name: span.status.code for name, span in spans.items()}
    assert codes == {"huge": 2, "late": 2, "gone": 0}
    reasons = {name: plain(span.attributes)["gen_ai.response.finish_reasons"] for name, span in spans.items()}
    assert reasons == {"huge": ["error"], "late": ["deadline"], "gone": ["abort"]}
    assert "tokloom.time_to_first_token_seconds" not in plain(spans["gone"].attributes)


def test_sequences_that_live_when_the_engine_closes_have_spans(http: Collector) -> None:
    world = Traced(http.url)
    world.add(request("r", [1, 2], n=2, temperature=1.0, max_tokens=50, ignore_eos=True))
    for _ in range(3):
        world.step()
    world.close()
    (span,) = http.wait(1)
    assert plain(span.attributes)["gen_ai.response.finish_reasons"] == ["abort", "abort"]


# -- which requests ----------------------------------------------------------------------------------------------------


def test_a_share_of_those_that_did_not_decide(http: Collector) -> None:
    for share in (0.0, 1.0):
        world = Traced(http.url, {"sample": share})
        plain_ones = [request(f"{share}-{i}", [1, 2]) for i in range(6)]
        world.run(*plain_ones, request(f"{share}-yes", [1, 2], trace=CALLER))
        world.run(request(f"{share}-no", [1, 2], trace=UNSAMPLED))
        world.close()
        assert world.otel.counts.put == (7 if share else 1)
    names = {plain(span.attributes)["tokloom.request.id"] for span in http.wait(8)}
    assert names == {*(f"1.0-{i}" for i in range(6)), "0.0-yes", "1.0-yes"}


def test_half_of_many_is_about_half() -> None:
    taken: list[Ended] = []
    observer = OtelObserver(taken.append, 0.5, lambda: None, lambda: None)  # type: ignore[arg-type, return-value]
    for _ in range(4000):
        observer.on_request(stats())
    assert 1800 < len(taken) < 2200  # six standard deviations
    assert all(int.from_bytes(ended.trace_id[8:], "big") < 1 << 63 for ended in taken)


def test_requests_that_wait_for_their_siblings_are_forgotten_in_the_end() -> None:
    taken: list[Ended] = []
    observer = OtelObserver(taken.append, 1.0, lambda: None, lambda: None)  # type: ignore[arg-type, return-value]
    for left in (2, 1, 0):
        observer.on_request(stats(child=2 - left, remaining=left))
    assert not observer._open
    assert [[item.child for item in ended.sequences] for ended in taken] == [[0, 1, 2]]


# -- trace contexts ----------------------------------------------------------------------------------------------------

GOOD = f"00-{TRACE}-{PARENT}-01"
MALFORMED = [
    [],
    [""],
    [GOOD, GOOD],
    [GOOD.upper()],
    [GOOD + "-x"],
    [GOOD + " x"],
    [GOOD[:-1]],
    ["ff" + GOOD[2:]],
    ["0" + GOOD],
    [GOOD.replace("-", "_")],
    [f"00-{'0' * 32}-{PARENT}-01"],
    [f"00-{TRACE}-{'0' * 16}-01"],
    [f"00-{TRACE[:-1]}g-{PARENT}-01"],
    [f"00-{TRACE}-{PARENT}-0g"],
    [f"00-{TRACE}-{PARENT}"],
    [f"01-{TRACE}-{PARENT}-01x"],
    [GOOD + "\n"],
    ["٠٠" + GOOD[2:]],
]


@pytest.mark.parametrize("values", MALFORMED)
def test_a_malformed_parent_is_ignored(values: list[str]) -> None:
    assert TraceContext.parse(values, ["a=1"]) is None


def test_a_parent_of_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert TraceContext.parse([f"cc-{TRACE}-{PARENT}-ff-what-comes"]) == TraceContext(TRACE, PARENT, 1)
    assert TraceContext.parse([f" {GOOD}\t"]) == TraceContext(TRACE, PARENT, 1)
    assert TraceContext.parse([f"00-{TRACE}-{PARENT}-02"]) == TraceContext(TRACE, PARENT, 2)


@pytest.mark.parametrize(
    ("values", "state"),
    [
        (["a=1,b=2"], "a=1,b=2"),
        (["a=1", "b=2"], "a=1,b=2"),
        ([" a=1 ,\tb=2,, "], "a=1,b=2"),
        (["t@v=x y", "1@v=1"], "t@v=x y,1@v=1"),
        (["a=1,a=2"], ""),
        (["A=1"], ""),
        (["a"], ""),
        (["a="], ""),
        (["a=1=2"], ""),
        (["1=1"], ""),
        (["a=\x7f"], ""),
        ([",".join(f"k{i}=1" for i in range(32))], ",".join(f"k{i}=1" for i in range(32))),
        ([",".join(f"k{i}=1" for i in range(33))], ""),
        (["a=" + "x" * 256], "a=" + "x" * 256),
        (["a=" + "x" * 257], ""),
    ],
)
def test_a_state_is_kept_whole_or_dropped_and_the_parent_stays(values: list[str], state: str) -> None:
    assert TraceContext.parse([GOOD], values) == TraceContext(TRACE, PARENT, 1, state)


def test_random_headers_never_do_harm() -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(3000):
        text = list(GOOD)
        for _ in range(rng.randrange(3)):
            text[rng.randrange(len(text))] = rng.choice("0123456789abcdefABg-_ ,=\x00é")
        found = TraceContext.parse(["".join(text)], ["".join(rng.choice("ab=,@ 1") for _ in range(9))])
        if found is not None:
            again = TraceContext.parse([f"00-{found.trace_id}-{found.span_id}-{found.flags:02x}"], [found.state])
            assert again == found


def test_no_context_can_be_made_that_no_header_could_say() -> None:
    for wrong in ((TRACE, "x"), ("0" * 32, PARENT), (TRACE, PARENT, 256), (TRACE, PARENT, 1, "A=1"), (1, 2, None, 3)):
        with pytest.raises(RequestError, match="trace"):
            TraceContext(*wrong)  # type: ignore[arg-type]
    world = World(compose())
    with pytest.raises(RequestError, match="trace"):
        world.core.add(request("r", [1, 2], trace=GOOD))


# -- collectors that are not well --------------------------------------------------------------------------------------


def test_a_dead_collector_costs_spans_and_nothing_else(protocol: str) -> None:
    options = {"protocol": protocol, "max_queue": 4, "batch": 2, "timeout": 0.2, "close_timeout": 0.2}
    world = Traced(dead_url(), options)
    world.run(*(request(f"r{i}", [1, 2, 3], max_tokens=3) for i in range(12)))
    assert {outcome.reason for outcome in world.outcomes.values()} <= {"stop", "length"}
    assert len(world.outcomes) == 12
    world.close()
    counts = world.otel.counts
    assert counts.put == 12
    assert counts.sent == 0
    assert not world.core.state.faults.counts


def test_a_slow_collector_makes_nobody_wait(collector: Collector, protocol: str) -> None:
    """It answers nothing until every request was answered and more spans came than may wait."""
    collector.gate.clear()
    options = {"protocol": protocol, "max_queue": 4, "batch": 2, "timeout": 60, "close_timeout": 60}
    world = Traced(collector.url, options)
    world.run(*(request(f"a{i}", [1, 2], max_tokens=2) for i in range(2)))
    assert collector.asked.acquire(timeout=60)
    waiting = world.otel.counts
    assert waiting.put == 2
    assert waiting.sent == 0
    world.run(*(request(f"b{i}", [1, 2], max_tokens=2) for i in range(10)))
    assert len(world.outcomes) == 12
    assert world.otel.counts.put == 12
    assert world.otel.counts.overflowed >= 4
    collector.gate.set()
    world.close()
    counts = world.otel.counts
    assert counts.sent == 12 - counts.overflowed == len(collector.spans)
    assert counts.failed == 0


def test_a_collector_that_never_answers_does_not_keep_the_engine_from_closing(
    collector: Collector, protocol: str
) -> None:
    collector.gate.clear()
    options = {"protocol": protocol, "batch": 1, "timeout": 300, "close_timeout": 0.05}
    world = Traced(collector.url, options)
    world.run(*(request(f"r{i}", [1, 2], max_tokens=2) for i in range(3)))
    assert collector.asked.acquire(timeout=60)
    world.core.close()
    world.core.close()
    names = [thread.name for thread in threading.enumerate() if thread.name == "tokloom-otel"]
    assert not names
    counts = world.otel.counts
    assert (counts.put, counts.sent, counts.failed + counts.overflowed) == (3, 0, 3)


def test_what_fails_for_a_moment_is_sent_again(collector: Collector, protocol: str) -> None:
    again: list[Any] = [503, 429] if protocol == "http/protobuf" else [grpc.StatusCode.UNAVAILABLE] * 2
    collector.statuses = again
    world = Traced(collector.url, {"protocol": protocol, "timeout": 60})
    world.run(request("r", [1, 2]))
    assert len(collector.wait(1)) == 1
    world.close()
    assert world.otel.counts.sent == 1
    assert len(collector.headers) == 3


def test_what_is_refused_is_not_sent_again(collector: Collector, protocol: str) -> None:
    collector.statuses = [400 if protocol == "http/protobuf" else grpc.StatusCode.INVALID_ARGUMENT]
    world = Traced(collector.url, {"protocol": protocol})
    world.run(request("a", [1, 2]))
    assert collector.asked.acquire(timeout=60)
    world.run(request("b", [1, 2]))
    world.close()
    counts = world.otel.counts
    assert counts.failed >= 1
    assert counts.failed + counts.sent == 2
    assert len(collector.spans) == counts.sent


def test_spans_that_the_collector_did_not_want_are_counted(collector: Collector, protocol: str) -> None:
    collector.refuse = 1
    world = Traced(collector.url, {"protocol": protocol})
    world.run(*(request(f"r{i}", [1, 2]) for i in range(3)))
    world.close()
    counts = world.otel.counts
    assert counts.failed == len(collector.headers) >= 1
    assert counts.sent == 3 - counts.failed


def test_a_connection_that_broke_while_it_idled_is_made_again(http: Collector) -> None:
    """The second collector listens where the first did."""
    from tokloom.plugins.observe.otel.sending import HttpSender, Verdict

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        sender = HttpSender(f"http://127.0.0.1:{listener.getsockname()[1]}", {}, "", compress=False)

        def serve() -> None:
            for _ in range(2):
                peer, _address = listener.accept()
                with peer:
                    while not peer.recv(65536).endswith(b"payload"):
                        pass
                    peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        assert sender.send(b"payload", 60).verdict is Verdict.TAKEN
        assert sender.send(b"payload", 60).verdict is Verdict.TAKEN
        thread.join()
        sender.close()


# -- configuration -----------------------------------------------------------------------------------------------------


def test_headers_compression_path_and_resource(
    collector: Collector, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TL_OTLP_TOKEN", "Bearer s3cret")
    options = {
        "protocol": protocol,
        "headers": {"authorization": {"env": "TL_OTLP_TOKEN"}},
        "compression": "gzip",
        "service_name": "llm",
        "attributes": {"deployment.environment.name": "test"},
        "kind": "internal",
    }
    url = collector.url + "/here/v1/traces" if protocol == "http/protobuf" else collector.url
    world = Traced(url, options)
    world.run(request("r", [1, 2]))
    world.close()
    (span,) = collector.wait(1)
    assert span.kind == span.SPAN_KIND_INTERNAL
    assert collector.headers[0]["authorization"] == "Bearer s3cret"
    assert collector.resources[0]["service.name"] == "llm"
    assert collector.resources[0]["deployment.environment.name"] == "test"
    if protocol == "http/protobuf":
        assert collector.paths == ["/here/v1/traces"]
        assert collector.headers[0]["content-encoding"] == "gzip"
        assert collector.headers[0]["content-type"] == "application/x-protobuf"


def test_the_path_is_that_of_the_standard_unless_given(http: Collector) -> None:
    for end in ("", "/"):
        world = Traced(http.url + end)
        world.run(request("r", [1, 2]))
        world.close()
    assert http.paths == ["/v1/traces"] * 2


def test_no_variable_of_the_environment_changes_anything(
    collector: Collector, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "OTEL_EXPORTER_OTLP_ENDPOINT": dead_url(),
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": dead_url(),
        "OTEL_EXPORTER_OTLP_HEADERS": "x-stray=1",
        "OTEL_SERVICE_NAME": "stray",
        "OTEL_RESOURCE_ATTRIBUTES": "stray=1",
        "OTEL_TRACES_SAMPLER": "always_off",
        "OTEL_SDK_DISABLED": "true",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "http_proxy": dead_url(),
        "HTTP_PROXY": dead_url(),
        "https_proxy": dead_url(),
        "grpc_proxy": dead_url(),
    }.items():
        monkeypatch.setenv(name, value)
    world = Traced(collector.url, {"protocol": protocol})
    world.run(request("r", [1, 2]))
    world.close()
    collector.wait(1)
    assert collector.resources[0].keys() == {"service.name", "service.version"}
    assert "x-stray" not in collector.headers[0]
    assert "content-encoding" not in collector.headers[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"endpoint": "collector:4318"}, "must be a URL"),
        ({"endpoint": "ftp://x"}, "must be a URL"),
        ({"endpoint": "http://u:p@x"}, "must be a URL"),
        ({"endpoint": "http://x:99999"}, "must be a URL"),
        ({"endpoint": "http://x/\n"}, "must be a URL"),
        ({"protocol": "http/json"}, "expected one of"),
        ({"sample": 1.5}, "<= 1"),
        ({"max_queue": 0}, ">= 1"),
        ({"timeout": 0}, ">= 0.01"),
        ({"headers": {"authorization": "Bearer s3cret"}}, "never written in a profile"),
        ({"headers": {"Bad Name": {"env": "X"}}}, "no name of a header"),
        ({"service_name": ""}, "service_name"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ProfileProblems) as caught:
        compose(observers=({"plugin": "otel", "options": options},))
    assert words in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_secret_that_is_not_there_or_no_header_and_certificates_that_are_none(
    monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    section = {"plugin": "otel", "options": {"protocol": protocol, "headers": {"authorization": {"env": "TL_GONE"}}}}
    with pytest.raises(ProfileError, match="TL_GONE is not set"):
        compose(observers=(section,))
    monkeypatch.setenv("TL_GONE", "two\r\nlines")
    with pytest.raises(CompositionError, match="header authorization") as caught:
        compose(observers=(section,))
    assert "lines" not in str(caught.value)
    secure = {"protocol": protocol, "endpoint": "https://x", "ca_file": "/nowhere.pem"}
    with pytest.raises(CompositionError, match="nowhere"):
        compose(observers=({"plugin": "otel", "options": secure},))


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name for name in sys.modules if name.startswith(("opentelemetry.proto", "tokloom.plugins.observe.otel."))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.proto.collector.trace.v1.trace_service_pb2", None)
    with pytest.raises(CompositionError, match=r"tokloom\[otel\]") as caught:
        compose(observers=("otel",))
    assert caught.value.subject == "observer.otel"


# -- several engines, and the process ----------------------------------------------------------------------------------


def test_two_engines_send_to_collectors_of_their_own(collector: Collector, protocol: str) -> None:
    with KINDS[protocol]() as other:
        one = Traced(collector.url, {"protocol": protocol, "service_name": "one"})
        two = Traced(other.url, {"protocol": protocol, "service_name": "two"})
        one.run(request("a", [1, 2]))
        two.run(request("b", [1, 2]), request("c", [1, 2]))
        one.close()
        two.run(request("d", [1, 2]))
        two.close()
        assert len(collector.wait(1)) == 1
        assert len(other.wait(3)) == 3
        assert {item["service.name"] for item in collector.resources} == {"one"}
        assert {item["service.name"] for item in other.resources} == {"two"}


PROGRAM = """
import sys, os, threading
before = dict(os.environ), threading.active_count()
sys.path[:0] = PATHS
from engine_world import World, compose, request
world = World(compose(observers=({"plugin": "otel", "options": {"endpoint": URL}},)))
world.run(request("r", [1, 2]))
world.core.close()
assert dict(os.environ) == before[0]
assert threading.active_count() == before[1], threading.enumerate()
assert not [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.trace"))]
"""


def test_nothing_of_the_process_is_changed(http: Collector) -> None:
    """No provider, no environment, no thread that stays: the SDK that keeps those is not even imported."""
    program = PROGRAM.replace("PATHS", repr(sys.path)).replace("URL", repr(http.url))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert len(http.wait(1)) == 1
