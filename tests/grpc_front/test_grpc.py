"""The gRPC front end over real channels: as another language would, messages are made from reflection alone."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub
from tiny_chat import SETS

from tokloom import AsyncEngine, ChatMessage, Event, SamplingParams
from tokloom import GenerateRequest as Wanted
from tokloom.sdk import ProfileError
from tokloom.serve.grpc.server import GrpcConfig, GrpcServer

SERVICE = "tokloom.v1.Inference"
#: their stubs know other signatures than asyncio's
health_stub: Any = HealthStub
reflection_stub: Any = ServerReflectionStub
reflection_request: Any = reflection_pb2.ServerReflectionRequest


class Client:
    """Knows the host only: files and messages come from the server's reflection."""

    def __init__(self, channel: "grpc.aio.Channel", key: str = "") -> None:
        self.channel = channel
        self.metadata = (("authorization", f"Bearer {key}"),) if key else ()
        self._pool = descriptor_pool.DescriptorPool()

    async def reflected(self, **asked: str) -> Any:
        stub = reflection_stub(self.channel)
        call = stub.ServerReflectionInfo(iter([reflection_request(**asked)]), metadata=self.metadata)
        async for answer in call:
            return answer

    async def learn(self) -> "Client":
        answer = await self.reflected(file_containing_symbol=SERVICE)
        for data in answer.file_descriptor_response.file_descriptor_proto:
            self._pool.Add(descriptor_pb2.FileDescriptorProto.FromString(data))
        return self

    def cls(self, name: str) -> Any:
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(f"tokloom.v1.{name}"))

    def generate(self, timeout: float | None = None, **fields: Any) -> Any:
        call = self.channel.unary_stream(
            f"/{SERVICE}/Generate",
            request_serializer=self.cls("GenerateRequest").SerializeToString,
            response_deserializer=self.cls("GenerateEvent").FromString,
        )
        return call(self.cls("GenerateRequest")(**fields), timeout=timeout, metadata=self.metadata)

    async def unary(self, method: str) -> Any:
        call = self.channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=self.cls(f"{method}Request").SerializeToString,
            response_deserializer=self.cls(f"{method}Response").FromString,
        )
        return await call(self.cls(f"{method}Request")(), metadata=self.metadata)


@contextlib.asynccontextmanager
async def served(model: Path, *, open_it: bool = True, key: str = "", **config: Any) -> AsyncIterator[Any]:
    """(server, engine, client)"""
    async with await AsyncEngine.from_profile(model=str(model), sets=SETS) as engine:
        server = GrpcServer(GrpcConfig(keys=(key,) if key else (), **config))
        port = await server.start()
        if open_it:
            await server.open(engine)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield server, engine, await Client(channel, key).learn()
        await server.stop()


def run(model: Path, scenario: Callable[[GrpcServer, AsyncEngine, Client], Awaitable[None]], **config: Any) -> None:
    async def main() -> None:
        async with served(model, **config) as (server, engine, client):
            await scenario(server, engine, client)

    asyncio.run(asyncio.wait_for(main(), 120))


async def idle(engine: AsyncEngine) -> None:
    """All pages are free or cached."""
    for _ in range(2000):
        stats = engine.core.state.allocator.stats()
        if not engine.core.busy and stats.held_pages == 0:
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"pages are still held: {engine.core.state.allocator.stats()}")


async def refused(call: Any) -> "grpc.aio.AioRpcError":
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    return caught.value


def trailers(error: "grpc.aio.AioRpcError") -> dict[str, Any]:
    return dict(error.trailing_metadata())


def joined(events: list[Any], index: int) -> tuple[str, list[int], str]:
    own = [event for event in events if event.index == index]
    return (
        "".join(e.text for e in own),
        [token for e in own for token in e.token_ids],
        own[-1].finish_reason,
    )


def test_a_stream_is_the_engines_own_answer(model: Path) -> None:
    async def scenario(server: GrpcServer, engine: AsyncEngine, client: Client) -> None:
        sampling: dict[str, Any] = {
            "max_tokens": 20,
            "seed": 5,
            "n": 2,
            "temperature": 0.9,
            "logprobs": 2,
            "prompt_logprobs": 1,
        }
        sent: dict[str, Any] = {
            "messages": {"messages": [{"role": "user", "content": "hé 🙂"}]},
            "stop": ["zz"],
            "request_id": "r1",
        }
        got = [event async for event in client.generate(sampling=sampling, **sent)]
        own: list[Event] = []
        wanted = Wanted(
            messages=(ChatMessage("user", "hé 🙂"),), sampling=SamplingParams(**sampling), stop=("zz",), request_id="r1"
        )
        async for event in engine.generate(wanted):
            own.append(event)
        for index in (0, 1):
            assert joined(got, index) == joined(own, index)
            mine = [e for e in got if e.index == index]
            logs = [log for e in mine for log in e.logprobs]
            expected = [log for e in own if e.index == index for log in e.logprobs]
            assert [(log.token, log.logprob) for log in logs] == [(log.token, log.logprob) for log in expected]
            assert [(a.token, a.logprob) for a in logs[3].top] == list(expected[3].top)
            usage = mine[-1].usage
            assert (usage.prompt_tokens, usage.output_tokens) == (own[-1].usage.prompt_tokens, 20)  # type: ignore[union-attr]
            assert 0 <= usage.ttft <= usage.total
        first = [e for e in got if e.prompt_logprobs]
        assert first
        assert first[0].prompt_logprobs[0].logprob != first[0].prompt_logprobs[0].logprob  # NaN
        assert {e.request_id for e in got} == {"r1"}

    run(model, scenario)


def test_text_ids_scores_and_vectors(model: Path) -> None:
    async def scenario(server: GrpcServer, engine: AsyncEngine, client: Client) -> None:
        assert engine.tokenizer is not None
        ids = list(engine.tokenizer.encode("abc", add_special=True))
        greedy = {"max_tokens": 6, "temperature": 0.0}
        texts = [e async for e in client.generate(text="abc", raw=True, sampling=greedy)]
        same = [e async for e in client.generate(token_ids={"ids": ids}, sampling=greedy)]
        assert joined(texts, 0) == joined(same, 0)
        (score,) = [e async for e in client.generate(token_ids={"ids": ids}, task=2, sampling={"prompt_logprobs": 0})]
        assert (score.finish_reason, len(score.prompt_logprobs)) == ("scored", len(ids))
        (long,) = [e async for e in client.generate(token_ids={"ids": ids}, task=3, pooling="mean", unnormalized=True)]
        (unit,) = [e async for e in client.generate(token_ids={"ids": ids}, task=3, pooling="mean")]
        length = sum(value * value for value in long.embedding) ** 0.5
        assert unit.finish_reason == "embedded"
        assert list(unit.embedding) == pytest.approx([value / length for value in long.embedding], abs=1e-6)

    run(model, scenario)


def test_a_grammar_is_kept(model: Path) -> None:
    async def scenario(server: GrpcServer, engine: AsyncEngine, client: Client) -> None:
        wanted = {"grammar": {"syntax": "choice", "text": '["left", "right"]'}, "max_tokens": 20}
        events = [e async for e in client.generate(text="x", sampling=wanted)]
        assert joined(events, 0)[0] in ("left", "right")
        error = await refused(client.generate(text="x", sampling={"grammar": {"syntax": "regex", "text": "("}}))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT

    run(model, scenario)


BAD: list[dict[str, Any]] = [
    {},
    {"text": ""},
    {"token_ids": {"ids": []}},
    {"token_ids": {"ids": [10**6]}},
    {"token_ids": {"ids": [-1]}},
    {"messages": {"messages": []}},
    {"text": "a", "task": 9},
    {"text": "a", "adapter": "none such"},
    {"text": "a", "task": 3, "pooling": "median"},
    {"text": "a", "task": 3, "stop": ["x"]},
    {"text": "a", "stop": [""]},
    {"text": "a" * 10**5},
    *(
        {"text": "a", "sampling": sampling}
        for sampling in [
            {"max_tokens": -1},
            {"n": 0},
            {"n": 10**9},
            {"temperature": float("nan")},
            {"temperature": -1.0},
            {"top_p": 0.0},
            {"logit_bias": {10**6: 1.0}},
            {"bad_words": [{"ids": []}]},
            {"logprobs": 1000},
            {"min_tokens": 17},
        ]
    ),
]


@pytest.mark.parametrize("fields", BAD, ids=lambda fields: str(fields)[:40])
def test_a_bad_request_is_an_invalid_argument_and_the_next_one_is_served(model: Path, fields: dict[str, Any]) -> None:
    async def scenario(server: GrpcServer, engine: AsyncEngine, client: Client) -> None:
        error = await refused(client.generate(**fields))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details()
        assert "Traceback" not in str(error.details())
        assert trailers(error)["tokloom-code"] in ("request", "context_length_exceeded")
        assert [e async for e in client.generate(text="b", sampling={"max_tokens": 1})]

    run(model, scenario)


def test_what_is_no_message_and_what_is_too_long_are_refused(model: Path) -> None:
    async def scenario(server: GrpcServer, engine: AsyncEngine, client: Client) -> None:
        raw: Any = client.channel.unary_stream(f"/{SERVICE}/Generate")
        assert (await refused(raw(b"\xff\xff\xff"))).code() is grpc.StatusCode.INVALID_ARGUMENT
        long = client.generate(text="a" * 5000)
        assert (await refused(long)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert [e async for e in client.generate(text="b", sampling={"max_tokens": 1})]

    run(model, scenario, max_message_bytes=4096)


def test_a_call_that_is_cancelled_or_late_returns_its_pages(model: Path) -> None:
    async def scenario(server: GrpcServer, engine: AsyncEngine, client: Client) -> None:
        endless = {"max_tokens": 10**6, "ignore_eos": True}
        call = client.generate(text="x", sampling=endless)
        async for _ in call:
            break
        call.cancel()
        await idle(engine)
        late = client.generate(text="y", sampling=endless, timeout=0.3)
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for _ in late:
                pass
        assert await late.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.OK)
        await idle(engine)

    run(model, scenario)


def test_many_calls_with_random_ends_leave_no_page(model: Path) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)

    async def one(client: Client, alone: dict[int, Any], number: int, stop_after: int | None) -> None:
        call = client.generate(
            text=f"p{number}", sampling={"max_tokens": 12, "seed": number, "ignore_eos": True}, raw=True
        )
        events = []
        async for event in call:
            events.append(event)
            if stop_after is not None and len(events) > stop_after:
                call.cancel()
                return
        assert joined(events, 0) == alone[number]

    async def scenario(server: GrpcServer, engine: AsyncEngine, client: Client) -> None:
        alone = {}
        for number in range(16):
            sampling = SamplingParams(max_tokens=12, seed=number, ignore_eos=True)
            events = [e async for e in engine.generate(Wanted(prompt=f"p{number}", raw=True, sampling=sampling))]
            alone[number] = joined(events, 0)
        ends = [rng.choice((None, None, 0, 3)) for _ in range(16)]
        await asyncio.gather(*(one(client, alone, number, end) for number, end in enumerate(ends)))
        await idle(engine)

    run(model, scenario)


def test_a_full_queue_says_when_to_come_back(model: Path) -> None:
    async def scenario(server: GrpcServer, engine: AsyncEngine, client: Client) -> None:
        error = grpc.aio.AioRpcError(grpc.StatusCode.OK, grpc.aio.Metadata(), grpc.aio.Metadata())
        calls = [client.generate(text="x", sampling={"max_tokens": 400, "ignore_eos": True}) for _ in range(40)]
        for call in calls:
            try:
                await call.read()
            except grpc.aio.AioRpcError as refusal:
                error = refusal
                break
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert int(trailers(error)["grpc-retry-pushback-ms"]) > 0
        assert trailers(error)["tokloom-code"] == "capacity"
        assert b"max_waiting" in trailers(error)["tokloom-remedy-bin"]
        for call in calls:
            call.cancel()
        await idle(engine)

    async def main() -> None:
        sets = (*SETS, "engine.max_waiting=2")
        async with await AsyncEngine.from_profile(model=str(model), sets=sets) as engine:
            server = GrpcServer(GrpcConfig())
            port = await server.start()
            await server.open(engine)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                await scenario(server, engine, await Client(channel).learn())
            await server.stop()

    asyncio.run(asyncio.wait_for(main(), 120))


def test_health_follows_loading_serving_and_draining(model: Path) -> None:
    async def scenario(server: GrpcServer, engine: AsyncEngine, client: Client) -> None:
        health = health_stub(client.channel)
        states = health_pb2.HealthCheckResponse
        for name in ("", SERVICE):
            assert (await health.Check(health_pb2.HealthCheckRequest(service=name))).status == states.NOT_SERVING
        error = await refused(client.generate(text="x"))
        assert (error.code(), "loading" in str(error.details())) == (grpc.StatusCode.UNAVAILABLE, True)
        assert (await client.unary("Health")).status == 1
        with pytest.raises(grpc.aio.AioRpcError, match="loading"):
            await client.unary("Info")
        await server.open(engine)
        assert (await health.Check(health_pb2.HealthCheckRequest(service=SERVICE))).status == states.SERVING
        assert (await client.unary("Health")).status == 2
        info = await client.unary("Info")
        assert info.vocabulary == engine.core.composition.model.spec.vocab_size
        assert (list(info.names), info.has_tokenizer, list(info.poolings)) == (["model"], True, ["last", "mean"])
        call = client.generate(text="x", sampling={"max_tokens": 60, "ignore_eos": True})
        events: list[Any] = []
        async for event in call:
            if not events:
                stopping = asyncio.create_task(server.stop(drain=60))
            events.append(event)
        assert events[-1].finish_reason == "length"
        assert sum(len(event.token_ids) for event in events) == 60
        await stopping
        error = await refused(client.generate(text="x", timeout=20))
        assert error.code() is grpc.StatusCode.UNAVAILABLE

    run(model, scenario, open_it=False)


def test_keys_are_needed_but_for_health(model: Path) -> None:
    async def scenario(server: GrpcServer, engine: AsyncEngine, client: Client) -> None:
        assert [e async for e in client.generate(text="x", sampling={"max_tokens": 1})]
        for metadata in ((), (("authorization", "Bearer wrong"),), (("authorization", "s3cret"),)):
            client.metadata = metadata
            error = await refused(client.generate(text="x"))
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "s3cret" not in str(error.details())
        stub = health_stub(client.channel)
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING

    run(model, scenario, key="s3cret")
    assert "s3cret" not in repr(GrpcConfig(keys=("s3cret",)))


def test_reflection_lists_the_services(model: Path) -> None:
    async def scenario(server: GrpcServer, engine: AsyncEngine, client: Client) -> None:
        answer = await client.reflected(list_services="")
        names = {service.name for service in answer.list_services_response.service}
        assert {SERVICE, "grpc.health.v1.Health"} <= names

    run(model, scenario)


def test_an_address_that_is_taken_is_a_profile_error() -> None:
    async def main() -> None:
        first = GrpcServer(GrpcConfig())
        port = await first.start()
        with pytest.raises(ProfileError, match=str(port)):
            await GrpcServer(GrpcConfig(port=port)).start()
        await first.stop()

    asyncio.run(main())


def test_the_descriptor_is_that_of_the_proto(tmp_path: Path) -> None:
    tools = pytest.importorskip("grpc_tools.protoc")
    folder = Path(__file__).parents[2] / "serve" / "grpc" / "protos"
    made = tmp_path / "made.binpb"
    assert tools.main(["protoc", f"-I{folder}", f"--descriptor_set_out={made}", "tokloom/v1/inference.proto"]) == 0
    kept = (folder / "tokloom" / "v1" / "inference.binpb").read_bytes()
    sets = [descriptor_pb2.FileDescriptorSet.FromString(data) for data in (made.read_bytes(), kept)]
    assert sets[0] == sets[1], "run tools/build_proto.py"
