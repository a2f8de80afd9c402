"""Routes that generate nothing: models, tokens, health, versions, metrics."""

import asyncio
from collections.abc import Sequence
from typing import Literal, NotRequired

from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from tokloom import __version__
from tokloom.sdk import RequestError
from tokloom.serve.http.bodies import read_request
from tokloom.serve.http.conversations import conversation, options_of, tools_of
from tokloom.serve.http.errors import RETRY_AFTER, HttpError, encode
from tokloom.serve.http.requests import DetokenizeRequest, TokenizeRequest
from tokloom.serve.http.service import Service


class ModelObject(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: NotRequired[int]
    parent: NotRequired[str]


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelObject]


class Tokens(TypedDict):
    tokens: list[int]
    count: int
    max_model_len: int


class Detokenized(TypedDict):
    prompt: str


class Status(TypedDict):
    status: str


class VersionObject(TypedDict):
    version: str


def answer(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON response."""
    return Response(encode(body), status, headers, media_type="application/json")


def _model(service: Service, name: str) -> ModelObject:
    found: ModelObject = {"id": name, "object": "model", "created": service.created, "owned_by": "tokloom"}
    if service.loaded is not None:
        found["max_model_len"] = service.loaded.core.composition.settings.max_model_tokens
    if service.adapter(name):
        found["parent"] = service.names[0]
    return found


async def list_models(service: Service, request: Request) -> Response:
    """The models served; an adapter is one with a parent."""
    names = (*service.names, *service.adapters)
    listed: ModelList = {"object": "list", "data": [_model(service, name) for name in names]}
    return answer(listed)


async def show_model(service: Service, request: Request) -> Response:
    """One model."""
    return answer(_model(service, service.model(request.path_params["model"])))


async def tokenize(service: Service, request: Request) -> Response:
    """Token ids of a text or a conversation."""
    section, tokenizer = service.section, service.tokenizer()
    body = await read_request(request, TokenizeRequest, limit=section.max_body_bytes, seconds=section.body_seconds)
    service.model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("needs either prompt or messages", remedy="Give exactly one of them")
    ids: Sequence[int]
    if body.messages is not None:
        if not tokenizer.chat_template:
            raise RequestError("the model has no chat template", remedy="Send a prompt")
        messages, tools = conversation(body.messages), tools_of(body.tools)
        options, generation = (
            options_of(body.chat_template_kwargs, None, tokenizer.chat_template),
            body.add_generation_prompt,
        )
        ids = await asyncio.to_thread(
            lambda: tokenizer.chat(messages, tools=tools, options=options, add_generation_prompt=generation)
        )
    else:
        text, special = body.prompt or "", body.add_special_tokens
        ids = await asyncio.to_thread(lambda: tokenizer.encode(text, add_special=special))
    found: Tokens = {"tokens": list(ids), "count": len(ids), "max_model_len": service.context}
    return answer(found)


async def detokenize(service: Service, request: Request) -> Response:
    """Text of token ids."""
    section, tokenizer = service.section, service.tokenizer()
    body = await read_request(request, DetokenizeRequest, limit=section.max_body_bytes, seconds=section.body_seconds)
    service.model(body.model)
    vocabulary = service.engine().core.composition.model.spec.vocab_size
    if body.tokens and max(body.tokens) >= vocabulary:
        raise RequestError(f"token id {max(body.tokens)} is not below {vocabulary}, the size of the vocabulary")
    text = await asyncio.to_thread(lambda: tokenizer.decode(body.tokens, skip_special=body.skip_special_tokens))
    found: Detokenized = {"prompt": text}
    return answer(found)


async def health(service: Service, request: Request) -> Response:
    """200 while the process lives, whatever it does; 503 once the engine is broken."""
    return _status("ok", not service.failed, service)


async def ready(service: Service, request: Request) -> Response:
    """200 while requests are taken; 503 while the model loads, the server shuts down, or the engine is broken."""
    return _status(service.phase, service.phase == "ready" and not service.failed, service)


def _status(text: str, fine: bool, service: Service) -> Response:
    found: Status = {"status": "failed" if service.failed else text}
    return answer(found) if fine else answer(found, 503, {"retry-after": RETRY_AFTER[503]})


async def version(service: Service, request: Request) -> Response:
    """The version of Tokloom."""
    found: VersionObject = {"version": __version__}
    return answer(found)


async def metrics(service: Service, request: Request) -> Response:
    """What an observer of the engine exposes for scraping."""
    found = None if service.loaded is None else service.loaded.exposition()
    if found is None:
        raise HttpError(
            404,
            "no observer of this engine exposes metrics",
            kind="no_metrics",
            remedy="Name one in the profile's observers; `tokloom plugins` lists them",
        )
    kind, content = found
    return Response(content, media_type=None, headers={"content-type": kind})
