"""Many clients at once, some of whom leave: the others get what they get alone, and nothing stays behind.

TOKLOOM_STORM_SECONDS lengthens it, for a soak.
"""

import asyncio
import json
import os
import random
import time
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
    """Asks until the end; returns how many answers it read to theirs."""
    read = 0
    while time.monotonic() < end:
        number = rng.randrange(len(alone))
        leave = rng.choice((None, None, 1, 3))
        async with http.stream("POST", CHAT, json=body(number, stream=True)) as response:
            if response.status_code == 429:
                await asyncio.sleep(0.05)
                continue
            assert response.status_code == 200
            texts: dict[int, str] = {}
            async for line in response.aiter_lines():
                if not line or line == "data: [DONE]":
                    continue
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    texts[choice["index"]] = texts.get(choice["index"], "") + choice["delta"].get("content", "")
                if leave is not None and sum(map(len, texts.values())) > leave:
                    break
            else:
                assert texts == alone[number], number
                read += 1
    return read


@pytest.mark.slow
def test_answers_stand_and_nothing_leaks_in_a_storm(model: Path) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    engines: list[AsyncEngine] = []

    async def load() -> AsyncEngine:
        sets = (*SETS, "engine.max_sequences=16", "engine.kv_memory=256KiB", "engine.max_model_tokens=256")
        engines.append(await AsyncEngine.from_profile(model=str(model), sets=sets))
        return engines[0]

    async def storm(served: Served, seconds: float) -> int:
        limits = httpx.Limits(max_connections=None)
        timeout = httpx.Timeout(300)
        async with httpx.AsyncClient(base_url=served.url, limits=limits, timeout=timeout, trust_env=False) as http:
            end = time.monotonic() + seconds
            clients = (client(http, alone, random.Random(seed + i), end) for i in range(CLIENTS))
            return sum(await asyncio.gather(*clients))

    with serving(load, max_queue=512) as served:
        alone: dict[int, dict[int, str]] = {}
        for number in range(30):
            choices = served.post(CHAT, body(number, stream=False)).json()["choices"]
            alone[number] = {choice["index"]: choice["message"]["content"] for choice in choices}
        asyncio.run(storm(served, SECONDS / 4))
        before = resident()
        assert asyncio.run(storm(served, SECONDS)) > 0
        grown = resident() - before
        state = engines[0].core.state
        eventually(lambda: served.live == 0 and not engines[0].core.busy)
        stats = state.allocator.stats()
        assert stats.held_pages == 0
        assert stats.free_pages + stats.cached_pages + stats.fenced_pages == stats.total_pages
        assert not state.live
        assert grown < 64 << 20, f"{grown >> 20} MiB more"
        print(f"evictions {stats.evictions}, preemptions {state.preempted}, {grown >> 10} KiB more")
