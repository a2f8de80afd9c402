"""What the content-tagged models must compute, in plain Python: no torch, no pages, no batching."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

Heads = tuple[int, int]

#: prime modulus of all tags; means over up to 1024 of them, merged from segments, round to exact sums in float64
P = 2_147_483_629
VOCAB = 11


class Shape(NamedTuple):
    """A content-tagged model: window of each layer (None: all keys), end tokens, vocabulary, (q_heads, kv_heads)."""

    windows: tuple[int | None, ...]
    eos: tuple[int, ...] = ()
    vocab: int = VOCAB
    heads: Heads = (1, 1)


SHAPES: dict[str, Shape] = {
    "tagged": Shape((None, None)),
    "tagged-window": Shape((None, 5, None, 5)),
    "tagged-eos": Shape((None, None), eos=(3,)),
    "tagged-wide": Shape((None, 7, None), vocab=97, heads=(4, 2)),
}


def mix(value: int) -> int:
    """A one-to-one-looking scramble of 0..P-1."""
    return (value * value + 12_345 * value + 678_910) % P


def tag0(token: int, position: int, adapter: int = 0) -> int:
    """The tag that layer 0 stores for a token at a position under an adapter."""
    return mix((token * 7_919 + position * 104_729 + 1 + adapter) % P)


def adapter_tag(digest: str) -> int:
    """What an adapter adds to a row's tag before it is scrambled; 0 for none."""
    return int(digest, 16) % P if digest else 0


def of_head(tag: int, head: int) -> int:
    """What kv head `head` stores of a row's tag; head 0 stores the tag itself."""
    return tag if head == 0 else mix((tag + 31_337 * head) % P)


def tags(
    tokens: Sequence[int], windows: Sequence[int | None], heads: Heads = (1, 1), adapter: int = 0
) -> list[list[int]]:
    """`[layer][position]`: what kv head 0 of each layer stores. Layer i > 0 stores a scramble of what layer i - 1 saw,
    so its KV contains the whole visible prefix.
    """
    rows = [tag0(token, position, adapter) for position, token in enumerate(tokens)]
    stored = [rows]
    for window in windows[:-1]:
        rows = [mix((seen + position) % P) for position, seen in enumerate(_seen(rows, window, heads))]
        stored.append(rows)
    return stored


def _seen(rows: Sequence[int], window: int | None, heads: Heads) -> list[int]:
    """Over query heads q, q + 1 times the sum of visible tags of its kv head, mod P."""
    q_heads, kv_heads = heads
    sums = [_sums([of_head(tag, head) for tag in rows], window) for head in range(kv_heads)]
    share = q_heads // kv_heads
    return [sum((q + 1) * sums[q // share][i] for q in range(q_heads)) % P for i in range(len(rows))]


def _sums(rows: Sequence[int], window: int | None) -> list[int]:
    upto = [0, *accumulate(rows)]
    return [upto[i + 1] - (0 if window is None else upto[max(0, i + 1 - window)]) for i in range(len(rows))]


def hidden(tokens: Sequence[int], windows: Sequence[int | None], heads: Heads = (1, 1), adapter: int = 0) -> list[int]:
    """What the last layer saw at each position."""
    return _seen(tags(tokens, windows, heads, adapter)[-1], windows[-1], heads)


def logit(seen: int, token: int) -> float:
    """The logit of a token: pseudo-random in [-4, 4), distinct for distinct tokens in practice."""
    return mix((seen + 1_000_003 * (token + 1)) % P) / P * 8 - 4


def greedy(
    prompt: Sequence[int],
    count: int,
    windows: Sequence[int | None],
    vocab: int,
    heads: Heads = (1, 1),
    adapter: int = 0,
) -> list[int]:
    """The greedy continuation, end tokens ignored."""
    tokens = list(prompt)
    for _ in range(count):
        seen = hidden(tokens, windows, heads, adapter)[-1]
        tokens.append(max(range(vocab), key=lambda token: (logit(seen, token), -token)))
    return tokens[len(prompt) :]


def expected_tokens(prompt: Sequence[int], count: int, model: str = "tagged") -> list[int]:
    """What the model called `model` says greedily: at most `count` tokens, an end token is the last."""
    shape = SHAPES[model]
    said = greedy(prompt, count, shape.windows, shape.vocab, shape.heads)
    ends = [index for index, token in enumerate(said) if token in shape.eos]
    return said[: ends[0] + 1] if ends else said


def expected_tags(tokens: Sequence[int], layer: int, model: str = "tagged") -> list[int]:
    """What the model called `model` stores in a layer at each position (kv head 0)."""
    shape = SHAPES[model]
    return tags(tokens, shape.windows, shape.heads)[layer]
