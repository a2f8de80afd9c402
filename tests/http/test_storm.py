"""Many clients at once, some of whom leave: the others get what they get alone, and nothing stays behind.

TOKLOOM_STORM_SECONDS lengthens it, for a soak.
"""

import asyncio
import json
import os
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import CHAT, Served, eventually, serving
from tiny_chat import SETS

from tokloom.api import AsyncEngine

CLIENTS = 64
SECONDS = float(os.environ.get("TOKLOOM_STORM_SECONDS", "10"))


def body(number: int, *, stream: bool) -> dict[str, Any]:
    """A request whose answer depends on nothing but its number."""
    text = "shared words " * (number % 4) + f"number {number}"
    return {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 4 + number % 21,
        "seed": number,
        "temperature": 0.0 if number % 3 == 0 else 1.0,
        "ignore_eos": True,
        "n": 2 if number % 5 == 0 else 1,
        "stream": stream,
    }


def resident() -> int:
    """Bytes of memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def client(http: httpx.AsyncClient, alone: dict[int, dict[int, str]], rng: random.Random, end: float) -> int:
    """Asks until the end, or until the server shuts down; returns how many answers it read to theirs."""
    read = 0
    while time.monotonic() < end:
        number = rng.randrange(len(alone))
        leave = rng.choice((None, None, 1, 3))
        async with http.stream("POST", CHAT, json=body(number, stream=True)) as response:
            if response.status_code == 429:
                await asyncio.sleep(0.05)
                continue
            if response.status_code == 503:
                assert json.loads(await response.aread())["error"]["code"] == "shutting_down"
                return read
            assert response.status_code == 200
            read += await _read(response, alone[number], leave)
    return read


async def _read(response: httpx.Response, alone: dict[int, str], leave: int | None) -> bool:
    """Read a stream to its end, or until `leave` characters came; whether it came to its end."""
    texts: dict[int, str] = {}
    done = False
    async for line in response.aiter_lines():
        if not line or line == "data: [DONE]":
            done = done or bool(line)
            continue
        event = json.loads(line.removeprefix("data: "))
        assert "error" not in event, event
        for choice in event["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["delta"].get("content", "")
        if leave is not None and sum(map(len, texts.values())) > leave:
            return False
    assert done
    assert texts == alone
    return True


async def storm(served: Served, alone: dict[int, dict[int, str]], seed: int, seconds: float, stop: bool = False) -> int:
    """All clients, for so long; with `stop` the server is told to stop in the middle. Answers read to their end."""
    limits = httpx.Limits(max_connections=None)
    timeout = httpx.Timeout(300)
    async with httpx.AsyncClient(base_url=served.url, limits=limits, timeout=timeout, trust_env=False) as http:
        end = time.monotonic() + seconds
        clients = [asyncio.ensure_future(client(http, alone, random.Random(seed + i), end)) for i in range(CLIENTS)]
        if stop:
            await asyncio.sleep(seconds / 2)
            assert served.live
            served.stop()
        return sum(await asyncio.gather(*clients))


def answers_alone(served: Served) -> dict[int, dict[int, str]]:
    """What each request gets with nobody else there."""
    alone: dict[int, dict[int, str]] = {}
    for number in range(30):
        choices = served.post(CHAT, body(number, stream=False)).json()["choices"]
        alone[number] = {choice["index"]: choice["message"]["content"] for choice in choices}
    return alone


def loader(model: Path, engines: list[AsyncEngine]) -> Callable[[], Awaitable[AsyncEngine]]:
    """Loads an engine whose pools are far too small for all clients, and keeps it."""

    async def load() -> AsyncEngine:
        sets = (*SETS, "engine.max_sequences=16", "engine.kv_memory=256KiB", "engine.max_model_tokens=256")
        engines.append(await AsyncEngine.from_profile(model=str(model), sets=sets))
        return engines[0]

    return load


@pytest.mark.slow
def test_answers_stand_and_nothing_leaks_in_a_storm(model: Path) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    engines: list[AsyncEngine] = []
    with serving(loader(model, engines), max_queue=512) as served:
        alone = answers_alone(served)
        asyncio.run(storm(served, alone, seed, SECONDS / 4))
        before = resident()
        assert asyncio.run(storm(served, alone, seed, SECONDS)) > 0
        grown = resident() - before
        state = engines[0].core.state
        eventually(lambda: served.live == 0 and not engines[0].core.busy)
        stats = state.allocator.stats()
        assert stats.held_pages == 0
        assert stats.free_pages + stats.cached_pages + stats.fenced_pages == stats.total_pages
        assert not state.live
        assert grown < 64 << 20, f"{grown >> 20} MiB more"
        print(f"evictions {stats.evictions}, preemptions {state.preempted}, {grown >> 10} KiB more")


@pytest.mark.slow
def test_a_stop_in_the_middle_of_a_storm_drains(model: Path) -> None:
    """Answers that have begun come to their end and are right; everybody else is told."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    engines: list[AsyncEngine] = []
    held: list[int] = []
    with serving(loader(model, engines), max_queue=512, drain_seconds=300.0) as served:
        alone = answers_alone(served)
        core = engines[0].core
        close = core.close

        def counted() -> None:
            held.append(core.state.allocator.stats().held_pages + len(core.state.live))
            close()

        core.close = counted  # type: ignore[method-assign]
        assert asyncio.run(storm(served, alone, seed, SECONDS, stop=True)) > 0
        assert served.over.wait(60)
        assert served.failure is None
    assert held[0] == 0
