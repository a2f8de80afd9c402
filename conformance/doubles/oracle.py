"""What the content-tagged model must compute, in plain Python: no torch, no pages, no batching."""

from collections.abc import Sequence

#: prime modulus of all tags; sums of 2^20 tags stay exact in float64
P = 2_147_483_629


def mix(value: int) -> int:
    """A one-to-one-looking scramble of 0..P-1."""
    return (value * value + 12_345 * value + 678_910) % P


def tag0(token: int, position: int) -> int:
    """The tag that layer 0 stores for a token at a position."""
    return mix((token * 7_919 + position * 104_729 + 1) % P)


def tags(tokens: Sequence[int], windows: Sequence[int | None]) -> list[list[int]]:
    """`[layer][position]`: what each layer stores. Layer i > 0 stores a scramble of what layer i - 1 saw, so its KV
    contains the whole visible prefix.
    """
    rows = [tag0(token, position) for position, token in enumerate(tokens)]
    stored = [rows]
    for window in windows[:-1]:
        rows = [mix((seen + position) % P) for position, seen in enumerate(_sums(rows, window))]
        stored.append(rows)
    return stored


def _sums(rows: Sequence[int], window: int | None) -> list[int]:
    first = (lambda i: 0) if window is None else (lambda i: max(0, i - window + 1))
    return [sum(rows[first(i) : i + 1]) % P for i in range(len(rows))]


def hidden(tokens: Sequence[int], windows: Sequence[int | None]) -> list[int]:
    """What the last layer saw at each position."""
    return _sums(tags(tokens, windows)[-1], windows[-1])


def logit(seen: int, token: int) -> float:
    """The logit of a token: pseudo-random in [-4, 4), distinct for distinct tokens in practice."""
    return mix((seen + 1_000_003 * (token + 1)) % P) / P * 8 - 4


def greedy(prompt: Sequence[int], count: int, windows: Sequence[int | None], vocab: int) -> list[int]:
    """The greedy continuation."""
    tokens = list(prompt)
    for _ in range(count):
        seen = hidden(tokens, windows)[-1]
        tokens.append(max(range(vocab), key=lambda token: (logit(seen, token), -token)))
    return tokens[len(prompt) :]
