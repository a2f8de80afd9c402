"""The ASGI application: request ids outermost, then CORS, then keys, routes and errors.

Plain ASGI all the way, so that a streamed token passes through two small functions and no queue.
"""

import asyncio
import contextlib
import time
from typing import Any
from uuid import uuid4

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokloom.serve.http.auth import OPEN_PATHS, check_key
from tokloom.serve.http.bodies import DISCARD
from tokloom.serve.http.errors import ClientGone, body_of, encode, headers_of, status_of
from tokloom.serve.http.generation import send_json
from tokloom.serve.http.openapi import document
from tokloom.serve.http.page import page_routes
from tokloom.serve.http.plain import answer
from tokloom.serve.http.reporting import report_failure, report_request, request_id_of
from tokloom.serve.http.routes import ROUTES, Route, Routes
from tokloom.serve.http.service import Service
from tokloom.serve.keys import Keys

#: longest request id that is taken from a client
_LONGEST_ID = 128
#: how long the body of a request that is refused may take to come
_DISCARD_SECONDS = 1.0


def build_app(service: Service, keys: tuple[str, ...] = ()) -> ASGIApp:
    """The application over a service, whether its engine is there yet or not."""
    section = service.section
    described = document(ROUTES, root_path=section.root_path, keys=bool(keys))

    async def openapi(service: Service, request: Request) -> Response:
        """This document."""
        return answer(described)

    routes = (*ROUTES, Route(path="/openapi.json", method="GET", handler=openapi, answer=dict))
    pages = page_routes(section.root_path) if section.playground else ()
    open_paths = OPEN_PATHS.union(route.path for route in pages)
    app: ASGIApp = Guarded(service, Routes((*routes, *pages)), Keys(keys), open_paths)
    if section.cors_origins:
        app = CORSMiddleware(
            app,
            allow_origins=section.cors_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=("x-request-id", "retry-after"),
        )
    return RequestIds(app, section.root_path)


class RequestIds:
    """Gives each request an id: the client's `x-request-id` if it is short printable ASCII, else a fresh one. Takes the
    proxy's prefix from the path, if the proxy left it there.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request_id = _given_id(scope) or uuid4().hex
        state = {**scope.get("state", {}), "request_id": request_id}
        path = scope["path"]
        if self._root_path and (path == self._root_path or path.startswith(self._root_path + "/")):
            path = path[len(self._root_path) :]
        header = (b"x-request-id", request_id.encode())

        async def tagged(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        await self._app({**scope, "state": state, "path": path, "root_path": ""}, receive, tagged)


def _given_id(scope: Scope) -> str:
    values = [value for name, value in scope["headers"] if name == b"x-request-id"]
    if len(values) != 1 or not 0 < len(values[0]) <= _LONGEST_ID or not values[0].isascii():
        return ""
    text: str = values[0].decode("ascii")
    return text if text.isprintable() else ""


class Guarded:
    """Keys, routes, and every error as OpenAI's error object with its status."""

    def __init__(self, service: Service, routes: Routes, keys: Keys, open_paths: frozenset[str]) -> None:
        self._service = service
        self._routes = routes
        self._keys = keys
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begin = time.perf_counter()
        status = 0
        names = {name for name, _ in scope["headers"]}
        unread = b"content-length" in names or b"transfer-encoding" in names

        async def reading() -> Message:
            nonlocal unread
            message = await receive()
            unread = unread and message.get("more_body", False)
            return message

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._answer(scope, reading, noted)
        except ClientGone:
            status = 499
        except Exception as error:
            if status_of(error) == 500:
                report_failure(scope, error)
            if status:  # the answer has begun: only an end of the connection can say that it is not whole
                raise
            headers = headers_of(error)
            if unread and b"expect" not in names:  # who asks first has not sent it
                await _discard(reading)
            if unread:  # what is left of the body must not be taken for the next request
                headers["connection"] = "close"
            body = encode(body_of(error, request_id_of(scope)))
            await send_json(noted, body, status_of(error), headers)
        finally:
            report_request(scope, status, time.perf_counter() - begin)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        check_key(self._keys, scope["path"], scope["headers"], self._open_paths)
        handler, parameters = self._routes.find(scope["method"], scope["path"])
        inner: dict[str, Any] = {**scope, "path_params": parameters}
        response = await handler(self._service, Request(inner, receive))
        await response(inner, receive, send)


async def _discard(receive: Receive) -> None:
    """Read what is left of a body, within bounds: its sender reads the answer only after it has sent all."""
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            while size < DISCARD:
                message = await receive()
                if not message.get("more_body", False):
                    return
                size += len(message["body"])
