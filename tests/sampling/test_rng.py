"""The counter-based generator."""

import random

import numpy as np
import pytest

from tokloom.core.sampling import derive, rng, stream, uniform, uniforms
from tokloom.core.sampling.rng import StreamKind


@pytest.mark.parametrize(
    ("counter", "key", "block"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_blocks(counter: rng.Words, key: tuple[int, int], block: rng.Words) -> None:
    assert rng.philox(counter, key) == block


def test_the_vectorised_generator_agrees_bit_for_bit() -> None:
    chance = random.Random(3)
    seeds = [chance.randrange(-(2**63), 2**64) for _ in range(200)]
    positions = [chance.randrange(2**40) for _ in range(200)]
    for index in (0, 5, 2**30):
        number = stream("accept", index)
        assert uniforms(seeds, positions, number).tolist() == [
            uniform(s, p, number) for s, p in zip(seeds, positions, strict=True)
        ]


@pytest.mark.parametrize("axis", ["seed", "position", "stream"])
def test_numbers_are_uniform_along_every_argument(axis: str) -> None:
    n = 40_000
    ramp, fixed = list(range(n)), [12345] * n
    if axis == "seed":
        u = uniforms(ramp, fixed, 0)
    elif axis == "position":
        u = uniforms(fixed, ramp, 0)
    else:
        u = np.array([uniform(5, 6, stream("draft", i)) for i in range(n)])
    assert u.min() >= 0.0
    assert u.max() < 1.0
    pairs = np.floor(u[::2] * 16) * 16 + np.floor(u[1::2] * 16)
    counts = np.bincount(pairs.astype(int), minlength=256)
    chi2 = float(((counts - n / 2 / 256) ** 2 / (n / 2 / 256)).sum())
    # 255 degrees of freedom: the 1 - 1e-4 quantile is about 347; the 1e-4 quantile about 181.
    assert 181 < chi2 < 347


def test_children_and_kinds_of_stream_do_not_meet() -> None:
    assert len({derive(seed, child) for seed in range(50) for child in range(50)}) == 2500
    kinds: tuple[StreamKind, ...] = ("token", "accept", "draft", "child", "plugin")
    assert len({stream(k, i) for k in kinds for i in range(100)}) == 500
