"""A real server on a free port, in a thread of its own, over a core that answers what a test chose."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx
from fake_core import ByteTokenizer, FakeCore, Forever

from tokloom.api import AsyncEngine
from tokloom.core.composition import Used
from tokloom.core.events import OutputEvent
from tokloom.sdk import GenerationDefaults, KVLayout, Request
from tokloom.serve.http.config import ServeSection
from tokloom.serve.http.lifecycle import Server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(4000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("never happened")


class Endless(Forever):
    """The letter a without end, also where `max_tokens` cuts it at what the test never reaches."""

    def __getitem__(self, part: Any) -> Any:
        if isinstance(part, slice) and len(range(*part.indices(len(self)))) > 10**6:
            return self
        return super().__getitem__(part)


def endless(request: Request, child: int) -> Sequence[int]:
    return Endless()


class Paced(FakeCore):
    """Leaves the interpreter to other threads, as a real step does."""

    def step(self) -> list[OutputEvent]:
        time.sleep(0.001)
        return super().step()


def fake_core(
    answer: Callable[[Request, int], Sequence[int]], *, sequences: int = 4, limit: int = 64, burst: int = 1
) -> FakeCore:
    """A fake core that knows its sizes."""
    core = Paced(answer, burst=lambda: burst, limit=limit)
    core.composition = SimpleNamespace(
        settings=SimpleNamespace(max_sequences=sequences, max_model_tokens=4096, page_tokens=16, threads=1),
        observers=(),
        used=(Used(section="model", kind="model", plugin="fake", distribution="tests", version="1"),),
        device=SimpleNamespace(info=SimpleNamespace(name="none")),
        layout=KVLayout((), (), (), b""),
        model=SimpleNamespace(
            spec=SimpleNamespace(name="fake", dtype="float32", vocab_size=258, generation=GenerationDefaults())
        ),
    )
    return core


class Served:
    """One running server.

    Attributes:
        http: a client of it.
        failure: what `Server.run` raised.
    """

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self.url = server.url
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        self.failure: BaseException | None = None
        self.over = threading.Event()
        self._loop = loop

    @property
    def live(self) -> int:
        """Sequences that the server counts as live."""
        return self.server.service.live

    def stop(self) -> None:
        """As a signal does."""
        self._loop.call_soon_threadsafe(self.server.stop)

    def connect(self) -> socket.socket:
        """A bare connection."""
        host, port = self.url.removeprefix("http://").split("/")[0].rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=60)

    def post(self, path: str, body: object, **headers: str) -> httpx.Response:
        """A JSON request."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.post(path, content=json.dumps(body), headers={"content-type": "application/json", **named})

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The data of a stream's events; the last one, `[DONE]`, as text."""
        response = self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        return events(response.text)


def events(text: str) -> list[Any]:
    """The data of server-sent events."""
    assert text.endswith("\n\n")
    lines = text[:-2].split("\n\n")
    assert all(line.startswith("data: ") for line in lines), lines
    data = [line.removeprefix("data: ") for line in lines]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


def raw_post(path: str, body: bytes, headers: str = "") -> bytes:
    """A request as bytes."""
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{headers}content-length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


@contextmanager
def serving(
    load: Callable[[], Awaitable[AsyncEngine]],
    *,
    wait: bool = True,
    names: tuple[str, ...] = ("tiny", "alias"),
    **section: Any,
) -> Iterator[Served]:
    """A server over what `load` gives; afterwards it has ended."""
    started: list[Served] = []
    up, ready = threading.Event(), threading.Event()

    async def main() -> None:
        server = Server(ServeSection(**{"port": 0, "drain_seconds": 0.0, **section}), names)
        served = Served(server, asyncio.get_running_loop())
        started.append(served)
        up.set()
        try:
            await server.run(load, ready.set)
        except BaseException as error:
            served.failure = error
        finally:
            ready.set()
            served.over.set()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert up.wait(60)
    served = started[0]
    try:
        if wait:
            assert ready.wait(120)
        yield served
    finally:
        served.http.close()
        if not served.over.is_set():
            served.stop()
        thread.join(60)
        assert not thread.is_alive()


@contextmanager
def serving_core(core: FakeCore, tokenizer: ByteTokenizer | None = None, **options: Any) -> Iterator[Served]:
    """A server over a fake core."""

    async def load() -> AsyncEngine:
        return AsyncEngine(core, tokenizer or ByteTokenizer())  # type: ignore[arg-type]

    with serving(load, **options) as served:
        try:
            yield served
        finally:
            core.gate.set()


def freed(served: Served, core: FakeCore) -> None:
    """Wait until nothing of any request is left."""
    eventually(lambda: not core.held and not core.known and not core.busy and served.live == 0)
