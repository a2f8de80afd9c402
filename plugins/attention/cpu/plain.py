"""The same attention in torch operators: for dtypes and head sizes that are not compiled, or where nothing is."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokloom.sdk import AttnParams


def attend_row(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: "NDArray[np.int64]",
    params: AttnParams,
    sinks: "NDArray[np.float32]",
    out: Tensor,
    lse: Tensor | None,
    row: int,
) -> None:
    """Attend with one row `q` `[q_heads, head_k]` to the tokens at `slots` of the planes; fills `out[row]`, `lse[row]`."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    at = torch.from_numpy(slots)
    size = k.shape[1]
    page, offset = at // size, at % size
    keys, values = k[page, offset].to(wide), v[page, offset].to(wide)
    grouped = q.to(wide).view(params.kv_heads, -1, params.head_k)
    scores = torch.einsum("hgd,lhd->hgl", grouped, keys) * params.scale
    if params.soft_cap is not None:
        scores = params.soft_cap * torch.tanh(scores / params.soft_cap)
    total = torch.logsumexp(scores, -1)
    if len(sinks):
        total = torch.logaddexp(total, torch.from_numpy(sinks).to(wide).view(params.kv_heads, -1))
    weights = torch.exp(scores - torch.where(torch.isinf(total), torch.zeros_like(total), total).unsqueeze(-1))
    out[row] = torch.einsum("hgl,lhd->hgd", weights, values).reshape(params.q_heads, -1).to(out.dtype)
    if lse is not None:
        lse[row] = total.reshape(-1)
