"""The counter-based generator: a uniform number is a pure function of (seed, position, stream).

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011). The key is the
seed, the counter is (position, stream), 64 bits each. There is no state, so a draw does not depend on what else is in
the batch, on how many drafts were verified before it, or on the order of calls.
"""

from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

Words = tuple[int, int, int, int]

StreamKind = Literal["token", "accept", "draft", "child", "plugin"]

_KINDS: Final[dict[StreamKind, int]] = {"token": 0, "accept": 1, "draft": 2, "child": 3, "plugin": 4}
_KIND_BITS: Final = 3
_MASK32: Final = 0xFFFFFFFF
_MASK64: Final = 0xFFFFFFFFFFFFFFFF
_MUL0: Final = 0xD2511F53
_MUL1: Final = 0xCD9E8D57
_WEYL0: Final = 0x9E3779B9
_WEYL1: Final = 0xBB67AE85
_ROUNDS: Final = 10
#: Below this many draws plain integers are faster than arrays.
_SCALAR_LIMIT: Final = 8


def stream(kind: StreamKind, index: int = 0) -> int:
    """The number of a stream. Streams of different kinds or indices are independent.

    `token`: the token at a position (index 0). `accept`: the acceptance test of the index-th candidate at a position.
    `draft`: the index-th draft drawn for a sequence. `child`: seeds of children. `plugin`: what plugins ask for.
    """
    return (_KINDS[kind] | (index << _KIND_BITS)) & _MASK64


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """One block of Philox4x32-10: four 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        low, high = _MUL0 * c0, _MUL1 * c2
        c0, c1, c2, c3 = (high >> 32) ^ c1 ^ k0, high & _MASK32, (low >> 32) ^ c3 ^ k1, low & _MASK32
        k0, k1 = (k0 + _WEYL0) & _MASK32, (k1 + _WEYL1) & _MASK32
    return c0, c1, c2, c3


def uniform(seed: int, position: int, stream: int) -> float:
    """A float64 in [0, 1) with 53 random bits. Any integers are taken, modulo 2**64."""
    w0, w1, _, _ = _block(seed, position, stream)
    return ((w0 >> 5) * 67108864 + (w1 >> 6)) / 9007199254740992.0


def uniforms(seeds: Sequence[int], positions: Sequence[int], stream: int) -> NDArray[np.float64]:
    """`uniform` for each pair of seed and position, bit for bit the same."""
    if len(seeds) <= _SCALAR_LIMIT:
        return np.array([uniform(s, p, stream) for s, p in zip(seeds, positions, strict=True)], dtype=np.float64)
    key = np.array([s & _MASK64 for s in seeds], dtype=np.uint64)
    place = np.array([p & _MASK64 for p in positions], dtype=np.uint64)
    mask, shift = np.uint64(_MASK32), np.uint64(32)
    c0, c1 = place & mask, place >> shift
    c2 = np.full_like(c0, stream & _MASK32)
    c3 = np.full_like(c0, (stream >> 32) & _MASK32)
    k0, k1 = key & mask, key >> shift
    for _ in range(_ROUNDS):
        low, high = np.uint64(_MUL0) * c0, np.uint64(_MUL1) * c2
        c0, c1, c2, c3 = (high >> shift) ^ c1 ^ k0, high & mask, (low >> shift) ^ c3 ^ k1, low & mask
        k0, k1 = (k0 + np.uint64(_WEYL0)) & mask, (k1 + np.uint64(_WEYL1)) & mask
    mantissa = (c0 >> np.uint64(5)) * np.uint64(67108864) + (c1 >> np.uint64(6))
    return mantissa.astype(np.float64) / 9007199254740992.0


def derive(seed: int, child: int) -> int:
    """The 64-bit seed of the child-th sequence of a request."""
    w0, w1, _, _ = _block(seed, child, stream("child"))
    return (w1 << 32) | w0


def _block(seed: int, position: int, stream: int) -> Words:
    counter = (position & _MASK32, (position >> 32) & _MASK32, stream & _MASK32, (stream >> 32) & _MASK32)
    return philox(counter, (seed & _MASK32, (seed >> 32) & _MASK32))
