"""What holds for every codec that writes token by token, for `dense` and `int8`."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from poisoned_pages import codec_named, format_of, make_pages, sparse_pages, spec_of
from torch import Tensor

from tokloom.sdk import LayerSpec, NoOptions

SHAPES = [(1, 1, 1), (3, 64, 64), (2, 80, 48), (5, 7, 13), (1, 128, 33)]
PAGE_SIZES = [1, 3, 8, 32]
CODECS = ["dense", "int8"]


def random_rows(seed: int, tokens: int, spec: LayerSpec) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    p = spec.params
    dtype = getattr(torch, spec.dtype)
    k = torch.randn(tokens, p.kv_heads, p.head_k, generator=generator, dtype=torch.float64).to(dtype)
    return k, torch.randn(tokens, p.kv_heads, p.head_v, generator=generator, dtype=torch.float64).to(dtype)


def shuffled_slots(seed: int, pages: int, page_tokens: int, tokens: int) -> Tensor:
    return torch.tensor(random.Random(seed).sample(range(pages * page_tokens), tokens), dtype=torch.int64)


def read_slots(name: str, pages: object, slots: Tensor) -> tuple[Tensor, Tensor]:
    codec, size = codec_named(name), pages.format.page_tokens  # type: ignore[attr-defined]
    k, v = codec.read(0, pages, torch.arange(int(slots.max()) // size + 1))  # type: ignore[arg-type]
    return k.flatten(0, 1)[slots], v.flatten(0, 1)[slots]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("page_tokens", PAGE_SIZES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dense_reads_back_exactly_what_was_appended(shape: tuple[int, int, int], page_tokens: int, dtype: str) -> None:
    spec = spec_of(dtype, *shape)
    pages, _ = make_pages(format_of(codec_named("dense"), spec, page_tokens), 9, seed=1)
    k, v = random_rows(2, 7, spec)
    slots = shuffled_slots(3, 9, page_tokens, 7)
    codec_named("dense").append(0, k, v, pages, slots)
    got_k, got_v = read_slots("dense", pages, slots)
    wide = torch.float64 if dtype == "float64" else torch.float32
    assert got_k.dtype == got_v.dtype == wide
    assert torch.equal(got_k, k.to(wide))
    assert torch.equal(got_v, v.to(wide))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("page_tokens", PAGE_SIZES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_int8_is_off_by_at_most_half_a_step(shape: tuple[int, int, int], page_tokens: int, dtype: str) -> None:
    spec = spec_of(dtype, *shape)
    pages, _ = make_pages(format_of(codec_named("int8"), spec, page_tokens), 9, seed=1)
    k, v = random_rows(2, 7, spec)
    slots = shuffled_slots(3, 9, page_tokens, 7)
    codec_named("int8").append(0, k, v, pages, slots)
    for got, want in zip(read_slots("int8", pages, slots), (k, v), strict=True):
        assert got.dtype == torch.float32
        assert_within_half_a_step(got, want)


def assert_within_half_a_step(got: Tensor, want: Tensor) -> None:
    peak = want.double().abs().amax(-1, keepdim=True)
    # 2^-149 is float32's smallest step: below it no scale can be exact
    bound = peak / 127 / 2 * (1 + 1e-4) + 127 * 2.0**-149
    assert bool(((got.double() - want.double()).abs() <= bound).all())


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("size", [1, 64])
def test_int8_survives_zero_huge_tiny_and_lopsided_rows(size: int, dtype: str) -> None:
    limits = torch.finfo(torch.float32)
    spec = spec_of(dtype, 1, size, size)
    rows = torch.randn(9, 1, size, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    rows /= rows.abs().amax(-1, keepdim=True)
    for i, peak in enumerate((0.0, limits.max, -limits.max, 1e38, limits.tiny, 1e-40, 1e-45, 1e-30)):
        rows[i] *= peak
    rows[8, 0, 0] = 1e30
    k = rows.clamp(limits.min, limits.max).to(getattr(torch, dtype))
    k = torch.where(k.isinf(), torch.finfo(k.dtype).max, k)
    pages, _ = make_pages(format_of(codec_named("int8"), spec, 4), 3, seed=5)
    slots = torch.arange(9)
    codec_named("int8").append(0, k, k, pages, slots)
    got, _ = read_slots("int8", pages, slots)
    assert bool(got.isfinite().all())
    assert bool((got[0] == 0).all())
    assert_within_half_a_step(got, k.clamp(limits.min, limits.max) if dtype == "float64" else k)


def test_int8_codes_are_symmetric_and_use_the_whole_range() -> None:
    spec = spec_of("float32", 2, 16, 16)
    pages, _ = make_pages(format_of(codec_named("int8"), spec, 8), 2, seed=6)
    k, _ = random_rows(7, 8, spec)
    codec_named("int8").append(0, k, -k, pages, torch.arange(8))
    codes_k, codes_v = pages.planes["k"][0], pages.planes["v"][0]
    assert torch.equal(codes_k, -codes_v)
    assert bool((codes_k.abs().amax(-1) == 127).all())


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("page_tokens", PAGE_SIZES)
def test_a_slot_of_minus_one_writes_nothing(name: str, page_tokens: int) -> None:
    spec = spec_of("float32", 2, 6, 10)
    pages, buffer = make_pages(format_of(codec_named(name), spec, page_tokens), 12, seed=8)
    k, v = random_rows(9, 6, spec)
    before = buffer.clone()
    codec_named(name).append(0, k, v, pages, torch.full((6,), -1))
    assert torch.equal(buffer, before)
    slots = torch.tensor([-1, 11, -1, 2, 5, -1])
    codec_named(name).append(0, k, v, pages, slots)
    kept = slots >= 0
    pages_2, buffer_2 = make_pages(format_of(codec_named(name), spec, page_tokens), 12, seed=8)
    codec_named(name).append(0, k[kept], v[kept], pages_2, slots[kept])
    assert torch.equal(buffer, buffer_2)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("page_tokens", PAGE_SIZES)
def test_an_append_changes_the_bytes_of_its_slots_and_no_others(name: str, page_tokens: int) -> None:
    spec = spec_of("bfloat16", 3, 10, 6)
    pages, buffer = make_pages(format_of(codec_named(name), spec, page_tokens), 12, seed=10)
    untouched = torch.ones_like(buffer, dtype=torch.bool)
    slots = shuffled_slots(11, 12, page_tokens, 5)
    for plane in pages.format.planes:
        per_token = plane.nbytes // page_tokens
        for slot in slots.tolist():
            at = plane.offset + slot % page_tokens * per_token
            untouched[slot // page_tokens, at : at + per_token] = False
    before = buffer.clone()
    codec_named(name).append(0, *random_rows(12, 5, spec), pages, slots)
    assert torch.equal(buffer[untouched], before[untouched])
    assert not torch.equal(buffer, before)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("seed", range(4))
def test_token_by_token_writes_the_same_bytes_as_all_at_once(name: str, seed: int) -> None:
    spec = spec_of("bfloat16", 3, 16, 24)
    format = format_of(codec_named(name), spec, 8)
    k, v = random_rows(seed, 30, spec)
    slots = shuffled_slots(seed, 6, 8, 30)
    (bulk, bulk_bytes), (single, single_bytes) = (make_pages(format, 6, seed=13) for _ in range(2))
    codec_named(name).append(0, k, v, bulk, slots)
    at, rng = 0, random.Random(seed)
    while at < 30:
        end = min(30, at + rng.choice((1, 1, 2, 7)))
        codec_named(name).append(0, k[at:end], v[at:end], single, slots[at:end])
        at = end
    assert torch.equal(bulk_bytes, single_bytes)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("seed", range(8))
def test_move_reads_every_source_before_it_writes(name: str, seed: int) -> None:
    spec, page_tokens, count = spec_of("float32", 2, 8, 12), random.Random(seed).choice(PAGE_SIZES), 16
    pages, buffer = make_pages(format_of(codec_named(name), spec, page_tokens), count, seed=seed)
    total = count * page_tokens
    codec_named(name).append(0, *random_rows(seed, total, spec), pages, torch.arange(total))
    rng = random.Random(100 + seed)
    n = rng.randint(2, 12)
    dst = rng.sample(range(total), n)
    src = [rng.choice(dst) if rng.random() < 0.7 else rng.randrange(total) for _ in range(n)]  # overlaps and repeats
    expected = buffer.clone()
    for plane in pages.format.planes:
        size = plane.nbytes // page_tokens
        for a, b in zip(src, dst, strict=True):
            cell = buffer[a // page_tokens, plane.offset + a % page_tokens * size :][:size]
            expected[b // page_tokens, plane.offset + b % page_tokens * size :][:size] = cell
    codec_named(name).move(0, pages, torch.tensor(src), torch.tensor(dst))
    assert torch.equal(buffer, expected)


@pytest.mark.parametrize("name", CODECS)
def test_empty_appends_reads_and_moves_do_nothing(name: str) -> None:
    spec = spec_of("float32", 2, 8, 12)
    pages, buffer = make_pages(format_of(codec_named(name), spec, 4), 3, seed=14)
    before, none = buffer.clone(), torch.empty(0, dtype=torch.int64)
    codec_named(name).append(0, torch.empty(0, 2, 8), torch.empty(0, 2, 12), pages, none)
    codec_named(name).move(0, pages, none, none)
    k, v = codec_named(name).read(0, pages, none)
    assert k.shape == (0, 4, 2, 8)
    assert v.shape == (0, 4, 2, 12)
    assert torch.equal(buffer, before)


@pytest.mark.parametrize("name", CODECS)
def test_inputs_are_not_modified_and_may_be_strided(name: str) -> None:
    spec = spec_of("float32", 3, 8, 8)
    pages, _ = make_pages(format_of(codec_named(name), spec, 4), 3, seed=15)
    fused = torch.randn(5, 3, 24, generator=torch.Generator().manual_seed(16))
    k, v, slots = fused[..., 2:10], fused[..., 12:20], torch.tensor([3, 0, -1, 7, 9])
    before = fused.clone()
    codec_named(name).append(0, k, v, pages, slots)
    assert torch.equal(fused, before)
    assert slots.tolist() == [3, 0, -1, 7, 9]
    got, _ = read_slots(name, pages, slots[slots >= 0])
    assert_within_half_a_step(got, k[slots >= 0])


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("page_tokens", PAGE_SIZES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_planes_are_aligned_disjoint_and_inside_the_page(
    name: str, shape: tuple[int, int, int], page_tokens: int
) -> None:
    format = format_of(codec_named(name), spec_of("bfloat16", *shape), page_tokens)
    end = 0
    for plane in sorted(format.planes, key=lambda p: p.offset):
        assert plane.offset % 16 == 0
        assert plane.offset >= end
        assert plane.shape[0] == page_tokens
        end = plane.offset + plane.nbytes
    assert end <= format.page_bytes
    assert format.page_bytes % 16 == 0


def test_format_ids_differ_whenever_the_bytes_do() -> None:
    seen: dict[str, object] = {}
    for name in CODECS:
        for dtype in ("float64", "float32", "bfloat16", "float16"):
            for shape in SHAPES:
                for page_tokens in PAGE_SIZES:
                    format = format_of(codec_named(name), spec_of(dtype, *shape), page_tokens)
                    assert seen.setdefault(format.id, format.planes) == format.planes
    assert codec_named("dense").fingerprint != codec_named("int8").fingerprint


@pytest.mark.parametrize("name", CODECS)
def test_a_dtype_that_cannot_be_stored_has_no_format(name: str) -> None:
    assert codec_named(name).formats(spec_of("int32", 1, 8, 8), 16) == ()
    assert codec_named(name).residual_tokens == 0


@pytest.mark.parametrize("name", CODECS)
def test_more_than_two_to_the_31_tokens_are_addressed(name: str, tmp_path: Path) -> None:
    spec, size = spec_of("bfloat16", 1, 1, 1), 4096
    count = 2**31 // size + 3
    pages = sparse_pages(format_of(codec_named(name), spec, size), count, tmp_path)
    k, v = random_rows(17, 2, spec)
    slots = torch.tensor([(count - 1) * size + 127, 5])
    codec_named(name).append(0, k, v, pages, slots)
    codec_named(name).move(0, pages, slots[:1], torch.tensor([(count - 2) * size]))
    got, _ = codec_named(name).read(0, pages, torch.tensor([count - 1, 0, count - 2]))
    for token, want in ((got[0, 127], k[0]), (got[1, 5], k[1]), (got[2, 0], k[0])):
        assert_within_half_a_step(token, want)


@pytest.mark.parametrize("name", CODECS)
def test_the_entry_point_module_imports_without_torch(name: str) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        f"import tokloom.plugins.quant.kv.{name} as plugin\n"
        f"offer, = plugin.tokloom_codec(); assert (offer.kind, offer.name) == ('codec', '{name}')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_offers_say_what_the_codecs_do() -> None:
    from tokloom.plugins.quant.kv.dense import OFFER as DENSE
    from tokloom.plugins.quant.kv.int8 import OFFER as INT8

    assert DENSE.config is INT8.config is NoOptions
    for offer, lossless in ((DENSE, True), (INT8, False)):
        assert offer.capabilities.equivalence == "position"  # type: ignore[union-attr]
        assert offer.capabilities.lossless is lossless  # type: ignore[union-attr]
