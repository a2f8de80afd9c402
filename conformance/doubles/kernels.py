"""Attention kernels straight from the definition: loops over rows and visible keys. Slow, simple, recordable."""

import math

import torch
from attrs import frozen
from torch import Tensor

from tokloom.conformance.doubles.offers import TagOptions
from tokloom.sdk import (
    Accepts,
    AttnBatch,
    AttnParams,
    AttnPlan,
    Context,
    KVFormat,
    LayerSpec,
    Pages,
    Unsupported,
    Workspace,
)

#: plane names that can be read -> (key plane, value plane, factor of what is stored)
READABLE = {
    frozenset({"k", "v"}): ("k", "v", 1.0),
    frozenset({"sealed_k", "sealed_v"}): ("sealed_k", "sealed_v", -1.0),
}


class TagPlan(AttnPlan):
    """The batch and parameters; re-planning updates it in place."""

    __slots__ = ("batch", "params")

    def __init__(self, batch: AttnBatch, params: AttnParams) -> None:
        self.batch = batch
        self.params = params


@frozen
class _Key:
    """One visible key: its slot in the segment, its position, where it is stored."""

    slot: int
    position: int
    page: int
    offset: int


class TagKernel:
    """Implements `tokloom.sdk.AttentionKernel` for float planes k and v (negated in `sealed_k`, `sealed_v`).

    Visible keys were written, whatever else memory holds: a NaN among them is an error. With `positions` the first
    component of a key is its position + 1, as the content-tagged models store it, and must be that of its slot.
    """

    def __init__(self, options: TagOptions, context: Context) -> None:
        self._positions = options.positions
        self.replans = 0

    def accepts(self, spec: LayerSpec, format: KVFormat) -> Accepts | Unsupported:
        names = frozenset(plane.name for plane in format.planes)
        return Accepts() if names in READABLE else Unsupported(f"planes {sorted(names)}")

    def plan(
        self, batch: AttnBatch, params: AttnParams, workspace: Workspace, *, capture: bool, reuse: AttnPlan | None
    ) -> AttnPlan:
        if isinstance(reuse, TagPlan):
            self.replans += 1
            reuse.batch = batch
            return reuse
        workspace.take(64)
        return TagPlan(batch, params)

    def run(self, layer: int, q: Tensor, pages: Pages, plan: AttnPlan, out: Tensor, lse: Tensor | None) -> None:
        assert isinstance(plan, TagPlan)
        batch = plan.batch
        for b in range(batch.size):
            first, stop = int(batch.q_indptr[b]), int(batch.q_indptr[b + 1])
            for row in range(first, stop):
                keys = self._visible(b, row, stop, batch, plan.params, pages.format.page_tokens)
                k, v = self._read(row, keys, pages)
                for head in range(plan.params.q_heads):
                    self._attend(row, head, keys, q, k, v, plan, out, lse)

    def _visible(self, b: int, row: int, stop: int, batch: AttnBatch, params: AttnParams, page: int) -> list[_Key]:
        found = []
        for slot in range(int(batch.device_kv_lens[b])):
            position = self._position_seen(b, row, stop, slot, batch, params)
            if position is not None:
                number = int(batch.tables[b, slot // page])
                assert number >= 0, f"row {row} needs slot {slot}, whose page is gone"
                found.append(_Key(slot, position, number, slot % page))
        return found

    def _position_seen(
        self, b: int, row: int, stop: int, slot: int, batch: AttnBatch, params: AttnParams
    ) -> int | None:
        """The position of a key slot of this segment, or None if query row `row` does not see it."""
        position = int(batch.positions[row])
        key_position = int(batch.kv_start[b]) + slot
        from_end = int(batch.device_kv_lens[b]) - 1 - slot  # the last slots are this step's own rows
        in_tree = batch.tree is not None and from_end < min(stop - int(batch.q_indptr[b]), batch.tree.shape[2])
        if batch.tree is not None and in_tree:
            key_position = int(batch.positions[stop - 1 - from_end])
            width = batch.tree.shape[2]
            covered = stop - row <= width
            if covered and not bool(batch.tree[b, width - (stop - row), width - 1 - from_end]):
                return None
            if not covered and params.causal and key_position > position:
                return None
        elif params.causal and key_position > position:
            return None
        if params.window is not None and not 0 <= position - key_position < params.window:
            return None
        return key_position

    def _read(self, row: int, keys: list[_Key], pages: Pages) -> tuple[Tensor, Tensor]:
        """k and v `[n, kv_heads, size]` in float64 of the visible keys."""
        k_name, v_name, factor = READABLE[frozenset(pages.planes)]
        where = torch.tensor([key.page for key in keys], dtype=torch.int64)
        offset = torch.tensor([key.offset for key in keys], dtype=torch.int64)
        k = pages.planes[k_name][where, offset].double() * factor
        v = pages.planes[v_name][where, offset].double() * factor
        for index, key in enumerate(keys):
            place = f"row {row} reads slot {key.slot} (page {key.page}, offset {key.offset})"
            assert not torch.isnan(k[index]).any(), f"{place}: nobody wrote its key"
            assert not torch.isnan(v[index]).any(), f"{place}: nobody wrote its value"
            found = float(k[index].flatten()[0]) - 1
            assert not self._positions or found == key.position, (
                f"{place}: it holds the key of position {found:.0f}, not {key.position}"
            )
        return k, v

    def _attend(
        self,
        row: int,
        head: int,
        keys: list[_Key],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        plan: TagPlan,
        out: Tensor,
        lse: Tensor | None,
    ) -> None:
        batch, params = plan.batch, plan.params
        kv_head = head // (params.q_heads // params.kv_heads)
        query = q[row, head].double()
        scores = [params.scale * float(query @ k[index, kv_head]) for index in range(len(keys))]
        if params.soft_cap is not None:
            scores = [params.soft_cap * math.tanh(score / params.soft_cap) for score in scores]
        if params.alibi:
            position = int(batch.positions[row])
            scores = [s - params.alibi[head] * (position - key.position) for s, key in zip(scores, keys, strict=True)]
        sink = [params.sinks[head]] if params.sinks and batch.sinks_here else []
        if not scores and not sink:
            out[row, head] = 0
            if lse is not None:
                lse[row, head] = -math.inf
            return
        top = max([*scores, *sink])
        weights = torch.tensor([math.exp(score - top) for score in scores], dtype=torch.float64)
        total = float(weights.sum()) + sum(math.exp(score - top) for score in sink)
        out[row, head] = (weights @ v[:, kv_head] / total).to(out.dtype)
        if lse is not None:
            lse[row, head] = top + math.log(total)


class WritingKernel(TagKernel):
    """Also writes keys and values itself. Implements `tokloom.sdk.KVWriter`."""

    def __init__(self, options: TagOptions, context: Context) -> None:
        super().__init__(options, context)
        self.writes = 0

    def write(self, layer: int, k: Tensor, v: Tensor, pages: Pages, slots: Tensor) -> None:
        self.writes += 1
        page = pages.format.page_tokens
        for row, slot in enumerate(slots.tolist()):
            if slot >= 0:
                pages.planes["k"][slot // page, slot % page] = k[row]
                pages.planes["v"][slot // page, slot % page] = v[row]


class PlainTagKernel(TagKernel):
    """Without trees and segments, one phase per batch, and only with exact host lengths."""

    def plan(
        self, batch: AttnBatch, params: AttnParams, workspace: Workspace, *, capture: bool, reuse: AttnPlan | None
    ) -> AttnPlan:
        phases = [batch.num_decode, batch.num_verify, batch.size - batch.num_decode - batch.num_verify]
        assert sum(count > 0 for count in phases) <= 1, f"phases {phases} in one batch"
        assert not capture, "a plan is to be recorded"
        assert batch.tree is None, "a tree mask"
        assert not batch.kv_start.any(), "keys that start past position 0"
        assert batch.host_exact, "host lengths are not exact"
        assert batch.kv_lens.tolist() == batch.device_kv_lens.tolist(), "host and device disagree about lengths"
        return super().plan(batch, params, workspace, capture=capture, reuse=reuse)
