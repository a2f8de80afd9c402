"""NaiveAttention: gathers a sequence's pages and attends, sequence by sequence."""

import torch
from torch import Tensor

from tokloom.sdk import (
    Accepts,
    AttnBatch,
    AttnParams,
    AttnPlan,
    KVFormat,
    LayerSpec,
    Pages,
    Unsupported,
    Workspace,
)


class NaivePlan(AttnPlan):
    """What `run` needs: per sequence its rows, its pages, and which keys each row sees."""

    __slots__ = ("params", "sequences")

    def __init__(self, params: AttnParams, sequences: list[tuple[slice, Tensor, Tensor]]) -> None:
        self.params = params
        self.sequences = sequences


class NaiveAttention:
    """Implements `tokloom.sdk.AttentionKernel` for float planes k and v, causal, with or without a window."""

    def accepts(self, spec: LayerSpec, format: KVFormat) -> Accepts | Unsupported:
        if {plane.name for plane in format.planes} != {"k", "v"}:
            return Unsupported("only formats with planes k and v alone")
        if any(plane.dtype not in ("float64", "float32", "bfloat16", "float16") for plane in format.planes):
            return Unsupported("only float planes")
        return Accepts()

    def plan(
        self, batch: AttnBatch, params: AttnParams, workspace: Workspace, *, capture: bool, reuse: AttnPlan | None
    ) -> NaivePlan:
        sequences = []
        for b in range(batch.size):
            rows = slice(int(batch.q_indptr[b]), int(batch.q_indptr[b + 1]))
            keys = torch.arange(int(batch.kv_lens[b]))
            distance = batch.positions[rows, None] - keys
            seen = distance >= 0
            if params.window is not None:
                seen &= distance < params.window
            sequences.append((rows, batch.tables[b], seen))
        return NaivePlan(params, sequences)

    def run(self, layer: int, q: Tensor, pages: Pages, plan: AttnPlan, out: Tensor, lse: Tensor | None) -> None:
        assert isinstance(plan, NaivePlan)
        params = plan.params
        group = params.q_heads // params.kv_heads
        wide = torch.promote_types(q.dtype, torch.float32)
        for rows, table, seen in plan.sequences:
            count = seen.shape[1]
            used = table[: -(-count // pages.format.page_tokens)].clamp_min(0).long()
            k, v = (_rows(pages.planes[name][used], count, group, wide) for name in ("k", "v"))
            # slots that no row sees may hold anything: 0 times NaN is NaN
            blank = ~seen.any(0)
            k, v = k.masked_fill(blank[:, None, None], 0), v.masked_fill(blank[:, None, None], 0)
            scores = torch.einsum("ihd,jhd->hij", q[rows].to(wide), k) * params.scale
            weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
            out[rows] = torch.einsum("hij,jhd->ihd", weights, v).to(out.dtype)


def _rows(pages: Tensor, count: int, group: int, dtype: torch.dtype) -> Tensor:
    """`[pages, page, kv_heads, size]` -> the first `count` rows, repeated for the query heads of each group."""
    return pages.flatten(0, 1)[:count].to(dtype).repeat_interleave(group, 1)
