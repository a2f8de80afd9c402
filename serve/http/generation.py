"""Generation: the ASGI response that runs a client's requests, as one body or as server-sent events.

One task per HTTP request reads the engine's events and writes them; beside it, a second one only waits for the client
to go, which cancels the first and with it the engine's requests. A client that reads slowly makes `send` wait; events
that come meanwhile are joined by the engine's mailbox, so that nothing grows but the text itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Final, Protocol, TypeVar

from starlette.types import Receive, Scope, Send

from tokloom import AsyncEngine, Event, GenerateRequest
from tokloom.serve.http.errors import ClientGone, body_of, encode, status_of
from tokloom.serve.http.reporting import report_failure, request_id_of
from tokloom.serve.http.service import Service

T = TypeVar("T")
Take = Callable[[int, Event], Awaitable[None]]

_STREAM_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Rendering(Protocol):
    """How the events of one HTTP request look to its client. `choice` counts through the `n` answers of each prompt."""

    def chunk(self, choice: int, event: Event) -> bytes:
        """Server-sent events of an event; empty where it shows nothing."""
        ...

    def last(self) -> bytes:
        """What comes after the last event of the last choice, the stream's end included."""
        ...

    def take(self, choice: int, event: Event) -> None:
        """Keep an event for `body`."""
        ...

    def body(self) -> object:
        """The answer as one JSON value, after all events were taken."""
        ...


class Generation:
    """Runs the engine's requests of one HTTP request; `requests` has one per prompt.

    Errors before the first byte are raised; after it, a stream ends with an event that holds the error.
    """

    def __init__(
        self, service: Service, requests: Sequence[GenerateRequest], rendering: Rendering, *, stream: bool
    ) -> None:
        self._service = service
        self._requests = requests
        self._rendering = rendering
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sequences = sum(request.sampling.n for request in self._requests)
        with self._service.admitted(sequences) as engine:
            if self._stream:
                await while_connected(receive, self._run_stream(engine, scope, send))
            else:
                body = await while_connected(receive, self._run_whole(engine))
        if not self._stream:
            await send_json(send, body)

    async def _run_whole(self, engine: AsyncEngine) -> bytes:
        async def take(choice: int, event: Event) -> None:
            self._rendering.take(choice, event)

        await self._read_all(engine, take)
        return encode(self._rendering.body())

    async def _run_stream(self, engine: AsyncEngine, scope: Scope, send: Send) -> None:
        stream = _Stream(send)
        rendering = self._rendering

        async def take(choice: int, event: Event) -> None:
            data = rendering.chunk(choice, event)
            if data:
                await stream.write(data)

        try:
            await self._read_all(engine, take)
            await stream.write(rendering.last())
        except Exception as error:
            if not stream.started:
                raise
            if status_of(error) == 500:
                report_failure(scope, error)
            await stream.write(b"data: " + encode(body_of(error, request_id_of(scope))) + b"\n\n")
        await stream.end()

    async def _read_all(self, engine: AsyncEngine, take: Take) -> None:
        """Every event of every request; the first error ends them all and is raised."""
        if len(self._requests) == 1:
            await _read(engine, self._requests[0], 0, take)
            return
        try:
            async with asyncio.TaskGroup() as group:
                base = 0
                for request in self._requests:
                    group.create_task(_read(engine, request, base, take))
                    base += request.sampling.n
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None


async def _read(engine: AsyncEngine, request: GenerateRequest, base: int, take: Take) -> None:
    async with aclosing(engine.generate(request)) as events:
        async for event in events:
            if event.error is None:  # else the iterator raises it next
                await take(base + event.index, event)


class _Stream:
    """Server-sent events; the response starts with the first of them, so that a refusal before it has its status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = asyncio.Lock()
        self.started = False

    async def write(self, data: bytes) -> None:
        """Waits while the client reads too slowly."""
        async with self._lock:
            if not self.started:
                self.started = True
                await self._send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; if the client goes first, `work` is cancelled and ClientGone raised."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_json(send: Send, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
    """One JSON response."""
    lines = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    lines += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body, "more_body": False})
