"""The OpenAPI document, from the classes that check requests and the types that answers are built with."""

from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema
from typing_extensions import TypedDict

from tokloom import __version__
from tokloom.serve.http.auth import OPEN_PATHS
from tokloom.serve.http.plain import Status
from tokloom.serve.http.responses import ResponseEvent
from tokloom.serve.http.routes import Route

Schema = dict[str, Any]
_REF: Final = "#/components/schemas/{model}"


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(TypedDict):
    error: ErrorDetail


_MEANINGS: Final = {
    400: "The request is wrong; the message says where.",
    401: "No API key, or a wrong one.",
    404: "There is no such model, or nothing at this path.",
    408: "The body did not come in time.",
    413: "The body is too long.",
    415: "The body is not application/json.",
    429: "Too many sequences wait; see Retry-After.",
    500: "The server failed; the message has the request id.",
    503: "The model is loading, or the server shuts down; see Retry-After.",
}


def document(routes: tuple[Route, ...], *, root_path: str = "", keys: bool = False) -> Schema:
    """OpenAPI 3.1 of the routes. `keys`: whether callers need one."""
    schemas = _components(routes)
    paths: Schema = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, keys)
    made: Schema = {
        "openapi": "3.1.0",
        "info": {"title": "Tokloom", "version": __version__},
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if keys:
        made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return made


def _components(routes: tuple[Route, ...]) -> Schema:
    bodies = [(route.body, "validation") for route in routes if route.body is not None]
    _, found = models_json_schema(bodies, ref_template=_REF)  # type: ignore[arg-type]
    schemas: Schema = dict(found.get("$defs", {}))
    for body, _ in bodies:
        _allow_null(schemas[body.__name__])
    types = {kind.__name__: kind for route in routes for kind in (route.answer, route.event) if kind is not None}
    types["ErrorBody"] = ErrorBody
    for name, kind in types.items():
        schema = TypeAdapter(kind).json_schema(ref_template=_REF, mode="serialization")
        schemas |= schema.pop("$defs", {})
        schemas[name] = schema
    return schemas


def _allow_null(schema: Schema) -> None:
    """`null` stands for a field that was left out."""
    needed = schema.get("required", [])
    for name, field in schema["properties"].items():
        accepts = [part.get("type") for part in field.get("anyOf", [])]
        if name not in needed and "null" not in accepts and field.get("type") != "null":
            words = {key: field.pop(key) for key in ("title", "description", "default") if key in field}
            if field:
                field = {"anyOf": [field, {"type": "null"}]}
            schema["properties"][name] = {**field, **words}


def _operation(route: Route, keys: bool) -> Schema:
    made: Schema = {
        "operationId": route.handler.__name__,
        "summary": (route.handler.__doc__ or "").strip(),
        "responses": {"200": {"description": _meaning(route), "content": _content(route)}},
    }
    if "{model}" in route.path:
        made["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
    if route.body is not None:
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(route.body)}}}
    statuses = {*route.statuses, 500}
    if keys and route.path not in OPEN_PATHS:
        made["security"] = [{"key": []}]
        statuses.add(401)
    for status in sorted(statuses):
        body = Status if status == 503 and route.answer is Status else ErrorBody
        response: Schema = {"description": _MEANINGS[status], "content": {"application/json": {"schema": _ref(body)}}}
        if status in (429, 503):
            response["headers"] = {"retry-after": {"schema": {"type": "string"}, "description": "Seconds."}}
        made["responses"][str(status)] = response
    return made


def _content(route: Route) -> Schema:
    if route.answer is None:
        return {"text/plain": {"schema": {"type": "string"}}}
    content: Schema = {"application/json": {"schema": _ref(route.answer)}}
    if route.event is not None:
        content["text/event-stream"] = {}
    return content


def _meaning(route: Route) -> str:
    if route.event is None:
        return "Done."
    if route.event is ResponseEvent:
        return "Done. A stream's events are named; each has a ResponseEvent as data."
    return f"Done. A stream's events each have a {route.event.__name__} as data, the last one [DONE]."


def _ref(kind: Any) -> Schema:
    return {"$ref": _REF.format(model=kind.__name__)}
