"""The table of routes: what answers, and what /openapi.json says about it."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from attrs import frozen
from starlette.requests import Request
from starlette.types import ASGIApp

from tokloom.serve.http import live, plain
from tokloom.serve.http.chat import ChatChunk, ChatCompletion, chat_completions
from tokloom.serve.http.completions import TextCompletion, completions
from tokloom.serve.http.embeddings import EmbeddingList, embeddings
from tokloom.serve.http.errors import HttpError
from tokloom.serve.http.fields import Strict
from tokloom.serve.http.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    ResponseRequest,
    TokenizeRequest,
)
from tokloom.serve.http.responses import ResponseEvent, ResponseObject, responses
from tokloom.serve.http.service import Service

Handler = Callable[[Service, Request], Awaitable[ASGIApp]]
MODELS: Final = "/v1/models/"


@frozen(kw_only=True)
class Route:
    """One path with its one method; GET also answers HEAD.

    Attributes:
        body: class of the request's JSON body.
        answer: type of the response's JSON body; None where it is no JSON.
        event: type of the JSON in a server-sent event, where the route can stream.
        statuses: of errors that the route has beyond those of all.
    """

    path: str
    method: str
    handler: Handler
    body: type[Strict] | None = None
    answer: Any = None
    event: Any = None
    statuses: tuple[int, ...] = ()


#: of every route with a body
_BODY: Final = (400, 404, 408, 413, 415, 503)
_GENERATES: Final = (*_BODY, 429)

ROUTES: Final[tuple[Route, ...]] = (
    Route(path="/v1/models", method="GET", handler=plain.list_models, answer=plain.ModelList),
    Route(
        path=MODELS + "{model}",
        method="GET",
        handler=plain.show_model,
        answer=plain.ModelObject,
        statuses=(404,),
    ),
    Route(
        path="/v1/chat/completions",
        method="POST",
        handler=chat_completions,
        body=ChatRequest,
        answer=ChatCompletion,
        event=ChatChunk,
        statuses=_GENERATES,
    ),
    Route(
        path="/v1/completions",
        method="POST",
        handler=completions,
        body=CompletionRequest,
        answer=TextCompletion,
        event=TextCompletion,
        statuses=_GENERATES,
    ),
    Route(
        path="/v1/responses",
        method="POST",
        handler=responses,
        body=ResponseRequest,
        answer=ResponseObject,
        event=ResponseEvent,
        statuses=_GENERATES,
    ),
    Route(
        path="/v1/embeddings",
        method="POST",
        handler=embeddings,
        body=EmbeddingRequest,
        answer=EmbeddingList,
        statuses=_GENERATES,
    ),
    Route(
        path="/tokenize",
        method="POST",
        handler=plain.tokenize,
        body=TokenizeRequest,
        answer=plain.Tokens,
        statuses=_BODY,
    ),
    Route(
        path="/detokenize",
        method="POST",
        handler=plain.detokenize,
        body=DetokenizeRequest,
        answer=plain.Detokenized,
        statuses=_BODY,
    ),
    Route(path="/health", method="GET", handler=plain.health, answer=plain.Status, statuses=(503,)),
    Route(path="/ready", method="GET", handler=plain.ready, answer=plain.Status, statuses=(503,)),
    Route(path="/version", method="GET", handler=plain.version, answer=plain.VersionObject),
    Route(
        path="/v1/tokloom/snapshot",
        method="GET",
        handler=live.snapshot,
        answer=live.SnapshotObject,
        statuses=(503,),
    ),
    Route(path="/metrics", method="GET", handler=plain.metrics, statuses=(404,)),
)


class Routes:
    """Finds the handler of a request."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        self._routes = {route.path: route for route in routes}

    def find(self, method: str, path: str) -> tuple[Handler, dict[str, str]]:
        """The handler and what the path names. Raises HttpError 404 or 405."""
        parameters: dict[str, str] = {}
        route = self._routes.get(path)
        if route is None and path.startswith(MODELS) and len(path) > len(MODELS):
            route, parameters = self._routes.get(MODELS + "{model}"), {"model": path[len(MODELS) :]}
        if route is None:
            raise HttpError(404, f"there is nothing at {path[:200]!r}", kind="not_found", remedy="See /openapi.json")
        methods = ("GET", "HEAD") if route.method == "GET" else (route.method,)
        if method not in methods:
            allowed = ", ".join(methods)
            raise HttpError(
                405,
                f"{method[:20]} is not for {path[:200]!r}",
                kind="method_not_allowed",
                remedy=f"Use {allowed}",
                headers={"allow": allowed},
            )
        return route.handler, parameters
