"""A caller's trace through the front ends: headers of HTTP, metadata of gRPC, a field of the embedding API."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from served import serving
from tiny_chat import SETS

pytest.importorskip("opentelemetry.proto", reason="opentelemetry-proto is not installed")

from collectors import http_collector, plain

from tokloom import AsyncEngine, GenerateRequest, RequestError, SamplingParams, TraceContext
from tokloom.serve.grpc import messages
from tokloom.serve.grpc.server import GrpcConfig, GrpcServer

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=a:1"}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
BODIES: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/chat/completions": ({**CHAT, "max_tokens": 5}, "chat"),
    "/v1/completions": ({"prompt": "hi there", "max_tokens": 5, "temperature": 0.5}, "text_completion"),
    "/v1/responses": ({"input": "hi", "max_output_tokens": 5}, "chat"),
    "/v1/embeddings": ({"input": "hi"}, "embeddings"),
}


def loader(model: Path, url: str) -> Callable[[], Awaitable[AsyncEngine]]:
    async def load() -> AsyncEngine:
        section = {"plugin": "otel", "options": {"endpoint": url, "interval": 0.01}}
        return await AsyncEngine.from_profile(model=str(model), sets=SETS, observers=[section])

    return load


def test_http_requests_of_every_kind_are_children_of_their_callers(model: Path) -> None:
    with http_collector() as collector, serving(loader(model, collector.url)) as served:
        for number, (path, (body, operation)) in enumerate(BODIES.items(), 1):
            response = served.post(path, body, **HEADERS)
            assert response.status_code == 200, response.text
            usage = response.json()["usage"]
            span = collector.wait(number)[-1]
            said = plain(span.attributes)
            assert span.trace_id.hex() == TRACE
            assert span.parent_span_id.hex() == PARENT
            assert span.trace_state == "vendor=a:1"
            assert said["gen_ai.operation.name"] == operation
            prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
            assert said["gen_ai.usage.input_tokens"] == prompt > 0
            output = usage.get("completion_tokens", usage.get("output_tokens", 0))
            assert said["gen_ai.usage.output_tokens"] == output


def test_each_prompt_of_a_body_is_a_span_and_a_stream_is_one_too(model: Path) -> None:
    with http_collector() as collector, serving(loader(model, collector.url)) as served:
        assert served.post("/v1/completions", {"prompt": ["a", "bb"], "max_tokens": 2}, **HEADERS).status_code == 200
        assert {span.parent_span_id.hex() for span in collector.wait(2)} == {PARENT}
        body = {**CHAT, "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}}
        assert served.post("/v1/chat/completions", body, **HEADERS).status_code == 200
        assert plain(collector.wait(3)[-1].attributes)["gen_ai.request.max_tokens"] == 4


@pytest.mark.parametrize("parent", ["", "nonsense", HEADERS["traceparent"].upper(), f"00-{TRACE}-{'0' * 16}-01"])
def test_http_requests_with_a_malformed_parent_are_answered_and_begin_a_trace(model: Path, parent: str) -> None:
    with http_collector() as collector, serving(loader(model, collector.url)) as served:
        headers = {"traceparent": parent, "tracestate": "vendor=a:1"}
        assert served.post("/v1/chat/completions", {**CHAT, "max_tokens": 2}, **headers).status_code == 200
        (span,) = collector.wait(1)
        assert not span.parent_span_id
        assert not span.trace_state
        assert span.trace_id.hex() != TRACE


def test_a_second_parent_makes_both_worthless_and_states_are_joined(model: Path) -> None:
    with http_collector() as collector, serving(loader(model, collector.url)) as served:
        parent = ("traceparent", HEADERS["traceparent"])
        kind = ("content-type", "application/json")
        body = b'{"prompt": "a", "max_tokens": 2}'
        for pairs in ([parent, parent, kind], [parent, ("tracestate", "a=1"), ("tracestate", "b=2"), kind]):
            assert served.http.post("/v1/completions", content=body, headers=pairs).status_code == 200
        first, second = collector.wait(2)
        assert not first.parent_span_id
        assert (second.parent_span_id.hex(), second.trace_state) == (PARENT, "a=1,b=2")


def test_a_client_that_goes_leaves_a_span_that_says_abort(model: Path) -> None:
    with http_collector() as collector, serving(loader(model, collector.url)) as served:
        body = {"prompt": "a", "max_tokens": 1000, "stream": True, "ignore_eos": True}
        with served.http.stream("POST", "/v1/completions", json=body, headers=HEADERS) as response:
            next(response.iter_bytes())
        (span,) = collector.wait(1)
        assert plain(span.attributes)["gen_ai.response.finish_reasons"] == ["abort"]
        assert span.status.code == span.status.STATUS_CODE_UNSET


def test_grpc_calls_are_children_of_their_callers(model: Path) -> None:
    async def scenario(url: str) -> list[Any]:
        usages = []
        async with await loader(model, url)() as engine:
            server = GrpcServer(GrpcConfig())
            port = await server.start()
            await server.open(engine)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                call = channel.unary_stream(
                    "/tokloom.v1.Inference/Generate",
                    request_serializer=messages.GenerateRequest.SerializeToString,
                    response_deserializer=messages.GenerateEvent.FromString,
                )
                message = messages.GenerateRequest(text="hi", sampling={"max_tokens": 4}, request_id="g")
                for metadata in (tuple(HEADERS.items()), (("traceparent", "nonsense"),), ()):
                    found = [event async for event in call(message, metadata=metadata)]
                    usages.append(found[-1].usage)
            await server.stop()
        return usages

    with http_collector() as collector:
        usages = asyncio.run(asyncio.wait_for(scenario(collector.url), 120))
        spans = collector.wait(3)
    assert [span.parent_span_id.hex() for span in spans] == [PARENT, "", ""]
    assert spans[0].trace_id.hex() == TRACE
    assert spans[0].trace_state == "vendor=a:1"
    for span, usage in zip(spans, usages, strict=True):
        said = plain(span.attributes)
        assert said["tokloom.request.id"] == "g"
        assert said["gen_ai.usage.input_tokens"] == usage.prompt_tokens > 0
        assert said["gen_ai.usage.output_tokens"] == usage.output_tokens > 0


def test_the_embedding_api_takes_a_context_and_nothing_else(model: Path) -> None:
    async def scenario(url: str) -> None:
        async with await loader(model, url)() as engine:
            trace = TraceContext.parse([HEADERS["traceparent"]])
            asked = GenerateRequest(prompt="hi", sampling=SamplingParams(max_tokens=2), trace=trace)
            assert [event async for event in engine.generate(asked)]
            wrong: Any = HEADERS["traceparent"]
            with pytest.raises(RequestError, match="trace"):
                async for _ in engine.generate(GenerateRequest(prompt="hi", trace=wrong)):
                    pass

    with http_collector() as collector:
        asyncio.run(asyncio.wait_for(scenario(collector.url), 120))
        (span,) = collector.wait(1)
    assert span.parent_span_id.hex() == PARENT
