"""TorchPlan: everything about a step that does not depend on the layer."""

import numpy as np
import torch
from torch import Tensor

from tokloom.plugins.attention.torch.compute import dense, fused
from tokloom.plugins.attention.torch.gather import TokenIndex, keys_and_values
from tokloom.plugins.attention.torch.tiles import HostBatch, Ints, cut, gather_like, to_host
from tokloom.plugins.attention.torch.visibility import GroupIndex, index_group
from tokloom.sdk import AttnBatch, AttnParams, AttnPlan, Pages


class TorchPlan(AttnPlan):
    """Groups of tiles, bound to the page tables at the first `run`."""

    __slots__ = ("_batch", "_bound", "_empty", "_groups", "_params", "_sinks")

    def __init__(self, batch: AttnBatch, params: AttnParams) -> None:
        host = HostBatch.of(batch)
        tiles, empty = cut(host, params)
        self._batch, self._params = batch, params
        self._groups = [index_group(host, params, group) for group in gather_like(tiles, params)]
        device = batch.positions.device
        blind = np.concatenate([np.array(empty, dtype=np.int64), *(group.empty for group in self._groups)])
        self._empty = torch.from_numpy(blind).to(device) if len(blind) else None
        self._sinks: Tensor | None = None
        if params.sinks and batch.sinks_here:
            sinks = torch.tensor(params.sinks, dtype=torch.float64, device=device)
            self._sinks = sinks.view(params.kv_heads, params.q_heads // params.kv_heads)
        self._bound: dict[tuple[int, torch.dtype], list[_BoundGroup]] = {}

    def run(self, q: Tensor, pages: Pages, out: Tensor, lse: Tensor | None) -> None:
        """Attend in one layer; see AttentionKernel.run."""
        for group in self._bind(pages.format.page_tokens, q.dtype):
            group.run(q, pages, self._sinks, out, lse)
        if self._empty is not None:
            out.index_fill_(0, self._empty, 0.0)
            if lse is not None:
                lse.index_fill_(0, self._empty, -torch.inf)

    def _bind(self, page_tokens: int, dtype: torch.dtype) -> "list[_BoundGroup]":
        key = (page_tokens, dtype)
        bound = self._bound.get(key)
        if bound is None:
            tables = to_host(self._batch.tables)
            device = str(self._batch.positions.device)
            bound = self._bound[key] = [
                _BoundGroup(
                    group, TokenIndex(tables, group.seqs, group.slots, page_tokens, device), self._params, dtype, device
                )
                for group in self._groups
            ]
        return bound


class _BoundGroup:
    """One group with addresses in its pool and masks in the dtype of the queries."""

    def __init__(
        self, group: GroupIndex, index: TokenIndex, params: AttnParams, dtype: torch.dtype, device: str
    ) -> None:
        self._index, self._params = index, params
        self._shape = group.rows.shape
        self._rows = _Rows(group.rows.reshape(-1), device)
        self._fold = params.q_heads // params.kv_heads
        batch, rows = group.rows.shape
        self._fusable = params.soft_cap is None and not params.alibi and params.head_k == params.head_v
        self._bias = _bias(group, params, dtype, device)
        self._mask: Tensor | None = None
        if self._fusable and self._bias is not None:
            # [B, n, 1, 1, L] -> [B, 1, n * G, L]; a single row stands for all its query heads
            heads = 1 if rows == 1 else self._fold
            mask = self._bias.to(dtype).expand(-1, -1, -1, heads, -1)
            self._mask = mask.reshape(batch, 1, rows * heads, -1)

    def run(self, q: Tensor, pages: Pages, sinks: Tensor | None, out: Tensor, lse: Tensor | None) -> None:
        params = self._params
        rows = self._rows.read(q).reshape(*self._shape, params.kv_heads, self._fold, params.head_k)
        k, v = keys_and_values(pages, self._index, q.dtype)
        if self._fusable and sinks is None and lse is None:
            result = fused(rows, k, v, self._mask, params.scale)
        else:
            result, sums = dense(
                rows,
                k,
                v,
                self._bias,
                scale=params.scale,
                soft_cap=params.soft_cap,
                sinks=sinks,
                want_lse=lse is not None,
            )
            if lse is not None and sums is not None:
                self._rows.write(lse, sums.reshape(-1, params.q_heads))
        self._rows.write(out, result.reshape(-1, params.q_heads, params.head_v))


class _Rows:
    """The rows of a group in the batch: a slice where they are consecutive, indices otherwise."""

    def __init__(self, rows: Ints, device: str) -> None:
        first, count = int(rows[0]), len(rows)
        run = bool((rows == np.arange(first, first + count)).all())
        self._slice = slice(first, first + count) if run else None
        self._index = torch.from_numpy(rows).to(device)

    def read(self, source: Tensor) -> Tensor:
        return source[self._slice] if self._slice else source.index_select(0, self._index)

    def write(self, target: Tensor, values: Tensor) -> None:
        if self._slice:
            target[self._slice].copy_(values)
        else:
            target.index_copy_(0, self._index, values.to(target.dtype))


def _bias(group: GroupIndex, params: AttnParams, dtype: torch.dtype, device: str) -> Tensor | None:
    """`[B, n, 1 or H, 1 or G, L]` in the dtype of the scores: -inf where hidden, plus ALiBi."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    bias: Tensor | None = None
    if group.visible is not None:
        hidden = torch.from_numpy(~group.visible).to(device)
        bias = torch.zeros(hidden.shape, dtype=wide, device=device).masked_fill_(hidden, -torch.inf)
        bias = bias[:, :, None, None, :]
    if group.distance is not None:
        slopes = torch.tensor(params.alibi, dtype=wide, device=device)
        slopes = slopes.view(1, 1, params.kv_heads, params.q_heads // params.kv_heads, 1)
        distance = torch.from_numpy(group.distance).to(device, wide)[:, :, None, None, :]
        slant = -slopes * distance
        bias = slant if bias is None else slant + bias
    return bias
