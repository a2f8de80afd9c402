"""The kernel against the definition on a pairwise-sampled grid of shapes, features, dtypes and batches."""

import itertools
import random
from collections.abc import Callable, Mapping

import pytest
from paged_cases import Case, Span, check

from tokloom.sdk import AttnParams

Choice = Mapping[str, object]


def random_tree(rng: random.Random, nodes: int) -> tuple[int, ...]:
    """Parents of a root row and its drafts."""
    return (-1, *(rng.randrange(i) for i in range(1, nodes)))


def _decode(rng: random.Random, page: int, tree: bool) -> list[Span]:
    edges = [1, max(1, page - 1), page, page + 1, 2 * page, 250, 3, 97]
    return [Span(1, n) for n in rng.sample(edges, 6)]


def _long_decode(rng: random.Random, page: int, tree: bool) -> list[Span]:
    return [Span(1, n) for n in (2000, 1, 130, 1900 + rng.randrange(200))]


def _verify(rng: random.Random, page: int, tree: bool) -> list[Span]:
    spans = []
    for extra in (0, page - 1, page, 3 * page + 1, 140):
        rows = rng.choice((2, 5, 5))
        spans.append(Span(rows, rows + extra, random_tree(rng, rows) if tree else ()))
    return spans


def _prefill(rng: random.Random, page: int, tree: bool) -> list[Span]:
    return [Span(n, n) for n in (33, page, page + 1, 7)]


def _chunk(rng: random.Random, page: int, tree: bool) -> list[Span]:
    return [Span(n, n + before) for n, before in ((40, page), (17, 2 * page - 1), (40, 75))]


def _mixed(rng: random.Random, page: int, tree: bool) -> list[Span]:
    return [*_decode(rng, page, tree)[:3], *_verify(rng, page, tree)[:3], Span(21, 60), Span(30, 30), Span(1, 1)]


def _tall(rng: random.Random, page: int, tree: bool) -> list[Span]:
    return [Span(1, 40), Span(150, 190)]


def _one(rng: random.Random, page: int, tree: bool) -> list[Span]:
    return [Span(1, rng.choice((1, page, page + 1)))]


BATCHES: dict[str, Callable[[random.Random, int, bool], list[Span]]] = {
    "decode": _decode,
    "long": _long_decode,
    "verify": _verify,
    "prefill": _prefill,
    "chunk": _chunk,
    "mixed": _mixed,
    "tall": _tall,
    "one": _one,
}

GRID: dict[str, tuple[object, ...]] = {
    "heads": ((1, 1), (4, 4), (8, 2), (9, 3), (32, 8), (16, 1)),
    "size": ((32, 32), (64, 64), (80, 80), (96, 96), (128, 128), (48, 32), (64, 96)),
    "page": (1, 8, 16, 32, 64),
    "window": ("none", "1", "page-1", "page", "page+1", "256", "huge"),
    "batch": tuple(BATCHES),
    "dtype": ("float64", "float32", "bfloat16", "float16"),
    "codec": ("dense", "int8"),
    "mask": ("chain", "tree", "non_causal"),
    "soft_cap": (None, 3.0),
    "sinks": (False, True),
    "alibi": (False, True),
    "scale": ("usual", "other"),
}


def pairwise(grid: Mapping[str, tuple[object, ...]], seed: int, bias: Choice) -> list[Choice]:
    """Choices that together contain every pair of values, found greedily; `bias` fixes some keys."""
    rng = random.Random(seed)
    grid = {key: (bias[key],) if key in bias else values for key, values in grid.items()}
    left = {((a, x), (b, y)) for a, b in itertools.combinations(grid, 2) for x in grid[a] for y in grid[b]}
    chosen: list[Choice] = []
    while left:
        fixed = dict(min(left, key=repr))
        tries = [{k: fixed.get(k, rng.choice(v)) for k, v in grid.items()} for _ in range(40)]
        best = max(tries, key=lambda c: len(left.intersection(itertools.combinations(c.items(), 2))))
        left.difference_update(itertools.combinations(best.items(), 2))
        chosen.append(best)
    return chosen


def case_of(choice: Choice, seed: int) -> Case:
    rng = random.Random(seed)
    heads: tuple[int, int] = choice["heads"]  # type: ignore[assignment]
    size: tuple[int, int] = choice["size"]  # type: ignore[assignment]
    page: int = choice["page"]  # type: ignore[assignment]
    (q_heads, kv_heads), (head_k, head_v) = heads, size
    window = {"none": None, "1": 1, "page-1": max(1, page - 1), "page": page, "page+1": page + 1, "256": 256}
    params = AttnParams(
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_k=head_k,
        head_v=head_v,
        scale=head_k**-0.5 if choice["scale"] == "usual" else 0.21,
        causal=choice["mask"] != "non_causal",
        window=window.get(str(choice["window"]), 10**6),
        soft_cap=choice["soft_cap"],  # type: ignore[arg-type]
        sinks=tuple(rng.uniform(-2, 3) for _ in range(q_heads)) if choice["sinks"] else (),
        alibi=tuple(2.0 ** -(1 + 4 * h / q_heads) for h in range(q_heads)) if choice["alibi"] else (),
    )
    tree = choice["mask"] == "tree"
    spans = BATCHES[str(choice["batch"])](rng, page, tree)
    return Case(
        params,
        tuple(spans),
        page_tokens=page,
        dtype=str(choice["dtype"]),
        codec=str(choice["codec"]),
        seed=seed,
        tree_rows=6 if tree else 0,
    )


#: every pair with everything, then every pair of shapes where only torch's fused operator is needed
CHOICES = pairwise(GRID, 1, {}) + pairwise(
    GRID, 2, {"soft_cap": None, "sinks": False, "alibi": False, "codec": "dense", "dtype": "float32"}
)


@pytest.mark.parametrize("seed", range(len(CHOICES)), ids=lambda s: "-".join(str(v) for v in CHOICES[s].values()))
def test_attention_matches_its_definition(seed: int) -> None:
    print("seed", seed, CHOICES[seed])
    check(case_of(CHOICES[seed], seed))


def test_every_pair_of_values_is_in_the_grid() -> None:
    seen = {pair for choice in CHOICES for pair in itertools.combinations(choice.items(), 2)}
    for a, b in itertools.combinations(GRID, 2):
        for x, y in itertools.product(GRID[a], GRID[b]):
            assert ((a, x), (b, y)) in seen
