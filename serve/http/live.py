"""GET /v1/tokloom/snapshot: what the engine is made of and what it does."""

import attrs
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from tokloom.serve.http.errors import HttpError
from tokloom.serve.http.plain import answer
from tokloom.serve.http.service import Service


class PluginObject(TypedDict):
    section: str
    kind: str
    plugin: str
    distribution: str
    version: str


class GroupObject(TypedDict):
    group: int
    owner: str
    layers: int
    window: int | None
    format: str
    open_format: str
    page_tokens: int
    total: int
    held: int
    cached: int
    free: int


class SnapshotObject(TypedDict):
    """Counters only grow while the process lives; rates are differences over differences of `uptime`, in seconds."""

    model: str
    device: str
    dtype: str
    page_tokens: int
    max_sequences: int
    max_model_tokens: int
    uptime: float
    plugins: list[PluginObject]
    groups: list[GroupObject]
    running: int
    waiting: int
    steps: int
    prefill_tokens: int
    hit_tokens: int
    tier_tokens: int
    generated_tokens: int
    drafted: int
    accepted: int
    preemptions: int
    evictions: int
    faults: dict[str, int]


async def snapshot(service: Service, request: Request) -> Response:
    """Plugins in use, and the engine's numbers at the end of its last step."""
    if service.loaded is None:
        raise HttpError(503, "the model is loading", kind="loading", remedy="Retry in some seconds")
    return answer(attrs.asdict(service.loaded.snapshot()), headers={"cache-control": "no-store"})
