"""Attention kernels straight from the definition: loops over rows and visible keys. Slow, simple, recordable."""

import math

import torch
from torch import Tensor

from tokloom.sdk import (
    Accepts,
    AttnBatch,
    AttnParams,
    AttnPlan,
    Context,
    KVFormat,
    LayerSpec,
    NoOptions,
    Pages,
    Unsupported,
    Workspace,
)


class TagPlan(AttnPlan):
    """The batch and parameters; re-planning updates it in place."""

    __slots__ = ("batch", "params")

    def __init__(self, batch: AttnBatch, params: AttnParams) -> None:
        self.batch = batch
        self.params = params


class TagKernel:
    """Implements `tokloom.sdk.AttentionKernel` for float planes k and v. Reading a NaN key is an error: visible keys
    were written, whatever else memory holds.
    """

    def __init__(self, options: NoOptions, context: Context) -> None:
        self.replans = 0

    def accepts(self, spec: LayerSpec, format: KVFormat) -> Accepts | Unsupported:
        names = {plane.name for plane in format.planes}
        return Accepts() if names == {"k", "v"} else Unsupported(f"planes {sorted(names)}")

    def plan(
        self, batch: AttnBatch, params: AttnParams, workspace: Workspace, *, capture: bool, reuse: AttnPlan | None
    ) -> AttnPlan:
        workspace.take(64)
        if isinstance(reuse, TagPlan):
            self.replans += 1
            reuse.batch = batch
            return reuse
        return TagPlan(batch, params)

    def run(self, layer: int, q: Tensor, pages: Pages, plan: AttnPlan, out: Tensor, lse: Tensor | None) -> None:
        assert isinstance(plan, TagPlan)
        batch, params = plan.batch, plan.params
        for b in range(batch.size):
            first, stop = int(batch.q_indptr[b]), int(batch.q_indptr[b + 1])
            for row in range(first, stop):
                self._row(b, row, stop, q, pages, batch, params, out, lse)

    def _row(
        self,
        b: int,
        row: int,
        stop: int,
        q: Tensor,
        pages: Pages,
        batch: AttnBatch,
        params: AttnParams,
        out: Tensor,
        lse: Tensor | None,
    ) -> None:
        page = pages.format.page_tokens
        length = int(batch.device_kv_lens[b])
        visible = [j for j in range(length) if self._sees(b, row, stop, j, batch, params)]
        keys = [(int(batch.tables[b, j // page]), j % page) for j in visible]
        group = params.q_heads // params.kv_heads
        for head in range(params.q_heads):
            scores, values = [], []
            for number, offset in keys:
                assert number >= 0, f"row {row} needs a page that is gone"
                key = pages.planes["k"][number, offset, head // group]
                value = pages.planes["v"][number, offset, head // group]
                assert not torch.isnan(key).any(), f"row {row} reads page {number}, slot {offset}: nobody wrote it"
                scores.append(params.scale * float(q[row, head].double() @ key.double()))
                values.append(value.double())
            if not scores:
                out[row, head] = 0
                if lse is not None:
                    lse[row, head] = -math.inf
                continue
            top = max(scores)
            weights = torch.tensor([math.exp(score - top) for score in scores], dtype=torch.float64)
            out[row, head] = ((weights[:, None] * torch.stack(values)).sum(0) / weights.sum()).to(out.dtype)
            if lse is not None:
                lse[row, head] = top + math.log(float(weights.sum()))

    def _sees(self, b: int, row: int, stop: int, j: int, batch: AttnBatch, params: AttnParams) -> bool:
        """Whether query row `row` sees key slot j of this segment."""
        position = int(batch.positions[row])
        slot = int(batch.kv_start[b]) + j
        from_end = int(batch.device_kv_lens[b]) - 1 - j  # the last slots are this step's own rows
        key_position = slot
        if batch.tree is not None and from_end < stop - int(batch.q_indptr[b]):
            width = batch.tree.shape[2]
            if not bool(batch.tree[b, width - (stop - row), width - 1 - from_end]):
                return False
            key_position = int(batch.positions[stop - 1 - from_end])
        if key_position > position:
            return False
        return params.window is None or position - key_position < params.window


class WritingKernel(TagKernel):
    """Also writes keys and values itself. Implements `tokloom.sdk.KVWriter`."""

    def __init__(self, options: NoOptions, context: Context) -> None:
        super().__init__(options, context)
        self.writes = 0

    def write(self, layer: int, k: Tensor, v: Tensor, pages: Pages, slots: Tensor) -> None:
        self.writes += 1
        page = pages.format.page_tokens
        for row, slot in enumerate(slots.tolist()):
            if slot >= 0:
                pages.planes["k"][slot // page, slot % page] = k[row]
                pages.planes["v"][slot // page, slot % page] = v[row]
