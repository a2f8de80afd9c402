"""Codecs of the doubles store what they say, seal once, and their transforms undo what they do."""

from typing import Any

import pytest
import torch
from attrs import evolve
from doubles_rig import attend, build, by_definition, chain_rows, paged, poisoned, problem
from torch import Tensor

from tokloom.core.attend import _transform
from tokloom.sdk import AttnParams, FormatPair, LayerSpec, Pages

WIDE = AttnParams(4, 2, 4, 3, 0.7)
SPEC = LayerSpec(0, WIDE, "float64")
NAMES = ["tagdense", "sealing", "sealing-apart", "scaled", "rotated", "stepwise"]


def pair_of(codec: Any, page: int = 4) -> FormatPair:
    pair: FormatPair = codec.formats(SPEC, page)[0]
    return pair


def open_pool(codec: Any, count: int = 6) -> Pages:
    pair = pair_of(codec)
    return poisoned(pair.open or pair.main, count)


def rows(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    k = torch.randint(-9, 9, (count, WIDE.kv_heads, WIDE.head_k), generator=generator).double()
    v = torch.randint(-9, 9, (count, WIDE.kv_heads, WIDE.head_v), generator=generator).double()
    return k, v


def bits(pages: Pages) -> dict[str, Tensor]:
    return {name: plane.clone().view(torch.int64) for name, plane in pages.planes.items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(plane, b[name]) for name, plane in a.items())


@pytest.mark.parametrize("name", ["tagdense", "sealing", "sealing-apart"])
def test_lossless_codecs_read_back_what_was_appended(name: str) -> None:
    codec = build("codec", name, "tagged-wide")
    pool, (k, v) = open_pool(codec), rows(5)
    slots = torch.tensor([9, 2, 23, 0, 8])
    codec.append(0, k, v, pool, slots)
    read_k, read_v = codec.read(0, pool, slots // 4)
    each = torch.arange(5)
    assert torch.equal(read_k[each, slots % 4], k)
    assert torch.equal(read_v[each, slots % 4], v)


@pytest.mark.parametrize("name", NAMES)
def test_a_skipped_row_changes_no_byte(name: str) -> None:
    codec = build("codec", name, "tagged-wide")
    pool, (k, v) = open_pool(codec), rows(3)
    before = bits(pool)
    codec.append(0, k, v, pool, torch.full((3,), -1))
    assert same(before, bits(pool))
    codec.append(0, k, v, pool, torch.tensor([-1, 5, -1]))
    after = bits(pool)
    for plane, old in before.items():
        changed = (after[plane] != old).flatten(2).any(2)
        assert changed.nonzero().tolist() == [[1, 1]]


@pytest.mark.parametrize("name", NAMES)
def test_a_move_reads_everything_before_it_writes(name: str) -> None:
    codec = build("codec", name, "tagged-wide")
    pool, (k, v) = open_pool(codec), rows(4)
    codec.append(0, k, v, pool, torch.tensor([4, 5, 6, 7]))
    before = {plane: content.flatten(0, 1) for plane, content in bits(pool).items()}
    codec.move(0, pool, torch.tensor([5, 6, 4]), torch.tensor([4, 5, 10]))
    after = {plane: content.flatten(0, 1) for plane, content in bits(pool).items()}
    for plane in before:
        assert torch.equal(after[plane][[4, 5, 10]], before[plane][[5, 6, 4]])


def test_two_rows_for_one_slot_are_an_error() -> None:
    codec = build("codec", "tagdense", "tagged-wide")
    with pytest.raises(AssertionError, match="one slot"):
        codec.append(0, *rows(2), open_pool(codec), torch.tensor([3, 3]))


@pytest.mark.parametrize("name", ["sealing", "sealing-apart"])
def test_sealed_pages_read_as_the_open_ones_did(name: str) -> None:
    codec = build("codec", name, "tagged-wide", residual=2)
    pair = pair_of(codec)
    assert pair.open is not None
    assert codec.residual_tokens == 2
    pool, sealed, (k, v) = poisoned(pair.open, 3), poisoned(pair.main, 3), rows(8)
    codec.append(0, k, v, pool, torch.arange(8))
    codec.seal(0, pool, torch.tensor([1, 0]), sealed, torch.tensor([0, 2]))
    for theirs, ours in zip(
        codec.read(0, sealed, torch.tensor([0, 2])), codec.read(0, pool, torch.tensor([1, 0])), strict=True
    ):
        assert torch.equal(theirs, ours)
    assert all(torch.isnan(plane[1]).all() for plane in sealed.planes.values())
    assert codec.seals == 1


@pytest.mark.parametrize("name", ["sealing", "sealing-apart"])
def test_a_page_is_not_sealed_early_and_never_written_again(name: str) -> None:
    codec = build("codec", name, "tagged-wide")
    pair = pair_of(codec)
    assert pair.open is not None
    pool, sealed = poisoned(pair.open, 2), poisoned(pair.main, 2)
    codec.append(0, *rows(3), pool, torch.arange(3))
    with pytest.raises(AssertionError, match="before all of it was written"):
        codec.seal(0, pool, torch.tensor([0]), sealed, torch.tensor([0]))
    with pytest.raises(AssertionError, match="exchanged"):
        codec.seal(0, sealed, torch.tensor([0]), pool, torch.tensor([0]))
    with pytest.raises(AssertionError, match="appended to sealed pages"):
        codec.append(0, *rows(1), sealed, torch.tensor([4]))


def test_a_sealed_page_kept_apart_is_not_mistaken_for_an_open_one() -> None:
    codec = build("codec", "sealing-apart", "tagged-wide")
    pair = pair_of(codec)
    assert pair.open is not None
    assert {plane.name for plane in pair.main.planes}.isdisjoint(plane.name for plane in pair.open.planes)
    case = problem(evolve(WIDE, scale=0.3), [chain_rows(2, 8)], 3)
    kernel = build("attention", "tags")

    def store_sealed(pages: Pages, k: Tensor, v: Tensor, slots: Tensor) -> None:
        pool = poisoned(pair.open, len(next(iter(pages.planes.values()))))  # type: ignore[arg-type]
        codec.append(0, k, v, pool, slots)
        numbers = (slots // 4).unique()
        codec.seal(0, pool, numbers, pages, numbers)

    out, _ = attend(kernel, case, paged(case, codec, pair.main, store=store_sealed))
    torch.testing.assert_close(out, by_definition(case)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["scaled", "rotated"])
def test_transforms_undo_what_is_stored(name: str) -> None:
    codec = build("codec", name, "tagged-wide")
    case = problem(WIDE, [chain_rows(3, 9), chain_rows(1, 6)], 4)
    where = paged(case, codec, pair_of(codec).main)
    kernel = build("attention", "tags", positions=False)
    transformed = evolve(case, q=_transform(case.q, codec.q_transform(0), WIDE.kv_heads))
    out = _transform(attend(kernel, transformed, where)[0], codec.o_transform(0), WIDE.kv_heads)
    want = by_definition(case)[0]
    torch.testing.assert_close(out, want, rtol=1e-12, atol=1e-12)
    plain = attend(kernel, case, where)[0]
    assert not torch.allclose(plain, want)
    assert not torch.allclose(_transform(plain, codec.o_transform(0), WIDE.kv_heads), want)
    assert codec.transforms == 1


def test_turns_are_orthogonal_differ_between_heads_and_from_their_inverse() -> None:
    codec = build("codec", "rotated", "tagged-wide")
    matrix = codec.q_transform(0).matrix
    assert torch.equal(matrix @ matrix.mT, torch.eye(4, dtype=torch.float64).repeat(2, 1, 1))
    assert not torch.equal(matrix, matrix.mT)
    assert not torch.equal(matrix[0], matrix[1])


def test_stepwise_bytes_depend_on_the_chunks_and_on_nothing_else() -> None:
    codec = build("codec", "stepwise", "tagged-wide")
    k, v = rows(8)

    def stored(*chunks: list[int], order: int = 0) -> Tensor:
        pool = open_pool(codec)
        for chunk in chunks:
            codec.append(0, k[chunk], v[chunk], pool, torch.tensor(chunk))
        return pool.planes["v"][:2]

    by_page = stored([0, 1, 2, 3], [4, 5, 6, 7])
    assert torch.equal(by_page, stored(list(range(8))))
    assert not torch.equal(by_page, stored([0, 1], [2, 3], [4, 5, 6, 7]))
    assert float((by_page[0, 0, 0] - v[0, 0])[0]) == 4
