"""The slow kernels agree with attention's definition and notice keys that are not where they should be."""

import random
from typing import Any

import pytest
import torch
from attrs import evolve
from doubles_rig import (
    NAN,
    Heap,
    Paged,
    Problem,
    Rows,
    attend,
    build,
    by_definition,
    chain_rows,
    paged,
    problem,
    tree_rows,
)

from tokloom.core.attend import merge
from tokloom.sdk import Accepts, AttnParams, KVFormat, LayerSpec, Unsupported

BASE = AttnParams(4, 2, 3, 5, 0.6)
PARAMS: dict[str, AttnParams] = {
    "plain": BASE,
    "scale 0": evolve(BASE, scale=0.0),
    "window": evolve(BASE, window=4),
    "window 1": evolve(BASE, window=1),
    "soft cap": evolve(BASE, soft_cap=0.8),
    "sinks": evolve(BASE, sinks=(0.3, -1.0, 2.0, 0.0)),
    "alibi": evolve(BASE, alibi=(0.5, 0.25, 0.125, 0.0625)),
    "not causal": evolve(BASE, causal=False),
    "everything": evolve(BASE, window=6, soft_cap=1.5, sinks=(0.1,) * 4, alibi=(0.3,) * 4),
}


def random_rows(rng: random.Random, *, trees: bool) -> list[Rows]:
    """Decode, verify and prefill rows."""
    made = [chain_rows(1, rng.randint(1, 20)), chain_rows(rng.randint(1, 6), 6 + rng.randint(0, 9)), chain_rows(7, 7)]
    if trees:
        parents = [rng.randint(-1, node - 1) for node in range(rng.randint(1, 6))]
        made.insert(1, tree_rows(parents, rng.randint(0, 9)))
    return made


def format_for(params: AttnParams, page: int = 4, codec: str = "tagdense") -> tuple[Any, KVFormat]:
    made = build("codec", codec)
    return made, made.formats(LayerSpec(0, params, "float64"), page)[0].main


def check(got: tuple[torch.Tensor, torch.Tensor], case: Problem) -> None:
    want, want_lse = by_definition(case)
    torch.testing.assert_close(got[0], want, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got[1], want_lse, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize("page", [1, 4])
def test_the_kernel_is_the_definition(name: str, trees: bool, page: int) -> None:
    for seed in range(3):
        case = problem(PARAMS[name], random_rows(random.Random(seed), trees=trees), seed)
        codec, format = format_for(case.params, page)
        check(attend(build("attention", "tags"), case, paged(case, codec, format)), case)


@pytest.mark.parametrize("name", [name for name in PARAMS if name != "not causal"])
@pytest.mark.parametrize("trees", [False, True])
def test_two_segments_merge_to_the_definition(name: str, trees: bool) -> None:
    for seed in range(3):
        rng = random.Random(seed)
        case = problem(PARAMS[name], random_rows(rng, trees=trees), seed)
        codec, format = format_for(case.params)
        past = [(len(own.key_positions) - len(own.positions)) // 4 for own in case.rows]
        cuts = [4 * rng.randint(0, pages) for pages in past]
        kernel = build("attention", "tags")
        first = attend(kernel, case, paged(case, codec, format, stops=cuts, last=False))
        second = attend(kernel, case, paged(case, codec, format, starts=cuts))
        torch.testing.assert_close(
            merge([first[0], second[0]], [first[1], second[1]]), by_definition(case)[0], rtol=1e-12, atol=1e-12
        )


def test_a_segment_without_visible_keys_gives_nothing() -> None:
    case = problem(evolve(BASE, window=2), [chain_rows(2, 9)], 0)
    codec, format = format_for(case.params)
    out, lse = attend(build("attention", "tags"), case, paged(case, codec, format, stops=[4], last=False))
    assert out.eq(0).all()
    assert torch.isneginf(lse).all()


def one_row(page: int = 4) -> tuple[Problem, Paged]:
    case = problem(BASE, [chain_rows(2, 11)], 1)
    codec, format = format_for(BASE, page)
    return case, paged(case, codec, format)


def place(where: Paged, slot: int) -> tuple[int, int]:
    page = where.pages.format.page_tokens
    return int(where.batch.tables[0, slot // page]), slot % page


@pytest.mark.parametrize("plane", ["k", "v"])
def test_a_visible_key_that_nobody_wrote_is_an_error_that_names_it(plane: str) -> None:
    case, where = one_row()
    number, offset = place(where, 6)
    where.pages.planes[plane][number, offset] = NAN
    with pytest.raises(AssertionError, match=rf"row 0 reads slot 6 \(page {number}, offset {offset}\): nobody wrote"):
        attend(build("attention", "tags"), case, where)


def test_invisible_slots_may_hold_anything() -> None:
    case, where = one_row()
    number, offset = place(where, 10)
    assert offset == 2
    assert torch.isnan(where.pages.planes["k"][number, 3]).all()
    check(attend(build("attention", "tags"), case, where), case)


def test_a_key_of_another_position_is_an_error() -> None:
    case, where = one_row()
    number, offset = place(where, 5)
    where.pages.planes["k"][number, offset] = where.pages.planes["k"][place(where, 9)]
    with pytest.raises(AssertionError, match="it holds the key of position 9, not 5"):
        attend(build("attention", "tags"), case, where)
    attend(build("attention", "tags", positions=False), case, where)


def test_exchanged_pages_are_an_error() -> None:
    case, where = one_row()
    where.batch.tables[0, :2] = where.batch.tables[0, :2].flip(0)
    with pytest.raises(AssertionError, match="holds the key of position"):
        attend(build("attention", "tags"), case, where)


def test_a_tree_row_at_its_slot_instead_of_its_depth_is_an_error() -> None:
    rows = tree_rows([-1, -1], 3)
    case = problem(BASE, [rows], 2)
    codec, format = format_for(BASE)
    check(attend(build("attention", "tags"), case, paged(case, codec, format)), case)
    wrong = evolve(case, k=(case.k[0] + torch.tensor([0, 0, 0, 0, 0, 1])[:, None, None],))
    with pytest.raises(AssertionError, match="holds the key of position 5, not 4"):
        attend(build("attention", "tags"), wrong, paged(wrong, codec, format))


def test_a_visible_page_that_is_gone_is_an_error() -> None:
    case, where = one_row()
    where.batch.tables[0, 1] = -1
    with pytest.raises(AssertionError, match="needs slot 4, whose page is gone"):
        attend(build("attention", "tags"), case, where)


def test_replanning_updates_the_recorded_plan_in_place() -> None:
    kernel = build("attention", "tags")
    first, second = one_row()[1], one_row()[1]
    plan = kernel.plan(first.batch, BASE, Heap(), capture=True, reuse=None)
    assert kernel.plan(second.batch, BASE, Heap(), capture=True, reuse=plan) is plan
    assert plan.batch is second.batch
    assert kernel.replans == 1


def test_planes_that_are_not_keys_and_values_are_refused() -> None:
    kernel = build("attention", "tags")
    other = KVFormat.pack("other", 4, [("latent", "float64", (4, 3))])
    assert isinstance(kernel.accepts(LayerSpec(0, BASE, "float64"), other), Unsupported)
    for codec in ("tagdense", "sealing", "sealing-apart", "scaled", "rotated", "stepwise"):
        pair = build("codec", codec).formats(LayerSpec(0, BASE, "float64"), 4)[0]
        for format in (pair.main, pair.open):
            assert format is None or isinstance(kernel.accepts(LayerSpec(0, BASE, "float64"), format), Accepts)


def test_the_plain_kernel_takes_plain_batches_only() -> None:
    kernel = build("attention", "tags-plain")
    case, where = one_row()
    check(attend(kernel, case, where), case)
    tree = torch.ones(1, 2, 2, dtype=torch.bool)
    changes: dict[str, dict[str, Any]] = {
        "tree": {"tree": tree},
        "start past": {"kv_start": where.batch.kv_start + 4},
        "not exact": {"host_exact": False},
        "disagree": {"kv_lens": where.batch.kv_lens + 1},
    }
    for words, change in changes.items():
        with pytest.raises(AssertionError, match=words):
            attend(kernel, case, Paged(evolve(where.batch, **change), where.pages))
    with pytest.raises(AssertionError, match="recorded"):
        kernel.plan(where.batch, BASE, Heap(), capture=True, reuse=None)
    two = problem(BASE, [chain_rows(1, 3), chain_rows(3, 3)], 4)
    codec, format = format_for(BASE)
    mixed = paged(two, codec, format)
    with pytest.raises(AssertionError, match="phases"):
        attend(kernel, two, Paged(evolve(mixed.batch, num_decode=1), mixed.pages))


def test_the_writing_kernel_writes_what_the_codec_appends() -> None:
    kernel, (codec, format) = build("attention", "writer"), format_for(BASE)
    case = problem(BASE, [chain_rows(7, 13)], 5)
    theirs, mine = (
        paged(case, codec, format, store=store)
        for store in (None, lambda pages, k, v, slots: kernel.write(0, k, v, pages, slots.where(slots % 5 > 0, -1)))
    )
    skipped = paged(case, codec, format, store=lambda p, k, v, s: codec.append(0, k, v, p, s.where(s % 5 > 0, -1)))
    for name, plane in mine.pages.planes.items():
        assert torch.equal(plane.view(torch.int64), skipped.pages.planes[name].view(torch.int64))
        assert not torch.equal(plane.view(torch.int64), theirs.pages.planes[name].view(torch.int64))
    assert kernel.writes == 1
