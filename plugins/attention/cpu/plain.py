"""The same attention in torch operators: for dtypes and head sizes that are not compiled, or where nothing is."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tokloom.sdk import AttnParams

#: gathered key elements at a time
ELEMENTS = 4 << 20


def attend_rows(
    q: Tensor,
    planes: Mapping[str, Tensor],
    slots: Tensor,
    visible: Tensor,
    params: AttnParams,
    sinks: Tensor | None,
    out: Tensor,
    lse: Tensor | None,
) -> None:
    """Attend with rows `q` `[R, q_heads, head_k]` to the tokens at `slots` `[R, L]` where `visible`."""
    height = max(1, ELEMENTS // max(1, slots.shape[1] * params.kv_heads * max(params.head_k, params.head_v)))
    for low in range(0, len(slots), height):
        part = slice(low, low + height)
        result, sums = _attend(q[part], planes, slots[part], visible[part], params, sinks)
        out[part] = result
        if lse is not None:
            lse[part] = sums


def _attend(
    q: Tensor,
    planes: Mapping[str, Tensor],
    slots: Tensor,
    visible: Tensor,
    params: AttnParams,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor]:
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    size = planes["k"].shape[1]
    page, offset = slots // size, slots % size
    keys, values = (_gather(planes, name, page, offset, visible, wide) for name in ("k", "v"))
    grouped = q.to(wide).view(len(q), params.kv_heads, -1, params.head_k)
    scores = torch.einsum("rhgd,rlhd->rhgl", grouped, keys) * params.scale
    if params.soft_cap is not None:
        scores = params.soft_cap * torch.tanh(scores / params.soft_cap)
    scores = scores.masked_fill(~visible[:, None, None, :], -torch.inf)
    total = torch.logsumexp(scores, -1)
    if sinks is not None:
        total = torch.logaddexp(total, sinks.to(wide).view(params.kv_heads, -1))
    weights = torch.exp(scores - torch.where(torch.isinf(total), torch.zeros_like(total), total).unsqueeze(-1))
    mixed = torch.einsum("rhgl,rlhd->rhgd", weights, values)
    return mixed.flatten(1, 2).to(q.dtype), total.flatten(1)


def _gather(
    planes: Mapping[str, Tensor], name: str, page: Tensor, offset: Tensor, visible: Tensor, dtype: torch.dtype
) -> Tensor:
    taken = planes[name][page, offset]
    scales = planes.get(f"{name}_scale")
    if scales is not None:  # in float32 whatever the queries are: exactly the values of the codec's reader
        taken = taken.float() * scales[page, offset].unsqueeze(-1)
    return torch.where(visible[:, :, None, None], taken.to(dtype), 0.0)
