"""Block types of GGUF, decoded element by element from the description of the formats."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from tokloom.plugins.models.decoder.gguf_file import TYPES, GGUFFile
from tokloom.sdk import CheckpointError

Block = NDArray[np.uint8]


def half(block: Block, at: int) -> float:
    return float(block[at : at + 2].view(np.float16)[0])


def q5(block: Block, offset: int) -> list[int]:
    """The 32 five-bit numbers behind `offset`: four bytes of fifth bits, sixteen of nibbles."""
    high = int(block[offset : offset + 4].view(np.uint32)[0])
    low = [int(byte) for byte in block[offset + 4 : offset + 20]]
    nibbles = [byte & 15 for byte in low] + [byte >> 4 for byte in low]
    return [nibble | (high >> j & 1) << 4 for j, nibble in enumerate(nibbles)]


def q5_0(block: Block) -> list[float]:
    return [half(block, 0) * (q - 16) for q in q5(block, 2)]


def q5_1(block: Block) -> list[float]:
    return [half(block, 0) * q + half(block, 2) for q in q5(block, 4)]


def six_bits(packed: Block, j: int) -> tuple[int, int]:
    """Scale and minimum of sub-block j of eight."""
    s = [int(byte) for byte in packed]
    if j < 4:
        return s[j] & 63, s[j + 4] & 63
    return (s[j + 4] & 15) | (s[j - 4] >> 6) << 4, (s[j + 4] >> 4) | (s[j] >> 6) << 4


def q4_k(block: Block) -> list[float]:
    return affine(block, [(int(block[16 + 32 * (e // 64) + e % 32]) >> 4 * (e // 32 % 2)) & 15 for e in range(256)])


def q5_k(block: Block) -> list[float]:
    numbers = []
    for e in range(256):
        low = (int(block[48 + 32 * (e // 64) + e % 32]) >> 4 * (e // 32 % 2)) & 15
        numbers.append(low | (int(block[16 + e % 32]) >> (e // 32) & 1) << 4)
    return affine(block, numbers)


def affine(block: Block, numbers: list[int]) -> list[float]:
    values = []
    for e, number in enumerate(numbers):
        scale, least = six_bits(block[4:16], e // 32)
        values.append(half(block, 0) * scale * number - half(block, 2) * least)
    return values


def q6_k(block: Block) -> list[float]:
    scales = block[192:208].view(np.int8)
    values = []
    for e in range(256):
        upper, within = divmod(e, 128)
        quarter, lane = divmod(within, 32)
        low = int(block[64 * upper + 32 * (quarter % 2) + lane]) >> 4 * (quarter // 2) & 15
        high = int(block[128 + 32 * upper + lane]) >> 2 * quarter & 3
        values.append(half(block, 208) * int(scales[e // 16]) * ((low | high << 4) - 32))
    return values


def q2_k(block: Block) -> list[float]:
    values = []
    for e in range(256):
        upper, within = divmod(e, 128)
        number = int(block[16 + 32 * upper + within % 32]) >> 2 * (within // 32) & 3
        scale = int(block[e // 16])
        values.append(half(block, 80) * (scale & 15) * number - half(block, 82) * (scale >> 4))
    return values


def q3_k(block: Block) -> list[float]:
    values = []
    for e in range(256):
        upper, within = divmod(e, 128)
        low = int(block[32 + 32 * upper + within % 32]) >> 2 * (within // 32) & 3
        number = low - (0 if int(block[within % 32]) >> (e // 32) & 1 else 4)
        i = e // 16
        scale = int(block[96 + i % 8]) >> 4 * (i // 8) & 15 | (int(block[104 + i % 4]) >> 2 * (i // 4) & 3) << 4
        values.append(half(block, 108) * (scale - 32) * number)
    return values


#: type -> decoder of a block, and where its half-precision numbers are
DECODERS: dict[str, tuple[Callable[[Block], list[float]], tuple[int, ...]]] = {
    "Q5_0": (q5_0, (0,)),
    "Q5_1": (q5_1, (0, 2)),
    "Q2_K": (q2_k, (80, 82)),
    "Q3_K": (q3_k, (108,)),
    "Q4_K": (q4_k, (0, 2)),
    "Q5_K": (q5_k, (0, 2)),
    "Q6_K": (q6_k, (208,)),
}


def write(path: Path, packed: NDArray[np.uint8], kind: str) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("t", packed, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("seed", range(3))
def test_blocks_of_random_bits(tmp_path: Path, kind: str, seed: int) -> None:
    decode, halves = DECODERS[kind]
    elements, size = next((n, s) for name, n, s in TYPES.values() if name == kind)
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (3 * 2, size), dtype=np.uint8)
    for at in halves:
        blocks[:, at : at + 2] = rng.normal(size=(6, 1)).astype(np.float16).view(np.uint8)
    write(tmp_path / "m.gguf", blocks.reshape(3, 2 * size), kind)
    got = GGUFFile(tmp_path / "m.gguf").read("t").astype(np.float64)
    want = np.array([decode(block) for block in blocks]).reshape(3, 2 * elements)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("kind", ["IQ4_NL", "IQ2_XXS", "MXFP4", "TQ1_0"])
def test_other_types_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    assert elements
    write(tmp_path / "m.gguf", np.zeros((2, size), dtype=np.uint8), kind)
    with pytest.raises(CheckpointError, match=f"tensor t has type {kind}, which is not read"):
        GGUFFile(tmp_path / "m.gguf")
