"""The load generator against a server that misbehaves on purpose, and its arithmetic against independent ones."""

import asyncio
import itertools
import json
import math
import random
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from click.testing import CliRunner

from tokloom.bench.load.arrivals import closed_loop, open_loop
from tokloom.bench.load.client import Ask, Seen, events, run
from tokloom.bench.load.report import lines, meets, percentile, summarize
from tokloom.bench.serve import command
from tokloom.sdk import RequestError

MODELS = json.dumps({"data": [{"id": "m"}]}).encode()
Answer = Callable[[dict[str, Any]], tuple[int, bytes]]


def chunk(text: str = "", **extra: Any) -> bytes:
    choices = [{"index": 0, "delta": {"content": text}}] if text else []
    return b"data: " + json.dumps({"choices": choices, **extra}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
USAGE = chunk(usage={"prompt_tokens": 7, "completion_tokens": 5})


@contextmanager
def server(answer: Answer) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A URL, and the bodies that came. The body of an answer is written in pieces of three bytes."""
    bodies: list[dict[str, Any]] = []
    up = threading.Event()
    loop = asyncio.new_event_loop()
    port = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = [int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length")]
        data = await reader.readexactly(length[0]) if length else b""
        status, body = 200, MODELS
        if head.startswith("POST"):
            bodies.append(json.loads(data))
            status, body = answer(bodies[-1])
        elif b"refuse" in head.encode():
            status = 401
        writer.write(f"HTTP/1.1 {status} x\r\nconnection: close\r\n\r\n".encode())
        for at in range(0, len(body), 3):
            writer.write(body[at : at + 3])
            await writer.drain()
        writer.close()

    async def main() -> None:
        nonlocal port
        started = await asyncio.start_server(handle, "127.0.0.1", 0)
        port = started.sockets[0].getsockname()[1]
        up.set()

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(main(), loop)
    assert up.wait(60)
    try:
        yield f"http://127.0.0.1:{port}", bodies
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)


def one(url: str) -> Seen:
    async def main() -> Seen:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            return await run(http, Ask(path="/v1/chat/completions", body={}), 0.0)

    return asyncio.run(main())


def test_streams_are_read_however_they_are_cut() -> None:
    async def parse(text: Sequence[str]) -> list[Any]:
        async def source() -> AsyncIterator[str]:
            for line in text:
                yield line

        return [item async for item in events(source())]

    text = [": comment", 'data: {"a":', "data: 1}", "", "event: x", 'data:{"b": 2}', "", "data: [DONE]", "", "data: no"]
    assert asyncio.run(parse(text)) == [{"a": 1}, {"b": 2}]


def test_tokens_are_the_servers_count_or_else_chunks() -> None:
    texts = chunk("a") + chunk("b") + chunk("c")
    with server(lambda body: (200, texts + USAGE + DONE)) as (url, _):
        seen = one(url)
    assert (seen.error, seen.output_tokens, seen.prompt_tokens, seen.counted) == ("", 5, 7, False)
    assert len(seen.times) == 3
    with server(lambda body: (200, texts.replace(b"\n", b"\r\n") + DONE)) as (url, _):
        seen = one(url)
    assert (seen.error, seen.output_tokens, seen.counted) == ("", 3, True)


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (429, b"{}", "HTTP 429"),
        (500, b"oops", "HTTP 500"),
        (200, DONE, "no text"),
        (200, b"", "no text"),
        (200, chunk("a") + b"data: {broken\n\n", "unreadable stream"),
        (200, chunk("a") + b"data: [1, 2]\n\n", "unreadable stream"),
        (200, chunk("a") + b'data: {"error": {"message": "x"}}\n\n', "error in the stream"),
    ],
)
def test_failures_have_a_name(status: int, body: bytes, error: str) -> None:
    with server(lambda _: (status, body)) as (url, _):
        assert one(url).error == error


def test_a_server_that_is_not_there() -> None:
    assert one("http://127.0.0.1:9").error == "ConnectError"


def test_percentiles_are_numpys() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    for size in (1, 2, 3, 10, 101):
        values = [rng.random() for _ in range(size)]
        for percent in (0, 50, 90, 95, 99, 100):
            assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)), abs=1e-12)
    assert math.isnan(percentile([], 50))


def seen(intended: float, *times: float, tokens: int = 0, error: str = "") -> Seen:
    ended = times[-1] if times else intended + 1
    return Seen(
        intended=intended,
        sent=intended,
        ended=ended,
        times=times,
        output_tokens=tokens or len(times),
        prompt_tokens=10,
        error=error,
    )


def test_goodput_counts_those_that_met_everything() -> None:
    runs = [
        seen(0, 0.1, 0.2, 0.3),
        seen(1, 1.6, 1.7, 1.8),
        seen(2, 2.1, 2.6, 3.1),
        seen(3, error="timeout"),
        seen(3, 4),
    ]
    limits = {"ttft": 0.5, "tpot": 0.2}
    assert [meets(item, limits) for item in runs] == [True, False, False, False, False]
    assert meets(seen(0, 0.4), limits)  # a single token has no time per token
    found = summarize(runs, limits, [0.0])
    assert (found["requests"], found["succeeded"], found["errors"], found["met"]) == (5, 4, {"timeout": 1}, 1)
    assert found["seconds"] == pytest.approx(4)
    assert found["output_tokens_per_second"] == pytest.approx(10 / 4)
    assert found["total_tokens_per_second"] == pytest.approx(50 / 4)
    assert found["goodput_requests_per_second"] == pytest.approx(1 / 4)
    assert found["latency"]["ttft"]["mean"] == pytest.approx((0.1 + 0.6 + 0.1 + 1) / 4)
    assert found["latency"]["tpot"]["p50"] == pytest.approx(0.1)
    assert any("0.25 requests/s (20.0%)" in line for line in lines(found))
    assert summarize([], {}, [])["requests_per_second"] == 0


def test_a_late_client_says_so() -> None:
    late = summarize([seen(0, 1.0)], {}, [0.0, 0.5])
    assert any("late" in line for line in lines(late))


def test_a_closed_loop_never_has_more_than_its_clients() -> None:
    live = most = 0

    async def send(ask: Ask, intended: float) -> Seen:
        nonlocal live, most
        live += 1
        most = max(most, live)
        for _ in range(random.randrange(1, 5)):
            await asyncio.sleep(0)
        live -= 1
        return seen(intended, intended)

    asks = [Ask(path="", body={})] * 50
    found: list[Seen] = []
    asyncio.run(closed_loop(asks, 7, send, found))
    assert (most, len(found)) == (7, 50)


def test_an_open_loop_waits_for_nobody_and_counts_from_when_it_should_have_sent() -> None:
    all_sent = asyncio.Event()
    intended: list[float] = []

    async def send(ask: Ask, at: float) -> Seen:
        intended.append(at)
        if len(intended) == 200:
            all_sent.set()
        await all_sent.wait()
        return seen(at, at)

    found: list[Seen] = []
    asyncio.run(asyncio.wait_for(open_loop([Ask(path="", body={})] * 200, 2000.0, 3, send, found), 60))
    assert len(found) == 200
    rng = random.Random(3)
    gaps = [rng.expovariate(2000.0) for _ in range(200)]
    assert [b - a for a, b in itertools.pairwise(intended)] == pytest.approx(gaps[1:], abs=1e-9)


def test_the_command_reports_writes_and_draws(tmp_path: Path) -> None:
    out, picture = tmp_path / "run.json", tmp_path / "run.svg"
    with server(lambda body: (200, chunk("a") + chunk("b") + USAGE + DONE)) as (url, bodies):
        arguments = [f"{url}/v1", "--requests", "6", "--warm-up", "2", "--clients", "3", "--shared-words", "5"]
        more = ["--objective", "ttft=60", "--json", str(out), "--plot", str(picture), "--max-tokens", "9"]
        done = CliRunner().invoke(command, [*arguments, *more])
    assert done.exit_code == 0, done.output
    assert "goodput at ttft <= 60 s" in done.output
    written = json.loads(out.read_text())
    assert len(written["requests"]) == written["summary"]["requests"] == 6
    assert written["summary"]["output_tokens"] == 30
    assert len(bodies) == 8
    texts = [body["messages"][0]["content"] for body in bodies]
    assert len({tuple(text.split()[:5]) for text in texts}) == 1
    assert len({text.split()[5] for text in texts}) == 8
    assert all(body["model"] == "m" and body["max_tokens"] == 9 and body["stream"] for body in bodies)
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_an_open_loop_of_completions_by_command(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\n\ntwo\n")
    answer = b'data: {"choices": [{"text": "x"}]}\n\n' + DONE
    with server(lambda body: (200, answer)) as (url, bodies):
        arguments = [url, "--api", "completions", "--rate", "500", "--requests", "3", "--warm-up", "0"]
        done = CliRunner().invoke(command, [*arguments, "--prompts", str(prompts), "--model", "n", "--ignore-eos"])
    assert done.exit_code == 0, done.output
    assert sorted(body["prompt"] for body in bodies) == ["one", "one", "two"]
    assert all(body["ignore_eos"] for body in bodies)
    assert "counted by chunks" in done.output


def test_what_cannot_be_measured_is_said() -> None:
    def failure(*arguments: str) -> str:
        done = CliRunner().invoke(command, [*arguments, "--requests", "1"], standalone_mode=False)
        assert isinstance(done.exception, RequestError), done
        return str(done.exception)

    assert "cannot be reached" in failure("http://127.0.0.1:9")
    assert "TOKLOOM_NO_SUCH" in failure("http://127.0.0.1:9", "--api-key-env", "TOKLOOM_NO_SUCH")
    with server(lambda body: (500, b"")) as (url, _):
        done = CliRunner().invoke(command, [url, "--requests", "2", "--warm-up", "0"])
        assert done.exit_code == 0
        assert "2 x HTTP 500" in done.output
    assert CliRunner().invoke(command, ["http://x", "--objective", "speed=1"]).exit_code == 2
