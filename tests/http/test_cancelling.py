"""Clients that go, read slowly, or are too many; engines that fail under them."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_core import ByteTokenizer, FakeCore, spell
from served import (
    CHAT,
    HI,
    TEXT,
    Served,
    endless,
    events,
    eventually,
    fake_core,
    freed,
    raw_post,
    serving,
    serving_core,
)
from tiny_chat import SETS

from tokloom.api import AsyncEngine

LONG = {**HI, "max_tokens": 10**8}


@contextmanager
def asked(served: Served, path: str, body: dict[str, Any]) -> Iterator[Any]:
    """A connection on which a request was sent."""
    with served.connect() as connection:
        connection.sendall(raw_post(path, json.dumps(body).encode()))
        yield connection


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_client_that_goes_ends_its_requests(path: str, stream: bool) -> None:
    core = fake_core(endless)
    body = {**LONG, "n": 2} if path == CHAT else {"prompt": ["a", "b"], "n": 2, "max_tokens": 10**8}
    with serving_core(core) as served:
        with asked(served, path, {**body, "stream": stream}) as connection:
            eventually(lambda: len(core.held) == (2 if path == CHAT else 4))
            if stream:
                assert connection.recv(100).startswith(b"HTTP/1.1 200")
        freed(served, core)
        core._answer = spell("next")
        assert served.post(CHAT, HI).json()["choices"][0]["message"]["content"] == "next"


def test_a_client_that_goes_while_its_prompt_is_tokenised_leaves_nothing() -> None:
    core, tokenizer = fake_core(endless), ByteTokenizer()
    entered, let_go = threading.Event(), threading.Event()

    def slow() -> None:
        entered.set()
        assert let_go.wait(60)

    tokenizer.before_encode = slow
    with serving_core(core, tokenizer) as served:
        with asked(served, CHAT, LONG):
            assert entered.wait(60)
        eventually(lambda: served.live == 0)
        let_go.set()
        eventually(lambda: core.steps > 0)
        freed(served, core)


def test_pages_return_when_a_client_goes(model: Path) -> None:
    async def load() -> AsyncEngine:
        return await AsyncEngine.from_profile("builtin:cpu", model=model, sets=SETS)

    with serving(load) as served:
        engine = served.server.service.loaded
        assert engine is not None
        allocator = engine.core.state.allocator
        for stream in (False, True):
            body = {**HI, "max_tokens": 10**6, "ignore_eos": True, "stream": stream}
            with asked(served, CHAT, body):
                eventually(lambda: allocator.stats().held_pages > 0)
            eventually(lambda: allocator.stats().held_pages == 0)
            assert served.live == 0
        assert served.post(CHAT, HI).status_code == 200


def test_a_prompt_beyond_the_context_is_told_both_numbers(model: Path) -> None:
    async def load() -> AsyncEngine:
        return await AsyncEngine.from_profile("builtin:cpu", model=model, sets=SETS)

    with serving(load) as served:
        for body in ({"prompt": [1] * 256, "max_tokens": 1}, {"prompt": [1] * 300, "stream": True}):
            response = served.post(TEXT, body)
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
            assert str(len(body["prompt"])) in error["message"]  # type: ignore[arg-type]
            assert "255" in error["message"]
        assert served.post(TEXT, {"prompt": [1] * 255, "max_tokens": 9}).json()["usage"]["completion_tokens"] == 1


def test_a_slow_reader_costs_nobody_else_and_is_cut_off_at_last() -> None:
    core = fake_core(endless, burst=100)
    body = {**LONG, "stream": True, "logprobs": True}  # much to send, so that buffers fill soon
    with serving_core(core, write_seconds=0.5) as served, asked(served, CHAT, body):
        eventually(lambda: len(core.held) == 1)
        core_answer, core._answer = core._answer, spell("quick")
        assert served.post(CHAT, HI).json()["choices"][0]["message"]["content"] == "quick"
        core._answer = core_answer
        freed(served, core)


def test_who_is_too_many_is_told_to_come_again() -> None:
    core = fake_core(endless, sequences=2)
    with serving_core(core, max_queue=1) as served, asked(served, CHAT, {**LONG, "n": 3}):
        eventually(lambda: served.live == 3)
        for path, body in ((CHAT, HI), (CHAT, {**HI, "stream": True}), (TEXT, {"prompt": "a"})):
            response = served.post(path, body)
            assert response.status_code == 429
            assert int(response.headers["retry-after"]) > 0
            assert response.json()["error"]["code"] == "queue_full"
        assert served.http.get("/health").status_code == 200


def test_a_full_queue_of_the_engine_reads_the_same() -> None:
    core = fake_core(endless, limit=1)
    with serving_core(core) as served, asked(served, CHAT, {**LONG, "stream": True}):
        eventually(lambda: len(core.held) == 1)
        response = served.post(CHAT, HI)
        assert (response.status_code, response.json()["error"]["code"]) == (429, "queue_full")
        assert response.headers["retry-after"]


def broken(core: FakeCore, served: Served, stream: bool) -> None:
    core.gate.clear()
    with asked(served, CHAT, {**LONG, "stream": stream}) as connection:
        eventually(lambda: bool(core.known))
        core.broken = RuntimeError("lost pages of /secret/path")
        core.gate.set()
        answer = b""
        while b"request id" not in answer:
            piece = connection.recv(65536)
            assert piece, answer
            answer += piece
    assert b"secret" not in answer
    assert b"500 Internal Server Error" in answer


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_before_the_answer_is_500_with_the_request_id_and_nothing_else(stream: bool) -> None:
    core = fake_core(endless)
    with serving_core(core) as served:
        broken(core, served, stream)
        response = served.post(CHAT, HI, x_request_id="mine-1")
        assert response.status_code == 500
        assert "mine-1" in response.json()["error"]["message"]
        for probe in ("/health", "/ready"):
            response = served.http.get(probe)
            assert (response.status_code, response.json()) == (503, {"status": "failed"})


def test_a_fault_within_a_stream_is_its_last_event() -> None:
    core = fake_core(endless)
    with serving_core(core) as served, served.http.stream("POST", CHAT, json={**LONG, "stream": True}) as response:
        lines = response.iter_text()
        text = next(lines)
        core.broken = RuntimeError("lost pages")
        text += "".join(lines)
        found = events(text)
    assert found[-1]["error"]["type"] == "server_error"
    assert "lost" not in found[-1]["error"]["message"]
    assert all("error" not in chunk for chunk in found[:-1])


def test_one_bad_prompt_of_several_ends_the_others() -> None:
    class Fragile(ByteTokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            if token_id == ord("!"):
                raise KeyError("piece 33")
            return super().token_bytes(token_id)

    core = fake_core(lambda request, child: b"!" if request.prompt_ids[-1] == ord("x") else endless(request, child))
    with serving_core(core, Fragile()) as served:
        response = served.post(TEXT, {"prompt": ["a", "x", "b"], "max_tokens": 10**8})
        assert response.status_code == 500
        freed(served, core)
