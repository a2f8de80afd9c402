"""The side-by-side workload: prompts of token ids cut from real text, the same for every engine.

Text is the documentation that every CPython ships (`pydoc_data.topics`), or a JSON list of ids given with `--tokens`.
The first two ids of a prompt are unique to it, so that no prefix cache hits by accident.
"""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

from attrs import frozen

Case = Literal["prefill512", "decode128", "conc8", "conc32", "shared16", "ctx4096"]


@frozen
class CaseSpec:
    """One row of the table.

    Attributes:
        requests, prompt, new: how many requests of how many tokens, and tokens to generate for each.
        shared: leading tokens that all requests share.
        metric: the number reported, and whether larger is better.
    """

    requests: int
    prompt: int
    new: int
    metric: str
    larger_is_better: bool = True
    shared: int = 0


CASES: Final[dict[Case, CaseSpec]] = {
    "prefill512": CaseSpec(1, 512, 1, "prefill tokens/s"),
    "decode128": CaseSpec(1, 128, 128, "decode tokens/s"),
    "conc8": CaseSpec(8, 128, 128, "output tokens/s"),
    "conc32": CaseSpec(32, 128, 128, "output tokens/s"),
    "shared16": CaseSpec(16, 1056, 32, "seconds", larger_is_better=False, shared=1024),
    "ctx4096": CaseSpec(1, 4096, 64, "decode tokens/s"),
}


def text_tokens(encode: Callable[[str], Sequence[int]], tokens_file: Path | None = None) -> list[int]:
    """The stream that prompts are cut from."""
    if tokens_file is not None:
        ids: list[int] = json.loads(tokens_file.read_text())
        return ids
    from pydoc_data import topics  # type: ignore[import-untyped,unused-ignore]

    text = "\n\n".join(topics.topics[name] for name in sorted(topics.topics))
    return list(encode(text[:400_000]))


def prompts(stream: Sequence[int], case: Case, seed: str) -> list[list[int]]:
    """The prompts of one repetition."""
    spec = CASES[case]
    shared = _cut(stream, spec.shared, f"{seed}/shared") if spec.shared else []
    return [shared + _cut(stream, spec.prompt - spec.shared, f"{seed}/{index}") for index in range(spec.requests)]


def _cut(stream: Sequence[int], count: int, seed: str) -> list[int]:
    rng = random.Random(seed)
    offset = rng.randrange(0, len(stream) - count)
    unique = [300 + rng.randrange(40_000), 300 + rng.randrange(40_000)]
    return (unique + list(stream[offset + 2 : offset + count]))[:count]


@frozen
class Timing:
    """What a worker measured. Seconds from the first submit.

    Attributes:
        first: of each request's first token.
        last: of each request's last token.
    """

    first: tuple[float, ...]
    last: tuple[float, ...]


def metric(case: Case, timing: Timing) -> float:
    """The case's number."""
    spec = CASES[case]
    if case == "prefill512":
        return spec.prompt / timing.first[0]
    if case in ("decode128", "ctx4096"):
        return (spec.new - 1) / (timing.last[0] - timing.first[0])
    wall = max(timing.last)
    return wall if case == "shared16" else spec.requests * spec.new / wall
