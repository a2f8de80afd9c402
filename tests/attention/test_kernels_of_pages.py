"""What attention over pages promises besides the right numbers."""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from paged_cases import (
    Case,
    Heap,
    Span,
    assert_close,
    attend,
    make_data,
    make_kernel,
    make_plan,
    make_segment,
    oracle,
    plain,
    stored,
)
from poisoned_pages import NAN, codec_named, format_of, sparse_pages
from torch import Tensor

from tokloom.plugins.attention.torch import CAPABILITIES, tokloom_attention
from tokloom.sdk import Accepts, AttnParams, KVFormat, LayerSpec, PluginFault, Unsupported

MIXED = (
    Span(1, 130),
    Span(1, 16),
    Span(5, 40, (-1, 0, 0, 1, 1)),
    Span(3, 17),
    Span(33, 50),
    Span(20, 20),
    Span(200, 260),
)
CHAINS = tuple(Span(s.rows, s.keys) for s in MIXED)
EVERYTHING: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 19},
    "capped": {"soft_cap": 2.0, "scale": 0.7},
    "sinks": {"sinks": (0.5, -1.0, 2.0, 1.0)},
    "alibi": {"alibi": (0.5, 0.25, 0.125, 0.06)},
    "all": {"window": 37, "soft_cap": 5.0, "sinks": (0.5, -1.0, 2.0, 1.0), "alibi": (0.5, 0.25, 0.125, 0.06)},
    "one_head": {"q_heads": 6, "kv_heads": 6},
}


@pytest.mark.parametrize("codec", ["dense", "int8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", EVERYTHING)
def test_where_pages_lie_does_not_change_a_bit(name: str, dtype: str, codec: str) -> None:
    data = make_data(Case(plain(**EVERYTHING[name]), MIXED, dtype=dtype, codec=codec, seed=1))
    first, _ = attend(data, make_segment(data, page_seed=0))
    for page_seed in (1, 2):
        assert torch.equal(first, attend(data, make_segment(data, page_seed=page_seed))[0])


@pytest.mark.parametrize("codec", ["dense", "int8"])
@pytest.mark.parametrize("poison", [NAN, float("inf"), -float("inf"), 3e38, -65000.0], ids=str)
@pytest.mark.parametrize("name", EVERYTHING)
def test_nothing_outside_the_keys_is_ever_seen(name: str, poison: float, codec: str) -> None:
    for page_tokens in (1, 16, 64):
        data = make_data(Case(plain(**EVERYTHING[name]), MIXED, page_tokens, "float32", codec, seed=2))
        for want_lse in (False, True):
            clean = attend(data, make_segment(data, poison=0.0), want_lse=want_lse)
            dirty = attend(data, make_segment(data, poison=poison), want_lse=want_lse)
            assert torch.equal(clean[0], dirty[0])
            assert clean[1] is None or torch.equal(clean[1], dirty[1])  # type: ignore[arg-type]


def test_a_key_that_no_row_sees_is_never_read() -> None:
    """A draft that nobody descends from, not even itself, may hold NaN: its write was skipped."""
    data = make_data(Case(plain(), (Span(4, 20, (-1, 0, 0, 0)), Span(1, 9)), seed=3))
    assert data.tree is not None
    data.tree[:, :, 2] = False
    data.tree[0, 2, 1] = True
    segment = make_segment(data)
    want, _ = attend(data, segment)
    slot = int(segment.batch.slots[2])
    for plane in segment.pages.planes.values():
        plane[slot // 16, slot % 16] = NAN
    got, _ = attend(data, segment)
    assert bool(got.isfinite().all())
    assert torch.equal(got, want)


@pytest.mark.parametrize("rows", [1, 4, 60])
@pytest.mark.parametrize("window", [1, 15, 16, 17, 40])
def test_a_window_of_w_sees_w_keys_and_not_one_more(window: int, rows: int) -> None:
    case = Case(plain(window=window), (Span(rows, 100), Span(1, 100)), seed=4)
    data = make_data(case)
    before, _ = attend(data, make_segment(data, drop_slid=False))
    last, position = rows - 1, data.positions[0][-1]
    data.k[0][position - window] += 5
    data.v[0][position - window] += 5
    assert torch.equal(before[last], attend(data, make_segment(data, drop_slid=False))[0][last])
    data.v[0][position - window + 1] += 5
    assert not torch.equal(before[last], attend(data, make_segment(data, drop_slid=False))[0][last])


SPAN_SIZES = [(1, 90), (5, 90), (80, 90), (250, 290)]
CHANGES: list[dict[str, object]] = [{"soft_cap": 1.0}, {"scale": 0.9}, {"window": 7}, {"causal": False}]


# a single last row sees all keys whether causal or not
@pytest.mark.parametrize(
    ("change", "size"), [(c, s) for c in CHANGES for s in SPAN_SIZES if "causal" not in c or s[0] > 1], ids=str
)
def test_every_parameter_changes_the_result(change: dict[str, Any], size: tuple[int, int]) -> None:
    spans = (Span(*size),)
    base = make_data(Case(plain(scale=0.5), spans, seed=5))
    other = make_data(Case(plain(**{"scale": 0.5, **change}), spans, seed=5))
    a, _ = attend(base, make_segment(base))
    b, _ = attend(other, make_segment(other))
    assert float((a - b).abs().max()) > 1e-2


@pytest.mark.parametrize("codec", ["dense", "int8"])
@pytest.mark.parametrize("size", [1, 7, 16, 64])
def test_a_prefill_in_chunks_equals_one_in_one_go(size: int, codec: str) -> None:
    for name, changes in EVERYTHING.items():
        total = 150
        whole = make_data(Case(plain(**changes), (Span(total, total),), codec=codec, seed=6))
        want, _ = attend(whole, make_segment(whole))
        for stop in range(size, total + 1, size):
            part = make_data(Case(whole.case.params, (Span(size, stop),), codec=codec, seed=6))
            part = evolve(part, q=whole.q[stop - size : stop], k=[whole.k[0][:stop]], v=[whole.v[0][:stop]])
            got, _ = attend(part, make_segment(part))
            assert_close(got, want[stop - size : stop], "float64", f"{name}, chunk up to {stop}")


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_layers_with_different_parameters_share_a_step(dtype: str) -> None:
    """Two plans alive together, their runs interleaved, each with its own pool."""
    layers = [
        make_data(Case(params, MIXED, dtype=dtype, seed=7 + i))
        for i, params in enumerate(
            (plain(), plain(window=9), plain(8, 1, 64, soft_cap=2.0), plain(9, 3, 48, 32, sinks=(1.0,) * 9), plain())
        )
    ]
    segments = [make_segment(data) for data in layers]
    plans = [make_plan(s, d.case.params) for s, d in zip(segments, layers, strict=True)]
    plans[4] = plans[0]  # equal parameters share one plan; only the pool differs
    segments[4] = evolve(make_segment(layers[4]), batch=segments[0].batch)
    kernel = make_kernel()
    for _ in range(2):
        for i, (data, segment, plan) in enumerate(zip(layers, segments, plans, strict=True)):
            p = data.case.params
            out = torch.full((data.rows, p.q_heads, p.head_v), NAN, dtype=data.q.dtype)
            kernel.run(i, data.q, segment.pages, plan, out, None)
            assert_close(out, oracle(data, *stored(data, segment))[0], dtype, f"layer {i}")


def merge(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Segments merged as the engine does it."""
    total = torch.logsumexp(torch.stack([lse.double() for _, lse in parts]), 0)
    shares = [torch.exp(lse.double() - total).nan_to_num(0.0).unsqueeze(-1) for _, lse in parts]
    return sum((out.double() * share for (out, _), share in zip(parts, shares, strict=True)), torch.zeros(())), total


@pytest.mark.parametrize("spans", [MIXED, CHAINS, tuple(Span(1, n) for n in (5, 17, 48, 49, 1))], ids=str)
@pytest.mark.parametrize("name", EVERYTHING)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_two_pools_merged_by_log_sum_exp_equal_one(name: str, spans: tuple[Span, ...], dtype: str) -> None:
    data = make_data(Case(plain(**EVERYTHING[name]), spans, dtype=dtype, seed=8))
    whole = make_segment(data)
    want, want_lse = oracle(data, *stored(data, whole))
    rng = random.Random(9)
    page = data.case.page_tokens
    # rows of a tree are never sealed, nor rows of this step where sinks sit in the last segment: they need a key there
    tree_rows = 0 if data.tree is None else data.tree.shape[1]
    fresh_rows = [s.rows if data.case.params.sinks else min(s.rows, tree_rows) for s in spans]
    cuts = [rng.randint(0, (s.keys - n) // page) * page for s, n in zip(spans, fresh_rows, strict=True)]
    sealed = make_segment(data, [0] * len(spans), cuts, last=False, sinks_here=False)
    fresh = make_segment(data, cuts, None)
    parts = []
    for segment in (sealed, fresh):
        out, lse = attend(data, segment, want_lse=True)
        assert lse is not None
        assert bool(out.isfinite().all())
        parts.append((out, lse))
    got, got_lse = merge(parts)
    assert_close(got, want, "float32" if dtype == "float64" else dtype, f"cuts {cuts}")
    assert_close(got_lse, want_lse, "float32" if dtype == "float64" else dtype, f"cuts {cuts}")


def test_a_row_without_visible_keys_gets_zero_and_minus_infinity() -> None:
    data = make_data(Case(plain(window=8), (Span(1, 64), Span(40, 64), Span(1, 3), Span(2, 20)), seed=10))
    sealed = make_segment(data, [0] * 4, [32, 32, 0, 16], last=False)
    out, lse = attend(data, sealed, want_lse=True)
    assert lse is not None
    blind = [
        not any(0 <= at - j < 8 for j in range(end))
        for b, end in enumerate((32, 32, 0, 16))
        for at in data.positions[b]
    ]
    assert 0 < sum(blind) < len(blind)
    for row, empty in enumerate(blind):
        assert bool((out[row] == 0).all()) == empty
        assert bool((lse[row] == -torch.inf).all()) == empty
    assert bool(out.isfinite().all())


def test_an_empty_batch_is_fine() -> None:
    data = make_data(Case(plain(), ()))
    out, lse = attend(data, make_segment(data), want_lse=True)
    assert out.shape == (0, 4, 32)
    assert lse is not None
    assert lse.shape == (0, 4)


def test_sequences_without_rows_or_keys_do_not_disturb_others() -> None:
    lone = make_data(Case(plain(), (Span(3, 30),), seed=11))
    want, _ = attend(lone, make_segment(lone))
    data = make_data(Case(plain(), (Span(0, 12), Span(3, 30), Span(0, 0)), seed=11))
    data = evolve(data, q=lone.q, k=[data.k[0], lone.k[0], data.k[2]], v=[data.v[0], lone.v[0], data.v[2]])
    got, _ = attend(data, make_segment(data))
    assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("name", EVERYTHING)
def test_a_row_hardly_depends_on_its_company(name: str, dtype: str) -> None:
    case = Case(plain(**EVERYTHING[name]), CHAINS, dtype=dtype, seed=12)
    data = make_data(case)
    together, _ = attend(data, make_segment(data))
    row = 0
    for b, span in enumerate(case.spans):
        alone = evolve(data, case=evolve(case, spans=(span,)), q=data.q[row : row + span.rows])
        alone = evolve(alone, k=[data.k[b]], v=[data.v[b]], positions=[data.positions[b]])
        assert_close(attend(alone, make_segment(alone))[0], together[row : row + span.rows], dtype, f"sequence {b}")
        row += span.rows


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_inputs_give_the_same_bits(dtype: str) -> None:
    data = make_data(Case(plain(**EVERYTHING["all"]), MIXED, dtype=dtype, seed=13))
    segment = make_segment(data)
    first, _ = attend(data, segment)
    assert all(torch.equal(first, attend(data, segment)[0]) for _ in range(3))


def test_host_lengths_may_be_upper_bounds() -> None:
    data = make_data(Case(plain(), MIXED, seed=14))
    exact, _ = attend(data, make_segment(data))
    assert torch.equal(exact, attend(data, make_segment(data, exact=False))[0])


@pytest.mark.parametrize("codec", ["dense", "int8"])
def test_inputs_are_not_modified(codec: str) -> None:
    data = make_data(Case(plain(**EVERYTHING["all"]), MIXED, dtype="bfloat16", codec=codec, seed=15))
    segment = make_segment(data)
    batch = segment.batch
    tensors = [data.q, segment.buffer, batch.device_kv_lens, batch.tables, batch.positions, batch.slots, batch.tree]
    arrays = [batch.q_indptr, batch.kv_start, batch.kv_lens]
    before = [t.clone() for t in tensors if t is not None], [a.copy() for a in arrays]
    attend(data, segment, want_lse=True)
    assert all(torch.equal(t, b) for t, b in zip((t for t in tensors if t is not None), before[0], strict=True))
    assert all((a == b).all() for a, b in zip(arrays, before[1], strict=True))


@pytest.mark.parametrize("name", EVERYTHING)
def test_strided_tensors_work_and_memory_around_the_output_stays(name: str) -> None:
    data = make_data(Case(plain(**EVERYTHING[name]), MIXED, dtype="float32", seed=16))
    segment, p = make_segment(data), data.case.params
    want, want_lse = attend(data, segment, want_lse=True)
    assert want_lse is not None
    q = torch.full((data.rows, p.q_heads + 2, 2 * p.head_k), NAN)[:, 1:-1, 5 : 5 + p.head_k]
    q.copy_(data.q)
    room = torch.full((data.rows + 3, p.q_heads + 2, p.head_v + 4), 7.0)
    out = room[1 : data.rows + 1, 1:-1, 2:-2]
    lse_room = torch.full((data.rows + 3, p.q_heads), 7.0)
    make_kernel().run(0, q, segment.pages, make_plan(segment, p), out, lse_room[1 : data.rows + 1])
    assert_close(out, want, "float32")
    assert_close(lse_room[1 : data.rows + 1], want_lse, "float32")
    out.fill_(7.0)
    lse_room[1 : data.rows + 1] = 7.0
    assert bool((room == 7).all())
    assert bool((lse_room == 7).all())


@pytest.mark.parametrize("codec", ["dense", "int8"])
def test_more_than_two_to_the_31_tokens_are_addressed(codec: str, tmp_path: Path) -> None:
    params, size = plain(1, 1, 1), 4096
    format = format_of(codec_named(codec), LayerSpec(0, params, "bfloat16"), size)
    count = 2**31 // size + 20
    pages = sparse_pages(format, count, tmp_path)
    data = make_data(Case(params, (Span(1, 5000), Span(4, 130)), size, "bfloat16", codec, seed=17))
    small = make_segment(data)
    want, _ = attend(data, small)
    tables = torch.where(small.batch.tables >= 0, count - 1 - small.batch.tables, -1)
    for low, high in zip(small.batch.tables.flatten().tolist(), tables.flatten().tolist(), strict=True):
        if low >= 0:
            for name, plane in pages.planes.items():
                plane[high] = small.pages.planes[name][low]
    large = evolve(small, batch=evolve(small.batch, tables=tables), pages=pages)
    assert torch.equal(attend(data, large)[0], want)


@pytest.mark.parametrize("stored_as", ["float64", "float32", "bfloat16", "float16"])
def test_pages_in_another_float_dtype_are_read(stored_as: str) -> None:
    data = make_data(Case(plain(), MIXED, dtype="bfloat16", seed=18))
    cast = evolve(data, case=evolve(data.case, dtype=stored_as))
    segment = make_segment(cast)
    want, _ = oracle(data, *stored(cast, segment))
    assert_close(attend(data, segment)[0], want, "bfloat16")


def test_formats_are_judged_by_their_planes() -> None:
    def verdict(
        planes: list[tuple[str, str, tuple[int, ...]]], params: AttnParams | None = None, dtype: str = "float32"
    ) -> Accepts | Unsupported:
        spec = LayerSpec(0, params or plain(4, 2, 32, 48), dtype)
        return make_kernel().accepts(spec, KVFormat.pack("anything", 16, planes))

    k, v = ("k", "bfloat16", (16, 2, 32)), ("v", "bfloat16", (16, 2, 48))
    k8, v8 = ("k", "int8", (16, 2, 32)), ("v", "int8", (16, 2, 48))
    scales = [("k_scale", "float32", (16, 2)), ("v_scale", "float32", (16, 2))]
    assert isinstance(verdict([k, v]), Accepts)
    assert isinstance(verdict([v, k]), Accepts)
    assert isinstance(verdict([k8, v8, *scales]), Accepts)
    wrong: tuple[list[tuple[str, str, tuple[int, ...]]], ...] = (
        [k],
        [k, v, ("k_zero", "float32", (16, 2))],
        [k, v, *scales],
        [k8, v8],
        [k8, v, *scales],
        [k, ("v", "bfloat16", (16, 2, 32))],
        [("k", "bfloat16", (2, 16, 32)), v],
        [("k", "float8_e4m3fn", (16, 2, 32)), v],
        [k8, v8, ("k_scale", "float32", (16, 2, 1)), scales[1]],
        [k8, v8, ("k_scale", "int32", (16, 2)), scales[1]],
        [],
    )
    for planes in wrong:
        answer = verdict(planes)
        assert isinstance(answer, Unsupported), planes
        assert answer.reason
    for params in (
        plain(5, 2, 32, 48),
        plain(4, 2, 32, 48, window=0),
        plain(4, 2, 32, 48, sinks=(1.0,)),
        plain(4, 2, 32, 48, alibi=(1.0, 2.0)),
    ):
        assert isinstance(verdict([k, v], params), Unsupported)
    assert isinstance(verdict([k, v], dtype="int8"), Unsupported)


def test_capabilities_name_every_feature_and_promise_nothing_untested() -> None:
    assert CAPABILITIES.features == {"window", "soft_cap", "sinks", "alibi", "non_causal", "tree", "segments"}
    assert CAPABILITIES.phases == {"decode", "verify", "prefill"}
    assert CAPABILITIES.mixed
    promises = ("reads_tail", "writes", "needs_exact_lens", "batch_invariant", "applies_transforms")
    assert not any(getattr(CAPABILITIES, name) for name in promises)
    assert CAPABILITIES.graph == "none"
    assert [(offer.kind, offer.name) for offer in tokloom_attention()] == [("attention", "torch")]


def test_a_recording_is_refused() -> None:
    data = make_data(Case(plain(), (Span(1, 4),)))
    with pytest.raises(PluginFault, match=r"attention\.torch"):
        make_kernel().plan(make_segment(data).batch, data.case.params, Heap(), capture=True, reuse=None)


def test_the_entry_point_module_imports_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None\nimport tokloom.plugins.attention.torch as t; t.tokloom_attention()"
    subprocess.run([sys.executable, "-c", code], check=True)
