"""The kernel `cpu`, compiled and in torch operators, against the definition, and what it promises besides."""

from typing import Any, cast

import pytest
import torch
from attrs import evolve
from paged_cases import Case, Span, assert_close, attend, check, make_data, make_segment, oracle, plain, stored
from poisoned_pages import NAN
from test_grid import GRID, case_of, pairwise

from tokloom.plugins.attention.cpu import CAPABILITIES, make
from tokloom.plugins.attention.cpu.kernel import SPLIT, CpuAttention, CpuPlan, _decode
from tokloom.sdk import AttentionKernel, CompositionError, Context, DeviceInfo, NoOptions, PluginFault

needs_compiled = pytest.mark.skipif(_decode is None, reason="the extension module was not compiled: no C compiler")
KERNELS = {"compiled": CpuAttention(2), "one_thread": CpuAttention(1), "operators": CpuAttention(2, compiled=False)}
each_kernel = pytest.mark.parametrize(
    "kernel",
    [pytest.param(k, id=name, marks=() if name == "operators" else needs_compiled) for name, k in KERNELS.items()],
)
CHOICES = pairwise(GRID, 3, {"mask": "chain", "alibi": False})
for fast in ({"dtype": "float32", "codec": "dense"}, {"dtype": "bfloat16", "codec": "int8", "soft_cap": None}):
    CHOICES += pairwise(GRID, 4, {"mask": "chain", "alibi": False, "size": (64, 64), **fast})
SPANS = (Span(1, 130), Span(1, 16), Span(5, 40), Span(1, 1), Span(1, 1300), Span(3, 600))


@each_kernel
@pytest.mark.parametrize("seed", range(len(CHOICES)), ids=lambda s: "-".join(str(v) for v in CHOICES[s].values()))
def test_attention_matches_its_definition(seed: int, kernel: AttentionKernel) -> None:
    print("seed", seed, CHOICES[seed])
    check(case_of(CHOICES[seed], seed), kernel)


@each_kernel
@pytest.mark.parametrize("changes", [{}, {"window": 700}, {"soft_cap": 2.0}, {"sinks": (0.5, -1.0, 2.0, 1.0)}], ids=str)
def test_long_rows_are_merged_from_runs(kernel: AttentionKernel, changes: dict[str, Any]) -> None:
    spans = tuple(Span(1, n) for n in (SPLIT - 1, SPLIT, SPLIT + 1, 3 * SPLIT + 5, 2))
    check(Case(plain(head=64, **changes), spans, 16, "float32", seed=5), kernel)


@each_kernel
@pytest.mark.parametrize("poison", [NAN, float("inf"), 3e38], ids=str)
def test_nothing_outside_the_keys_is_ever_seen(kernel: AttentionKernel, poison: float) -> None:
    for page_tokens in (1, 16, 64):
        data = make_data(Case(plain(window=37), SPANS, page_tokens, "float32", seed=2))
        clean = attend(data, make_segment(data, poison=0.0), want_lse=True, kernel=kernel)
        dirty = attend(data, make_segment(data, poison=poison), want_lse=True, kernel=kernel)
        for a, b in zip(clean, dirty, strict=True):
            assert torch.equal(cast(torch.Tensor, a), cast(torch.Tensor, b))


@needs_compiled
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_bit_depends_on_company_pages_or_threads(dtype: str) -> None:
    case = Case(plain(head=64), SPANS, dtype=dtype, seed=12)
    data = make_data(case)
    together, _ = attend(data, make_segment(data), kernel=KERNELS["compiled"])
    assert torch.equal(together, attend(data, make_segment(data, page_seed=5), kernel=KERNELS["one_thread"])[0])
    row = 0
    for b, span in enumerate(case.spans):
        alone = evolve(data, case=evolve(case, spans=(span,)), q=data.q[row : row + span.rows])
        alone = evolve(alone, k=[data.k[b]], v=[data.v[b]], positions=[data.positions[b]])
        got, _ = attend(alone, make_segment(alone), kernel=KERNELS["compiled"])
        assert torch.equal(got, together[row : row + span.rows])
        row += span.rows


@each_kernel
def test_a_key_that_is_not_a_number_is_not_hidden(kernel: AttentionKernel) -> None:
    """Sampling finds faulty models by NaN in the logits."""
    for keys in (1, 40):
        data = make_data(Case(plain(head=64), (Span(1, keys), Span(1, 20)), dtype="float32", seed=6))
        data.k[0][0] = NAN
        out, _ = attend(data, make_segment(data), kernel=kernel)
        assert bool(out[0].isnan().all())
        assert bool(out[1].isfinite().all())


@each_kernel
def test_a_row_without_visible_keys_gets_zero_and_minus_infinity(kernel: AttentionKernel) -> None:
    data = make_data(Case(plain(window=8), (Span(1, 64), Span(1, 3)), dtype="float32", seed=10))
    out, lse = attend(data, make_segment(data, [0, 0], [32, 0], last=False), want_lse=True, kernel=kernel)
    assert bool((out == 0).all())
    assert lse is not None
    assert bool((lse == -torch.inf).all())


@each_kernel
def test_an_output_with_gaps_is_filled_and_its_gaps_stay(kernel: AttentionKernel) -> None:
    data = make_data(Case(plain(head=64), SPANS, dtype="float32", seed=11))
    segment, p = make_segment(data), data.case.params
    room = torch.full((data.rows, p.q_heads, 2 * p.head_v), NAN)
    wide = torch.full((data.rows, 2 * p.q_heads, p.head_k), NAN)
    q = wide[:, : p.q_heads].copy_(data.q)
    plan = kernel.plan(segment.batch, p, _Memory(), capture=False, reuse=None)
    kernel.run(0, q, segment.pages, plan, room[..., : p.head_v], None)
    want, _ = oracle(data, *stored(data, segment))
    assert_close(room[..., : p.head_v], want, "float32")
    assert bool(room[..., p.head_v :].isnan().all())


def test_an_empty_batch_is_fine() -> None:
    for kernel in KERNELS.values():
        data = make_data(Case(plain(), (), dtype="float32"))
        out, _ = attend(data, make_segment(data), want_lse=True, kernel=kernel)
        assert out.shape == (0, 4, 32)


def test_what_it_cannot_do_is_refused() -> None:
    assert not {"tree", "alibi", "non_causal"} & CAPABILITIES.features
    data = make_data(Case(plain(), (Span(3, 9, (-1, 0, 0)),), dtype="float32"))
    segment = make_segment(data)
    for capture in (False, True):
        with pytest.raises(PluginFault, match="tree"):
            KERNELS["operators"].plan(segment.batch, data.case.params, _Memory(), capture=capture, reuse=None)
    with pytest.raises(PluginFault, match="plan"):
        KERNELS["operators"].run(0, data.q, segment.pages, object(), data.q, None)  # type: ignore[arg-type]


def test_another_device_is_refused() -> None:
    class Elsewhere:
        device = DeviceInfo(type="cuda", name="cuda:0", threads=1, memory_bytes=1)

    with pytest.raises(CompositionError, match="cuda:0"):
        make(NoOptions(), cast(Context, Elsewhere()))


class _Memory:
    def take(self, nbytes: int) -> torch.Tensor:
        return torch.full((nbytes,), 255, dtype=torch.uint8)


def test_plans_are_independent() -> None:
    data = make_data(Case(plain(head=64), SPANS, dtype="float32", seed=20))
    other = make_data(Case(plain(head=64), (Span(1, 700),), dtype="float32", seed=21))
    kernel, memory = KERNELS["compiled"], _Memory()
    segments = [make_segment(d) for d in (data, other)]
    plans = [
        kernel.plan(s.batch, d.case.params, memory, capture=False, reuse=None)
        for s, d in zip(segments, (data, other), strict=True)
    ]
    assert all(isinstance(plan, CpuPlan) for plan in plans)
    for d, s, plan in reversed(list(zip((data, other), segments, plans, strict=True))):
        out = torch.full((d.rows, 4, 64), NAN)
        kernel.run(0, d.q, s.pages, plan, out, None)
        assert_close(out, oracle(d, *stored(d, s))[0], "float32")
