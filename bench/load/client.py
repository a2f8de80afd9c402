"""One streamed request to an OpenAI-compatible server, and when its tokens came."""

import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

import httpx
from attrs import field, frozen

Api = Literal["chat", "completions"]


@frozen(kw_only=True)
class Ask:
    """What to send.

    Attributes:
        body: the JSON body, with `stream` on.
        path: below the server's URL.
    """

    path: str
    body: Mapping[str, Any]


@frozen(kw_only=True)
class Seen:
    """What came of a request. Times in seconds on one monotonic clock.

    Attributes:
        intended: when it was to be sent; latencies count from here, so that a client that is late hides nothing.
        times: of each chunk with text; the first token is in the first.
        output_tokens, prompt_tokens: as the server counts; output tokens are chunks where it does not (`counted`).
        error: kind of failure; empty: none.
    """

    intended: float
    sent: float
    ended: float
    times: tuple[float, ...] = field(default=(), repr=False)
    output_tokens: int = 0
    prompt_tokens: int = 0
    counted: bool = False
    error: str = ""

    @property
    def ttft(self) -> float:
        """Time to the first token."""
        return self.times[0] - self.intended

    @property
    def e2e(self) -> float:
        """Time to the last token."""
        return self.times[-1] - self.intended

    @property
    def tpot(self) -> float | None:
        """Mean time per token after the first; None for a single token."""
        return (self.times[-1] - self.times[0]) / (self.output_tokens - 1) if self.output_tokens > 1 else None

    @property
    def gaps(self) -> list[float]:
        """Between chunks."""
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]


async def run(http: httpx.AsyncClient, ask: Ask, intended: float) -> Seen:
    """Send a request and read its stream. Never raises for what a server or a connection does."""
    sent = time.monotonic()
    times: list[float] = []
    usage: Mapping[str, Any] = {}
    error = ""
    try:
        async with http.stream("POST", ask.path, json=dict(ask.body)) as response:
            if response.status_code != 200:
                await response.aread()
                error = f"HTTP {response.status_code}"
            else:
                async for data in events(response.aiter_lines()):
                    if "error" in data:
                        error = "error in the stream"
                        break
                    if _has_text(data):
                        times.append(time.monotonic())
                    usage = data.get("usage") or usage
    except httpx.TimeoutException:
        error = "timeout"
    except httpx.HTTPError as failure:
        error = type(failure).__name__
    except (ValueError, TypeError, KeyError, AttributeError):
        error = "unreadable stream"
    if not error and not times:
        error = "no text"
    counted = not isinstance(usage.get("completion_tokens"), int)
    return Seen(
        intended=intended,
        sent=sent,
        ended=time.monotonic(),
        times=tuple(times),
        output_tokens=len(times) if counted else usage["completion_tokens"],
        prompt_tokens=usage.get("prompt_tokens") or 0,
        counted=counted,
        error=error,
    )


async def events(lines: AsyncIterator[str]) -> AsyncIterator[dict[str, Any]]:
    """The data of server-sent events as JSON objects, until `[DONE]` or the end (WHATWG HTML, 9.2.6)."""
    data: list[str] = []
    async for line in lines:
        if not line:
            text, data = "\n".join(data), []
            if text.strip() == "[DONE]":
                return
            if text:
                yield json.loads(text)
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))


def _has_text(data: Mapping[str, Any]) -> bool:
    """Whether a chunk shows anything: text, reasoning, or part of a tool call."""
    for choice in data.get("choices") or ():
        delta = choice.get("delta") or {}
        if choice.get("text") or any(delta.get(key) for key in ("content", "reasoning_content", "tool_calls")):
            return True
    return False
