"""Answer: one request's answer while it comes, with its times, and what the command line prints of it."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tokloom.api import Event, GenerateRequest
from tokloom.serve.cli.interrupts import Interrupts
from tokloom.serve.cli.options import plugin_names

if TYPE_CHECKING:
    from tokloom.api import Engine


class Answer:
    """`submit` and `take` its events, or `run` it alone."""

    def __init__(self, engine: "Engine", request: GenerateRequest) -> None:
        self._engine = engine
        self._request = request
        self._texts: list[str] = []
        self.token_ids: list[int] = []
        self.prompt_ids: tuple[int, ...] = ()
        self.last: Event | None = None
        self._begin = self._first = self._end = 0.0

    @property
    def text(self) -> str:
        """Everything so far."""
        return "".join(self._texts)

    def submit(self) -> str:
        """Queue the request; returns its id."""
        self._begin = time.perf_counter()
        request_id = self._engine.add(self._request)
        self.prompt_ids = self._engine.prompt_ids(request_id)
        return request_id

    def run(self) -> Iterator[Event]:
        """Events of the answer; an interrupt, or leaving the loop, cancels the request."""
        request_id = self.submit()
        try:
            with Interrupts() as interrupts:
                while self.last is None:
                    for event in self._engine.step():
                        if event.request_id != request_id:  # the end of one that was interrupted before
                            continue
                        self.take(event)
                        yield event
                        if event.error is not None:
                            raise event.error
                    interrupts.check()
        finally:
            if self.last is None:
                self._engine.abort(request_id)

    def take(self, event: Event) -> None:
        """Add an event of this request."""
        if event.token_ids and not self.token_ids:
            self._first = time.perf_counter()
        self._texts.append(event.text)
        self.token_ids += event.token_ids
        if event.finish_reason is not None:
            self._end = time.perf_counter()
            self.last = event

    def stats(self) -> dict[str, Any]:
        """Times in seconds, rates, and which plugins did it."""
        count = len(self.token_ids)
        ttft = self._first - self._begin if count else None
        tpot = (self._end - self._first) / (count - 1) if count > 1 else None
        return {
            "ttft_s": ttft,
            "tpot_s": tpot,
            "tokens_per_second": 1 / tpot if tpot else None,
            "total_s": self._end - self._begin,
            "plugins": plugin_names(self._engine),
        }

    def summary(self) -> dict[str, Any]:
        """What `--json` prints."""
        assert self.last is not None
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "prompt_token_ids": list(self.prompt_ids),
            "finish_reason": self.last.finish_reason,
            "usage": usage(self.last),
            "stats": self.stats(),
        }

    def report(self) -> str:
        """Times and plugins for people."""
        stats = self.stats()
        line = f"{len(self.token_ids)} tokens"
        if stats["tpot_s"] is not None:
            line = f"TPOT {stats['tpot_s'] * 1000:.1f} ms, {stats['tokens_per_second']:.1f} tokens/s, {line}"
        if stats["ttft_s"] is not None:
            line = f"TTFT {stats['ttft_s'] * 1000:.0f} ms, {line}"
        return f"{line}\nplugins: " + ", ".join(f"{kind} {name}" for kind, name in stats["plugins"].items())


def usage(event: Event) -> dict[str, Any]:
    """Token counts of a finished sequence."""
    if event.usage is None:
        return {}
    counts = event.usage
    return {
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.output_tokens,
        "total_tokens": counts.prompt_tokens + counts.output_tokens,
        "cached_tokens": counts.hit_tokens,
        "tier_tokens": counts.tier_tokens,
        "drafted_tokens": counts.drafted,
        "accepted_tokens": counts.accepted,
        "preemptions": counts.preemptions,
    }
