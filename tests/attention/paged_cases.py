"""Batches over poisoned pages, built from a description of spans, and attention from its definition in float64."""

import math
import random
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from attrs import evolve, field, frozen
from poisoned_pages import NAN, codec_named, format_of, make_pages
from torch import Tensor

from tokloom.plugins.attention.torch import OFFER
from tokloom.sdk import (
    AttentionKernel,
    AttnBatch,
    AttnParams,
    AttnPlan,
    Context,
    LayerSpec,
    NoOptions,
    Pages,
)

#: absolute and relative tolerance by dtype of q
TOLERANCE = {"float64": (1e-11, 1e-10), "float32": (1e-5, 1e-5), "bfloat16": (1.5e-2, 1e-2), "float16": (2e-3, 2e-3)}


class Heap:
    """A workspace that hands out fresh poisoned memory."""

    def take(self, nbytes: int) -> Tensor:
        return torch.full((nbytes,), 255, dtype=torch.uint8)


def make_kernel() -> AttentionKernel:
    return OFFER.factory(NoOptions(), cast(Context, None))


@frozen
class Span:
    """`rows` query rows at the end of `keys` keys. `parents`: their draft tree (topological, -1 = a root)."""

    rows: int
    keys: int
    parents: tuple[int, ...] = ()


@frozen
class Case:
    params: AttnParams
    spans: tuple[Span, ...]
    page_tokens: int = 16
    dtype: str = "float64"
    codec: str = "dense"
    num_decode: int = 0
    num_verify: int = 0
    seed: int = 0
    #: forces a tree mask over so many rows even without parents (chains inside)
    tree_rows: int = 0


@frozen
class Data:
    """A case's tensors: q `[T, q_heads, head_k]`, and per sequence k, v `[keys, kv_heads, head]` and row positions."""

    case: Case
    q: Tensor = field(eq=False)
    k: list[Tensor] = field(eq=False)
    v: list[Tensor] = field(eq=False)
    positions: list[list[int]] = field(eq=False)
    tree: Tensor | None = field(eq=False)

    @property
    def rows(self) -> int:
        return sum(s.rows for s in self.case.spans)


@frozen
class Segment:
    """One pool of a case, filled: keys `[starts[b], ends[b])` of each sequence."""

    batch: AttnBatch
    pages: Pages
    buffer: Tensor = field(eq=False)


def depth_of(parents: Sequence[int], i: int) -> int:
    return 0 if parents[i] < 0 else 1 + depth_of(parents, parents[i])


def make_data(case: Case) -> Data:
    generator = torch.Generator().manual_seed(case.seed)
    p, dtype = case.params, getattr(torch, case.dtype)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)

    rows = sum(s.rows for s in case.spans)
    span_size = max([case.tree_rows, *(len(s.parents) for s in case.spans)])
    tree = torch.rand(len(case.spans), span_size, span_size, generator=generator) < 0.5 if span_size else None
    positions = []
    for b, span in enumerate(case.spans):
        first = span.keys - span.rows
        if span.parents:
            assert len(span.parents) == span.rows
            positions.append([first + depth_of(span.parents, i) for i in range(span.rows)])
        else:
            positions.append(list(range(first, span.keys)))
        if tree is not None:
            covered = min(span.rows, span_size)
            parents = span.parents or tuple(range(-1, span.rows - 1))
            for i in range(covered):
                for j in range(covered):
                    a, c = span.rows - covered + i, span.rows - covered + j
                    while a > c:
                        a = parents[a]
                    tree[b, span_size - covered + i, span_size - covered + j] = a == c
    k = [noise(s.keys, p.kv_heads, p.head_k) for s in case.spans]
    v = [noise(s.keys, p.kv_heads, p.head_v) for s in case.spans]
    return Data(case, noise(rows, p.q_heads, p.head_k), k, v, positions, tree)


def sees(data: Data, b: int, row: int, key: int) -> bool:
    """The definition: does row `row` of sequence `b` see key slot `key` (both counted in the sequence)?"""
    p, span = data.case.params, data.case.spans[b]
    distance = data.positions[b][row] - key_position(data, b, key)
    if p.window is not None and not 0 <= distance < p.window:
        return False
    if data.tree is not None:
        size = data.tree.shape[1]
        i, j = row - span.rows + size, key - span.keys + size
        covered = min(size, span.rows)
        if i >= size - covered and j >= size - covered:
            return bool(data.tree[b, i, j])
    return distance >= 0 if p.causal else True


def key_position(data: Data, b: int, key: int) -> int:
    span = data.case.spans[b]
    if data.tree is not None and key >= span.keys - min(data.tree.shape[1], span.rows):
        return data.positions[b][key - span.keys + span.rows]
    return key


def make_segment(
    data: Data,
    starts: Sequence[int] | None = None,
    ends: Sequence[int] | None = None,
    *,
    last: bool = True,
    sinks_here: bool = True,
    poison: float = NAN,
    page_seed: int = 0,
    drop_slid: bool = True,
    exact: bool = True,
) -> Segment:
    """Store keys `[starts, ends)` of every sequence on shuffled pages of a poisoned pool and describe them.

    Page entries that no row can see any more are -1, as after sliding; table rows are longer than needed.
    """
    case, p, size = data.case, data.case.params, data.case.page_tokens
    starts = starts or [0] * len(case.spans)
    ends = ends or [s.keys for s in case.spans]
    counts = [-(-(end - start) // size) for start, end in zip(starts, ends, strict=True)]
    width = max([0, *counts]) + 2
    codec = codec_named(case.codec)
    format = format_of(codec, LayerSpec(0, p, case.dtype), size)
    pool = list(range(sum(counts) + 5))
    pages, buffer = make_pages(format, len(pool), case.seed + 1, poison)
    random.Random(page_seed).shuffle(pool)
    tables = np.full((len(case.spans), width), -1, dtype=np.int32)
    slots_of_rows = []
    for b, span in enumerate(case.spans):
        own = [pool.pop() for _ in range(counts[b])]
        start, end = starts[b], ends[b]
        slots = torch.tensor([own[i // size] * size + i % size for i in range(end - start)], dtype=torch.int64)
        codec.append(0, data.k[b][start:end], data.v[b][start:end], pages, slots)
        tables[b, : len(own)] = own
        if p.window is not None and drop_slid and span.rows:
            dead = min(data.positions[b]) - p.window + 1 - start  # slots below are out of sight
            tables[b, : max(0, min(dead // size, len(own)))] = -1
        rows = torch.full((span.rows,), -1, dtype=torch.int64)
        for r in range(span.rows):
            key = span.keys - span.rows + r
            if start <= key < end:
                rows[r] = slots[key - start]
        slots_of_rows.append(rows)
    lens = np.array([e - s for s, e in zip(starts, ends, strict=True)], dtype=np.int32)
    batch = AttnBatch(
        group=0,
        pool="main",
        q_indptr=np.cumsum([0, *(s.rows for s in case.spans)]).astype(np.int32),
        kv_start=np.array(starts, dtype=np.int32),
        kv_lens=lens if exact else lens + 3,
        device_kv_lens=torch.from_numpy(lens),
        tables=torch.from_numpy(tables),
        positions=torch.tensor([x for xs in data.positions for x in xs], dtype=torch.int64),
        slots=torch.cat([torch.empty(0, dtype=torch.int64), *slots_of_rows]),
        tree=data.tree if last else None,
        num_decode=case.num_decode,
        num_verify=case.num_verify,
        host_exact=exact,
        sinks_here=sinks_here,
    )
    return Segment(batch, pages, buffer)


def make_plan(segment: Segment, params: AttnParams) -> AttnPlan:
    return make_kernel().plan(segment.batch, params, Heap(), capture=False, reuse=None)


def attend(
    data: Data, segment: Segment, *, want_lse: bool = False, kernel: AttentionKernel | None = None
) -> tuple[Tensor, Tensor | None]:
    """Run a kernel (`torch` if none is given) once into poisoned outputs."""
    kernel = kernel or make_kernel()
    p = data.case.params
    out = torch.full((data.rows, p.q_heads, p.head_v), NAN, dtype=data.q.dtype)
    lse = torch.full((data.rows, p.q_heads), NAN) if want_lse else None
    plan = kernel.plan(segment.batch, p, Heap(), capture=False, reuse=None)
    kernel.run(0, data.q, segment.pages, plan, out, lse)
    return out, lse


def stored(data: Data, segment: Segment) -> tuple[list[Tensor], list[Tensor]]:
    """What the pages hold of each sequence, through the codec's own reader, in float64."""
    codec, size = codec_named(data.case.codec), data.case.page_tokens
    keys, values = [], []
    for b, span in enumerate(data.case.spans):
        table = segment.batch.tables[b].long().clamp(min=0)
        k, v = codec.read(0, segment.pages, table)
        count = min(span.keys, len(table) * size)
        keys.append(k.flatten(0, 1)[:count].double())
        values.append(v.flatten(0, 1)[:count].double())
    return keys, values


def oracle(data: Data, keys: Sequence[Tensor], values: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Attention by the definition, row by row over the keys it sees, in float64: out and natural log-sum-exp."""
    p, fold = data.case.params, data.case.params.q_heads // data.case.params.kv_heads
    out = torch.zeros(data.rows, p.q_heads, p.head_v, dtype=torch.float64)
    lse = torch.full((data.rows, p.q_heads), -math.inf, dtype=torch.float64)
    slopes = torch.tensor(p.alibi or [0.0] * p.q_heads, dtype=torch.float64)[:, None]
    row = 0
    for b, span in enumerate(data.case.spans):
        for r in range(span.rows):
            seen = [j for j in range(span.keys) if sees(data, b, r, j)]
            if seen:
                k = keys[b][seen].repeat_interleave(fold, dim=1)  # [seen, q_heads, head_k]
                v = values[b][seen].repeat_interleave(fold, dim=1)
                scores = torch.einsum("hd,jhd->hj", data.q[row].double(), k) * p.scale
                if p.soft_cap is not None:
                    scores = p.soft_cap * torch.tanh(scores / p.soft_cap)
                away = torch.tensor([data.positions[b][r] - key_position(data, b, j) for j in seen])
                scores = scores - slopes * away
                top = scores.amax(1, keepdim=True)
                weights = torch.exp(scores - top)
                total = weights.sum(1, keepdim=True)
                if p.sinks:
                    total = total + torch.exp(torch.tensor(p.sinks, dtype=torch.float64)[:, None] - top)
                out[row] = torch.einsum("hj,jhd->hd", weights / total, v)
                lse[row] = (top + torch.log(total)).squeeze(1)
            row += 1
    return out, lse


def assert_close(got: Tensor, want: Tensor, dtype: str, why: str = "") -> None:
    atol, rtol = TOLERANCE[dtype]
    torch.testing.assert_close(got.double(), want.double(), atol=atol, rtol=rtol, msg=lambda m: f"{why}\n{m}")


def check(case: Case, kernel: AttentionKernel | None = None) -> None:
    """A kernel agrees with the definition, with and without asking for log-sum-exp."""
    data = make_data(case)
    segment = make_segment(data)
    want, want_lse = oracle(data, *stored(data, segment))
    out, _ = attend(data, segment, kernel=kernel)
    assert_close(out, want, case.dtype, f"out of {case}")
    out, lse = attend(data, segment, want_lse=True, kernel=kernel)
    assert lse is not None
    assert_close(out, want, case.dtype, f"out beside lse of {case}")
    assert_close(lse, want_lse, "float32" if case.dtype in ("float32", "float64") else case.dtype, f"lse of {case}")


def plain(q_heads: int = 4, kv_heads: int = 2, head: int = 32, head_v: int = 0, **changes: object) -> AttnParams:
    params = AttnParams(q_heads, kv_heads, head, head_v or head, head**-0.5)
    return evolve(params, **changes)  # type: ignore[arg-type]
