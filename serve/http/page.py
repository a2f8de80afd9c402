"""The playground: a page at / and its files, as they lie in the package. Nothing is built or comes from elsewhere.

Every file has a route of its own, made when the server starts, so no path is ever taken from a request.
"""

import hashlib
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from tokloom.serve.http.routes import Handler, Route
from tokloom.serve.http.service import Service

#: endings of the page's files -> what they are
KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
#: only files of this server, no inline code, no frames; https://www.w3.org/TR/CSP3/
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # may be kept, and is asked for again: a newer server has a newer page
}
_PREFIX: Final = "/playground/"


def page_routes(root_path: str) -> tuple[Route, ...]:
    """The page at `/`, its files below `/playground/`. Links in them are relative, so that any prefix does; the prefix
    itself, which lacks the last slash, leads to the page.
    """
    routes = [Route(path="", method="GET", handler=_redirect(root_path + "/"))]
    for entry in sorted(files("tokloom.serve.http").joinpath("playground").iterdir(), key=lambda entry: entry.name):
        kind = KINDS.get("." + entry.name.rpartition(".")[2])
        if kind is None:
            continue
        path = "/" if entry.name == "index.html" else _PREFIX + entry.name
        routes.append(Route(path=path, method="GET", handler=_file(entry.read_bytes(), kind)))
    return tuple(routes)


def _file(content: bytes, kind: str) -> Handler:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**_HEADERS, "content-type": kind, "etag": tag}

    async def send(service: Service, request: Request) -> Response:
        known = [value.strip().removeprefix("W/") for value in request.headers.get("if-none-match", "").split(",")]
        if tag in known or "*" in known:
            return Response(None, 304, headers)
        return Response(content, 200, headers)

    return send


def _redirect(to: str) -> Handler:
    async def send(service: Service, request: Request) -> Response:
        return Response(None, 307, {"location": to})

    return send
