"""POST /v1/embeddings: one vector per text."""

import base64
import struct
from typing import Any, Literal

from starlette.requests import Request
from typing_extensions import TypedDict

from tokloom import Event, GenerateRequest
from tokloom.serve.http.bodies import read_request
from tokloom.serve.http.completions import prompts_of
from tokloom.serve.http.generation import Generation
from tokloom.serve.http.rendering import Counts
from tokloom.serve.http.requests import EmbeddingRequest
from tokloom.serve.http.service import Service
from tokloom.serve.tracing import trace_of


class EmbeddingObject(TypedDict):
    """`embedding`: numbers, or a text in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(TypedDict):
    object: Literal["list"]
    data: list[EmbeddingObject]
    model: str
    usage: EmbeddingUsage


async def embeddings(service: Service, request: Request) -> Generation:
    """Vectors of texts, where the model allows it."""
    service.engine()
    section = service.section
    body = await read_request(request, EmbeddingRequest, limit=section.max_body_bytes, seconds=section.body_seconds)
    model = service.model(body.model)
    requests = [
        GenerateRequest(
            prompt=prompt if isinstance(prompt, str) else None,
            token_ids=None if isinstance(prompt, str) else prompt,
            raw=True,
            task="embed",
            pooling=body.pooling,
            normalize=body.normalize,
            adapter=service.adapter(model),
            priority=body.priority,
            tenant=body.user,
            salt=body.cache_salt,
            trace=trace_of(request.scope["headers"]),
        )
        for prompt in prompts_of(body.input)
    ]
    return Generation(service, requests, EmbeddingRendering(model, body.encoding_format), stream=False)


class EmbeddingRendering:
    """All vectors in one body."""

    def __init__(self, model: str, encoding: str) -> None:
        self._model = model
        self._encoding = encoding
        self._vectors: dict[int, tuple[float, ...]] = {}
        self._counts = Counts()

    def chunk(self, choice: int, event: Event) -> bytes:
        raise AssertionError("vectors are not streamed")

    def last(self) -> bytes:
        raise AssertionError("vectors are not streamed")

    def take(self, choice: int, event: Event) -> None:
        if event.finish_reason is not None:
            self._vectors[choice] = event.embedding
            self._counts.add(event)

    def body(self) -> EmbeddingList:
        tokens = self._counts.prompt
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": self._encode(vector)}
                for index, vector in sorted(self._vectors.items())
            ],
            "model": self._model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }

    def _encode(self, vector: tuple[float, ...]) -> Any:
        if self._encoding == "base64":
            return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        return list(vector)
