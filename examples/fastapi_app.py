"""A FastAPI application with routes of its own around an AsyncEngine.

pip install fastapi uvicorn
MODEL=.models/SmolLM2-135M-Instruct.gguf uvicorn --app-dir examples fastapi_app:app
curl -N localhost:8000/ask -H 'content-type: application/json' -d '{"question": "Name three rivers."}'
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from tokloom import AsyncEngine, CapacityError, Event, GenerateRequest, RequestError, SamplingParams


class Question(BaseModel):
    question: str
    max_tokens: int = 64
    temperature: float = 0.0


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    profile = os.environ.get("PROFILE", "builtin:cpu")
    async with await AsyncEngine.from_profile(profile, model=os.environ["MODEL"]) as engine:
        app.state.engine = engine
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/ask")
async def ask(question: Question, request: Request) -> StreamingResponse:
    """Streams the answer as text. A client that goes away cancels it."""
    engine: AsyncEngine = request.app.state.engine
    sampling = SamplingParams(max_tokens=question.max_tokens, temperature=question.temperature)
    events = engine.generate(GenerateRequest(prompt=question.question, sampling=sampling))
    try:
        first = await anext(events)
    except RequestError as error:
        raise HTTPException(400, str(error)) from error
    except CapacityError as error:
        raise HTTPException(429, str(error)) from error
    return StreamingResponse(_text(first, events), media_type="text/plain; charset=utf-8")


async def _text(first: Event, rest: AsyncIterator[Event]) -> AsyncIterator[str]:
    yield first.text
    async for event in rest:
        yield event.text


@app.get("/pages")
async def pages(request: Request) -> dict[str, int]:
    """How full the KV pool is."""
    stats = request.app.state.engine.core.state.allocator.stats()
    return {
        "total": stats.total_pages,
        "free": stats.free_pages,
        "cached": stats.cached_pages,
        "held": stats.held_pages,
    }
