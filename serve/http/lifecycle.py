"""Lifecycle of one server: the socket first, then the model, requests, and an end that loses nobody's answer.

bind ── listen: /health 200, /ready 503 ── load ── ready ── signal ── drain ── close
                                                              │         live requests go on for drain_seconds,
                                                              │         new ones get 503 with Retry-After
                                                              └─ a second signal: the process ends at once
"""

import asyncio
import contextlib
import os
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvicorn

from tokloom import AsyncEngine
from tokloom.sdk import CompositionError, ProfileError
from tokloom.serve.http.app import build_app
from tokloom.serve.http.config import ServeSection
from tokloom.serve.http.connections import MAX_HEAD, protocol_class
from tokloom.serve.http.service import Service

if TYPE_CHECKING:
    from tokloom.serve.grpc.server import GrpcServer

_BACKLOG: Final = 512
#: seconds for answers that are complete to leave, after the engine has stopped
_FLUSH: Final = 5


class Server:
    """Serves one engine until `stop`. `run` is all there is to call; nothing here configures logging or signals."""

    def __init__(self, section: ServeSection, names: tuple[str, ...]) -> None:
        """Binds the socket. Raises ProfileError if the address, the keys or the certificate cannot be used."""
        self.section = section
        self.service = Service(section, names)
        app = build_app(self.service, section.keys())
        _check_certificate(section)
        self._socket = _bind(section)
        self._stopping = asyncio.Event()
        self._grpc = _grpc_server(section, names)
        self._grpc_port = -1
        self._uvicorn = _Uvicorn(
            uvicorn.Config(
                app,
                http=protocol_class(section),
                h11_max_incomplete_event_size=2 * MAX_HEAD,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=_BACKLOG,
                timeout_keep_alive=section.keep_alive_seconds,
                timeout_graceful_shutdown=_FLUSH,
                ssl_certfile=section.tls_cert or None,
                ssl_keyfile=section.tls_key or None,
            )
        )

    @property
    def url(self) -> str:
        """Where it listens, with the port that was taken."""
        host, port = self._socket.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self.section.tls_cert else 'http'}://{shown}:{port}{self.section.root_path}"

    @property
    def grpc_port(self) -> int:
        """The port of gRPC once `run` listens; -1: there is none."""
        return self._grpc_port

    def stop(self) -> None:
        """Begin to drain. On the server's event loop."""
        self.service.close()
        self._stopping.set()

    async def run(
        self, load: Callable[[], Awaitable[AsyncEngine]], ready: Callable[[], None], *, then_exit: bool = False
    ) -> None:
        """Load, call `ready`, serve until `stop`, drain, close the engine. Raises what `load` raises.

        `then_exit`: if it is stopped while it loads, end the process instead of waiting for the loading thread.
        """
        if self._grpc is not None:
            self._grpc_port = await self._grpc.start()
        serving = asyncio.create_task(self._uvicorn.serve(sockets=[self._socket]))
        loading = asyncio.ensure_future(load())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((loading, stopping, serving), return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                self.service.open(loading.result())
                if self._grpc is not None:
                    await self._grpc.open(loading.result())
                ready()
                await asyncio.wait((stopping, serving), return_when=asyncio.FIRST_COMPLETED)
            elif then_exit and self._stopping.is_set():
                os._exit(0)
        finally:
            self.service.close()
            loading.cancel()
            stopping.cancel()
            await self._drain()
            self._uvicorn.should_exit = True
            await asyncio.gather(serving, loading, stopping, return_exceptions=True)
        serving.result()

    async def _drain(self) -> None:
        """Both front ends refuse at once; what is live ends with the engine."""
        seconds = self.section.drain_seconds
        ends: list[Awaitable[None]] = []
        if self._grpc is not None:
            ends.append(self._grpc.stop(seconds + _FLUSH))
        if self.service.loaded is not None:
            ends.append(self.service.loaded.aclose(drain=seconds))
        await asyncio.gather(*ends)


class _Uvicorn(uvicorn.Server):
    """Leaves the signals of the process alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def run_until_signal(
    section: ServeSection,
    names: tuple[str, ...],
    load: Callable[[], Awaitable[AsyncEngine]],
    say: Callable[[str], None],
) -> None:
    """For a process that does nothing else: SIGTERM and SIGINT drain, a second one ends it at once."""
    server = Server(section, names)
    say(f"listening at {server.url}, loading the model")
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        if server.service.phase == "draining":
            os._exit(128 + number)
        say(f"shutting down; live requests have {section.drain_seconds:g} s")
        server.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, int(number))

    def on_ready() -> None:
        beside = f" and gRPC at {section.host}:{server.grpc_port}" if server.grpc_port >= 0 else ""
        say(f"serving {', '.join(names)} at {server.url}{beside}")

    await server.run(load, on_ready, then_exit=True)


def _grpc_server(section: ServeSection, names: tuple[str, ...]) -> "GrpcServer | None":
    if section.grpc_port < 0:
        return None
    try:
        from tokloom.serve.grpc.server import GrpcConfig, GrpcServer
    except ImportError as error:
        raise CompositionError(f"{error}", subject="serve.grpc_port", remedy="pip install 'tokloom[grpc]'") from None
    tls = None
    if section.tls_cert:
        tls = (Path(section.tls_key).read_bytes(), Path(section.tls_cert).read_bytes())
    config = GrpcConfig(
        host=section.host,
        port=section.grpc_port,
        keys=section.keys(),
        names=names,
        tls=tls,
        max_message_bytes=section.max_body_bytes,
        max_calls=section.max_connections,
    )
    return GrpcServer(config)


def _bind(section: ServeSection) -> socket.socket:
    family = socket.AF_INET6 if ":" in section.host else socket.AF_INET
    try:
        return socket.create_server((section.host, section.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ProfileError(
            f"cannot listen at {section.host} port {section.port}: {error.strerror or error}",
            subject="serve.host, serve.port",
            remedy="Use an address of this machine and a free port; 0 takes any",
        ) from None


def _check_certificate(section: ServeSection) -> None:
    if not section.tls_cert:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(section.tls_cert, section.tls_key)
    except (OSError, ValueError) as error:
        raise ProfileError(
            f"cannot be used: {error}", subject="serve.tls_cert, serve.tls_key", remedy="Give PEM files that match"
        ) from None
