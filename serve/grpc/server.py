"""GrpcServer: one engine behind `tokloom.v1.Inference`, grpc.health.v1 and reflection.

start (port bound, loading) ── open(engine) ── requests ── stop(drain): new calls refused, live ones go on ── end
"""

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
from attrs import field, frozen
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tokloom import AsyncEngine, __version__
from tokloom.sdk import ClosedError, ProfileError, RequestError
from tokloom.serve.grpc import messages
from tokloom.serve.grpc.convert import to_message, to_request
from tokloom.serve.grpc.status import details_of, status_of, trailers_of
from tokloom.serve.keys import Keys
from tokloom.serve.tracing import trace_of

_LOG: Final = logging.getLogger("tokloom.serve.grpc")
_HEALTH: Final = "grpc.health.v1.Health"
_REFLECTION: Final = reflection.SERVICE_NAME


@frozen(kw_only=True)
class GrpcConfig:
    """Where and for whom to serve.

    Attributes:
        port: 0 takes a free one.
        keys: accepted API keys; none: open to all. Health needs none.
        names: of the model for clients.
        tls: PEM private key and certificate chain, or None.
        max_message_bytes: longest request.
        max_calls: calls at once; beyond, RESOURCE_EXHAUSTED.
    """

    host: str = "127.0.0.1"
    port: int = 0
    keys: tuple[str, ...] = field(default=(), repr=False)
    names: tuple[str, ...] = ("model",)
    tls: tuple[bytes, bytes] | None = field(default=None, repr=False)
    max_message_bytes: int = 4 << 20
    max_calls: int = 1024


class GrpcServer:
    """Lives on one event loop. The engine belongs to the caller."""

    def __init__(self, config: GrpcConfig) -> None:
        self._config = config
        self._engine: AsyncEngine | None = None
        self._draining = False
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> int:
        """Bind and listen; returns the port. Until `open`, calls are told to come back. Raises ProfileError if the
        address cannot be used.
        """
        config = self._config
        server = grpc.aio.server(
            interceptors=(_KeyCheck(Keys(config.keys)),),
            maximum_concurrent_rpcs=config.max_calls,
            options=(
                ("grpc.max_receive_message_length", config.max_message_bytes),
                ("grpc.so_reuseport", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
                ("grpc.http2.max_ping_strikes", 5),
            ),
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        server.add_generic_rpc_handlers((self._handlers(),))
        reflection.enable_server_reflection((messages.SERVICE, _HEALTH, _REFLECTION), server)
        await self._say(health_pb2.HealthCheckResponse.NOT_SERVING)
        host = f"[{config.host}]" if ":" in config.host else config.host
        address = f"{host}:{config.port}"
        try:
            if config.tls is None:
                port: int = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, grpc.ssl_server_credentials([config.tls]))
        except RuntimeError as error:
            raise ProfileError(
                f"cannot listen at {config.host} port {config.port}: {error}",
                subject="serve.host, serve.grpc_port",
                remedy="Use an address of this machine and a free port; 0 takes any",
            ) from None
        await server.start()
        self._server = server
        return port

    async def open(self, engine: AsyncEngine) -> None:
        """Take requests for `engine`."""
        self._engine = engine
        await self._say(health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, drain: float = 0.0) -> None:
        """Refuse new calls, let live ones go on for `drain` seconds, end the rest. Idempotent."""
        self._draining = True
        await self._health.enter_graceful_shutdown()
        if self._server is not None:
            await self._server.stop(drain)

    async def _say(self, status: Any) -> None:
        for service in ("", messages.SERVICE):
            await self._health.set(service, status)

    def _handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            messages.SERVICE,
            {
                "Generate": grpc.unary_stream_rpc_method_handler(
                    self._generate, None, messages.GenerateEvent.SerializeToString
                ),
                "Health": grpc.unary_unary_rpc_method_handler(
                    self._answer_health, messages.HealthRequest.FromString, messages.HealthResponse.SerializeToString
                ),
                "Info": grpc.unary_unary_rpc_method_handler(
                    self._answer_info, messages.InfoRequest.FromString, messages.InfoResponse.SerializeToString
                ),
            },
        )

    async def _generate(self, data: bytes, call: "grpc.aio.ServicerContext[Any, Any]") -> AsyncIterator[Any]:
        """A client that cancels or leaves ends this generator, and with it the request. The message is read here, so
        that bytes that are none are the client's fault.
        """
        try:
            trace = trace_of(call.invocation_metadata() or ())
            request = to_request(_read(data), call.time_remaining(), trace)
            async with contextlib.aclosing(self._loaded().generate(request)) as events:
                async for event in events:
                    yield to_message(event)
        except Exception as error:
            if isinstance(error, grpc.aio.AbortError):
                raise
            if status_of(error) is grpc.StatusCode.INTERNAL:
                _LOG.error("a request failed", exc_info=error)
            await call.abort(status_of(error), details_of(error), trailers_of(error))

    def _loaded(self) -> AsyncEngine:
        if self._engine is None:
            raise ClosedError("the model is loading", remedy="Retry later")
        if self._draining:
            raise ClosedError("the server is shutting down", remedy="Use another server")
        return self._engine

    async def _answer_health(self, message: Any, call: "grpc.aio.ServicerContext[Any, Any]") -> Any:
        kinds = messages.HealthResponse.Status
        if self._draining:
            return messages.HealthResponse(status=kinds.Value("STATUS_DRAINING"), message="the server is shutting down")
        if self._engine is None:
            return messages.HealthResponse(status=kinds.Value("STATUS_LOADING"), message="the model is loading")
        failure = self._engine.failure
        if failure is not None:
            return messages.HealthResponse(status=kinds.Value("STATUS_FAILED"), message=str(failure))
        return messages.HealthResponse(status=kinds.Value("STATUS_READY"), message="ready")

    async def _answer_info(self, message: Any, call: "grpc.aio.ServicerContext[Any, Any]") -> Any:
        try:
            engine = self._loaded()
        except ClosedError as error:
            await call.abort(status_of(error), details_of(error), trailers_of(error))
        spec, settings = engine.core.composition.model.spec, engine.core.composition.settings
        return messages.InfoResponse(
            version=__version__,
            names=self._config.names,
            model_digest=spec.digest,
            max_model_tokens=settings.max_model_tokens,
            vocabulary=spec.vocab_size,
            has_tokenizer=engine.tokenizer is not None,
            adapters=sorted(engine.adapters),
            poolings=spec.poolings,
        )


def _read(data: bytes) -> Any:
    try:
        return messages.GenerateRequest.FromString(data)
    except DecodeError as error:
        raise RequestError(f"the message cannot be read: {error}", remedy="Send a GenerateRequest") from None


class _KeyCheck(grpc.aio.ServerInterceptor):
    """UNAUTHENTICATED for calls without a key, but of health."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        details: grpc.HandlerCallDetails,
    ) -> Any:
        if self._keys.open or details.method.startswith(f"/{_HEALTH}/"):
            return await continuation(details)
        values = [value for name, value in details.invocation_metadata if name == "authorization"]
        sent = values[0] if len(values) == 1 else b""
        if self._keys.accept(sent.encode() if isinstance(sent, str) else sent):
            return await continuation(details)
        return grpc.unary_unary_rpc_method_handler(_refuse)


async def _refuse(message: Any, call: "grpc.aio.ServicerContext[Any, Any]") -> None:
    await call.abort(
        grpc.StatusCode.UNAUTHENTICATED,
        "no API key was sent, or a wrong one. Send the metadata: authorization: Bearer KEY",
    )
