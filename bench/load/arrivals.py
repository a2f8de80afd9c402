"""When requests are sent: by clients that wait for their answer (closed loop), or at times of their own (open loop)."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence

from tokloom.bench.load.client import Ask, Seen

Send = Callable[[Ask, float], Awaitable[Seen]]


async def closed_loop(asks: Sequence[Ask], clients: int, send: Send, seen: list[Seen]) -> None:
    """`clients` at once; each sends its next request when it has the answer to the one before."""
    left = iter(asks)

    async def client() -> None:
        for ask in left:
            seen.append(await send(ask, time.monotonic()))

    await asyncio.gather(*(client() for _ in range(clients)))


async def open_loop(asks: Sequence[Ask], rate: float, seed: int, send: Send, seen: list[Seen]) -> None:
    """Arrivals of a Poisson process with `rate` per second, whatever the server does."""
    rng = random.Random(seed)
    at = time.monotonic()

    async def one(ask: Ask, intended: float) -> None:
        seen.append(await send(ask, intended))

    async with asyncio.TaskGroup() as group:
        for ask in asks:
            at += rng.expovariate(rate)
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            group.create_task(one(ask, at))


async def watch_lag(lags: list[float], every: float = 0.02) -> None:
    """By how much this process's loop is late, until cancelled."""
    while True:
        begun = time.monotonic()
        await asyncio.sleep(every)
        lags.append(time.monotonic() - begun - every)
