"""What these tests share: contexts, poisoned pages, attention by its definition, and a run of the real engine."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor

from tokloom.conformance.doubles import offers
from tokloom.conformance.doubles.oracle import SHAPES
from tokloom.conformance.doubles.tagged import TaggedModel
from tokloom.core.composition import Composition
from tokloom.core.context import EngineContext
from tokloom.core.engine import EngineCore
from tokloom.sdk import (
    AttnBatch,
    AttnParams,
    DeviceInfo,
    GrammarSpec,
    KVFormat,
    KVLayout,
    Limits,
    ModelSpec,
    Pages,
    Request,
    SamplingParams,
    Scope,
    TokenSegment,
)

NAN = float("nan")
LIMITS = Limits(max_batch_tokens=32, max_sequences=4, max_model_tokens=120, max_draft_tokens=4, page_tokens=4)
DEVICE = DeviceInfo(type="cpu", name="cpu", threads=1, memory_bytes=1 << 30)


def context(model: ModelSpec | str = "tagged", layout: KVLayout | None = None) -> EngineContext:
    """A context as a factory gets it."""
    spec = TaggedModel(model, SHAPES[model]).spec if isinstance(model, str) else model
    made = EngineContext(device=DEVICE, dtype="float64", limits=LIMITS, model=spec)
    if layout is not None:
        made.bind_layout(layout)
    return made


def build(kind: str, name: str, model: str = "tagged", layout: KVLayout | None = None, **options: Any) -> Any:
    """The double `KIND.NAME`, made as the composer makes it."""
    (offer,) = [offer for offer in offers() if (offer.kind, offer.name) == (kind, name)]
    return offer.factory(offer.config(**options), context(model, layout))


def parity(count: str) -> GrammarSpec:
    """That tokens alternate between even and odd, `count` of them."""
    return GrammarSpec("x-tokloom.parity", count)


def poisoned(format: KVFormat, count: int) -> Pages:
    """A pool of pages in which nobody wrote anything."""
    return Pages(
        format,
        {p.name: torch.full((count, *p.shape), NAN, dtype=getattr(torch, p.dtype)) for p in format.planes},
    )


class Heap:
    """Fresh memory for every take."""

    def take(self, nbytes: int) -> Tensor:
        return torch.full((nbytes,), 255, dtype=torch.uint8)


@frozen
class Rows:
    """Query rows of one sequence: positions, and which of the `keys` each row sees, by definition."""

    positions: tuple[int, ...]
    key_positions: tuple[int, ...]
    tree: tuple[tuple[bool, ...], ...] = ()

    def sees(self, params: AttnParams, row: int, key: int) -> bool:
        distance = self.positions[row] - self.key_positions[key]
        if params.window is not None and not 0 <= distance < params.window:
            return False
        before = len(self.key_positions) - len(self.positions)
        if self.tree and key >= before:
            return self.tree[row][key - before]
        return distance >= 0 or not params.causal


def chain_rows(count: int, keys: int) -> Rows:
    """The last `count` of `keys` positions."""
    return Rows(tuple(range(keys - count, keys)), tuple(range(keys)))


def tree_rows(parents: Sequence[int], before: int) -> Rows:
    """A root row after `before` keys, and drafts below it; `parents` counts drafts, -1 is the root."""
    ancestors: list[set[int]] = [{0}]
    for node, parent in enumerate(parents, 1):
        ancestors.append(ancestors[parent + 1] | {node})
    positions = tuple(before + len(own) - 1 for own in ancestors)
    mask = tuple(tuple(j in own for j in range(len(ancestors))) for own in ancestors)
    return Rows(positions, (*range(before), *positions), mask)


@frozen
class Problem:
    """Attention over several sequences: q `[T, Hq, Dk]`, k and v per sequence `[keys, Hk, D]`."""

    params: AttnParams
    rows: tuple[Rows, ...]
    q: Tensor = field(eq=False)
    k: tuple[Tensor, ...] = field(eq=False)
    v: tuple[Tensor, ...] = field(eq=False)

    @property
    def total(self) -> int:
        return sum(len(rows.positions) for rows in self.rows)


def problem(params: AttnParams, rows: Sequence[Rows], seed: int) -> Problem:
    """Random numbers; the first component of every key is its position + 1."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    total = sum(len(own.positions) for own in rows)
    keys = []
    for own in rows:
        k = noise(len(own.key_positions), params.kv_heads, params.head_k)
        k[:, :, 0] = torch.tensor(own.key_positions, dtype=torch.float64)[:, None] + 1
        keys.append(k)
    values = [noise(len(own.key_positions), params.kv_heads, params.head_v) for own in rows]
    return Problem(params, tuple(rows), noise(total, params.q_heads, params.head_k), tuple(keys), tuple(values))


def by_definition(case: Problem) -> tuple[Tensor, Tensor]:
    """out and lse with whole matrices, masks and torch.softmax."""
    params, outs, lses, first = case.params, [], [], 0
    fold = params.q_heads // params.kv_heads
    slopes = torch.tensor(params.alibi or [0.0] * params.q_heads, dtype=torch.float64)[:, None, None]
    for own, k, v in zip(case.rows, case.k, case.v, strict=True):
        count, keys = len(own.positions), len(own.key_positions)
        q = case.q[first : first + count].transpose(0, 1)
        scores = q @ k.repeat_interleave(fold, 1).permute(1, 2, 0) * params.scale
        if params.soft_cap is not None:
            scores = params.soft_cap * torch.tanh(scores / params.soft_cap)
        away = torch.tensor(own.positions)[:, None] - torch.tensor(own.key_positions)[None, :]
        scores = scores - slopes * away
        seen = torch.tensor([[own.sees(params, i, j) for j in range(keys)] for i in range(count)])
        scores = scores.masked_fill(~seen, -math.inf)
        if params.sinks:
            sink = torch.tensor(params.sinks, dtype=torch.float64)[:, None, None].expand(-1, count, 1)
            scores = torch.cat([scores, sink], 2)
        weights = torch.softmax(scores, 2).nan_to_num(0.0)[:, :, :keys]
        outs.append((weights @ v.repeat_interleave(fold, 1).transpose(0, 1)).transpose(0, 1))
        lses.append(torch.logsumexp(scores, 2).transpose(0, 1))
        first += count
    return torch.cat(outs), torch.cat(lses)


@frozen
class Paged:
    """A problem's keys `[starts[b], stops[b])` on shuffled pages of a poisoned pool."""

    batch: AttnBatch
    pages: Pages


def paged(
    case: Problem,
    codec: Any,
    format: KVFormat,
    *,
    starts: Sequence[int] | None = None,
    stops: Sequence[int] | None = None,
    last: bool = True,
    store: Callable[[Pages, Tensor, Tensor, Tensor], None] | None = None,
) -> Paged:
    """Write the keys with `store(pages, k, v, slots)`, the codec's append unless given, and describe the segment."""
    page = format.page_tokens
    starts = starts or [0] * len(case.rows)
    stops = stops or [len(own.key_positions) for own in case.rows]
    widths = [-(-max(0, stop - start) // page) for start, stop in zip(starts, stops, strict=True)]
    order = torch.randperm(sum(widths) + 3, generator=torch.Generator().manual_seed(3)).tolist()
    pages = poisoned(format, len(order))
    tables = np.full((len(case.rows), max(widths) + 1), -1, dtype=np.int32)
    for b, (start, stop, width) in enumerate(zip(starts, stops, widths, strict=True)):
        own = [order.pop() for _ in range(width)]
        tables[b, :width] = own
        slots = torch.tensor([own[i // page] * page + i % page for i in range(max(0, stop - start))]).long()
        (store or (lambda p, k, v, s: codec.append(0, k, v, p, s)))(
            pages, case.k[b][start:stop], case.v[b][start:stop], slots
        )
    lens = np.array([max(0, e - s) for s, e in zip(starts, stops, strict=True)], dtype=np.int32)
    counts = [len(own.positions) for own in case.rows]
    widest = max(counts)
    tree = None
    if last and any(own.tree for own in case.rows):
        tree = torch.zeros(len(counts), widest, widest, dtype=torch.bool)
        for b, rows in enumerate(case.rows):
            n = counts[b]
            whole = torch.ones(n, n).bool()
            mask = torch.tensor(rows.tree) if rows.tree else whole.tril() if case.params.causal else whole
            tree[b, widest - n :, widest - n :] = mask
    batch = AttnBatch(
        group=0,
        pool="main",
        q_indptr=np.cumsum([0, *counts]).astype(np.int32),
        kv_start=np.array(starts, dtype=np.int32),
        kv_lens=lens,
        device_kv_lens=torch.from_numpy(lens),
        tables=torch.from_numpy(tables),
        positions=torch.tensor([p for own in case.rows for p in own.positions]),
        slots=torch.full((case.total,), -1),
        tree=tree,
        sinks_here=last,
    )
    return Paged(batch, pages)


def attend(kernel: Any, case: Problem, where: Paged) -> tuple[Tensor, Tensor]:
    """Run the kernel into poisoned outputs."""
    params = case.params
    out = torch.full((case.total, params.q_heads, params.head_v), NAN, dtype=torch.float64)
    lse = torch.full((case.total, params.q_heads), NAN, dtype=torch.float64)
    plan = kernel.plan(where.batch, params, Heap(), capture=False, reuse=None)
    kernel.run(0, case.q, where.pages, plan, out, lse)
    return out, lse


# -- the engine -------------------------------------------------------------------------------------------------------


def request(
    name: str, prompt: Sequence[int], count: int = 8, *, salt: str = "", tenant: str = "", **sampling: Any
) -> Request:
    """Greedy unless a temperature is given."""
    return Request(
        request_id=name,
        segments=(TokenSegment(prompt),),
        sampling=SamplingParams(**{"temperature": 0.0, "max_tokens": count, **sampling}),
        scope=Scope(salt=salt),
        tenant=tenant,
    )


class Engine:
    """A real engine over poisoned memory; `said` has all tokens of each (request, child), `ended` the reasons."""

    def __init__(self, composition: Composition) -> None:
        self.composition = composition
        self.core = EngineCore(composition, poison_pools=True)
        self.said: dict[tuple[str, int], list[int]] = {}
        self.ended: dict[tuple[str, int], str] = {}
        self.errors: dict[tuple[str, int], BaseException | None] = {}

    def step(self) -> None:
        for event in self.core.step():
            key = (event.request_id, event.child)
            self.said.setdefault(key, []).extend(event.tokens)
            if event.finish_reason is not None:
                self.ended[key] = event.finish_reason
                self.errors[key] = event.error
        self.core.state.allocator.audit()

    def run(self, *requests: Request, limit: int = 3000) -> Mapping[tuple[str, int], list[int]]:
        """Add requests, run until nothing is left; then nothing may be held."""
        for item in requests:
            self.core.add(item)
        for _ in range(limit):
            if not self.core.busy:
                break
            self.step()
        assert not self.core.busy, f"still busy after {limit} steps"
        stats = self.core.state.allocator.stats()
        assert (stats.held_pages, stats.fenced_pages) == (0, 0), stats
        return self.said

    def plugin(self, kind: str) -> Any:
        """The plugin behind a kind."""
        part = getattr(self.composition, kind)
        return part[0].plugin if isinstance(part, tuple) else part.plugin

    @property
    def faults(self) -> dict[str, str]:
        return self.core.state.faults.last


def folder() -> Path:
    """The folder of the doubles."""
    import tokloom.conformance.doubles as doubles

    return Path(doubles.__file__).parent
