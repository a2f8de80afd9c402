"""Sequence views for tests of scheduling policies: plain values, no engine."""

from collections.abc import Sequence
from random import Random

from attrs import frozen

from tokloom.sdk import Request, SamplingParams, TokenSegment


@frozen(kw_only=True)
class View:
    """A frozen stand-in for the core's SequenceView."""

    seq_id: int
    request: Request
    arrival: float
    child: int = 0
    tokens: Sequence[int] = (1, 2, 3)
    num_prompt: int = 3
    num_computed: int = 0
    num_scheduled: int = 0
    num_allocated: int = 0
    pending: int = 0
    epoch: int = 0
    first_token: float = -1.0
    preemptions: int = 0


def make_view(seq_id: int, *, arrival: float = 0.0, priority: int = 0, preemptions: int = 0) -> View:
    request = Request(
        request_id=f"r{seq_id}",
        segments=(TokenSegment((1, 2, 3)),),
        sampling=SamplingParams(max_tokens=4),
        priority=priority,
    )
    return View(seq_id=seq_id, request=request, arrival=arrival, preemptions=preemptions)


def random_views(rng: Random, count: int) -> list[View]:
    """Distinct ids in random order, with many ties of arrival and priority."""
    ids = rng.sample(range(1000), count)
    return [make_view(i, arrival=float(rng.randrange(4)), priority=rng.randrange(-1, 2)) for i in ids]
