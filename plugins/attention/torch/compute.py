"""Attention of one group of tiles over gathered keys and values.

Shapes: q `[B, n, H, G, head_k]` (H key heads, G query heads for each), k `[B, L, H, head_k]`, v `[B, L, H, head_v]`,
result `[B, n, H, G, head_v]`. Scores and softmax are float32, or float64 for float64 inputs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

#: with at most so many key heads, `dense` multiplies few rows by one block-diagonal query instead of once per head
WIDE_HEADS = 4
#: and at most so many rows of it
WIDE_ROWS = 32


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Plain softmax attention by torch's fused operator; query heads of a key head become rows.

    Args:
        mask: `[B, 1, n * G or 1, L]` of q's dtype, added to the scores, or None.
    """
    batch, rows, heads, fold, _ = q.shape
    folded = q.transpose(1, 2).reshape(batch, heads, rows * fold, -1)
    o = F.scaled_dot_product_attention(folded, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, scale=scale)
    return o.view(batch, heads, rows, fold, -1).transpose(1, 2)


def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    *,
    scale: float,
    soft_cap: float | None,
    sinks: Tensor | None,
    want_lse: bool,
) -> tuple[Tensor, Tensor | None]:
    """Attention with materialised scores: soft cap, sinks, biases per head and log-sum-exp.

    Args:
        bias: `[B, n, 1 or H, 1 or G, L]`, added after the soft cap; -inf hides.
        sinks: `[H, G]` logits that take part in the softmax and have no value.

    Returns:
        The result, and the log-sum-exp `[B, n, H, G]` if wanted.
    """
    batch, rows, heads, fold, _ = q.shape
    keys = k.shape[1]
    wide = heads <= WIDE_HEADS and rows * heads * fold <= WIDE_ROWS
    scores = _wide_scores(q, k, scale) if wide else _scores(q, k, scale)
    if soft_cap is not None:
        scores = scores.div_(soft_cap).tanh_().mul_(soft_cap)
    if bias is not None:
        scores.add_(bias if wide else bias.transpose(1, 2))
    lse = None
    if want_lse or sinks is not None:
        lse = torch.logsumexp(scores, -1, keepdim=True)
        if sinks is not None:
            lse = torch.logaddexp(lse, (sinks if wide else sinks[:, None]).unsqueeze(-1).to(lse.dtype))
        weights = scores.sub_(lse).exp_()
    else:
        weights = torch.softmax(scores, -1)
    weights = weights.to(v.dtype)
    if wide:
        o = torch.bmm(weights.view(batch, -1, keys), v.flatten(2)).view(batch, rows, heads, fold, heads, -1)
        return o.diagonal(dim1=2, dim2=4).movedim(-1, 2), None if lse is None else lse.squeeze(-1)
    o = torch.bmm(weights.view(batch * heads, -1, keys), v.transpose(1, 2).flatten(0, 1))
    o = o.view(batch, heads, rows, fold, -1).transpose(1, 2)
    return o, None if lse is None else lse.squeeze(-1).transpose(1, 2)


def _accumulate(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """`[B, H, n, G, L]`."""
    batch, rows, heads, fold, size = q.shape
    wide = _accumulate(q.dtype)
    left = q.transpose(1, 2).to(wide).mul(scale).reshape(batch * heads, rows * fold, size)
    right = k.transpose(1, 2).to(wide).reshape(batch * heads, -1, size)
    return torch.bmm(left, right.transpose(1, 2)).view(batch, heads, rows, fold, -1)


def _wide_scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """`[B, n, H, G, L]`: each query sits in its key head's block of an otherwise zero row over all heads."""
    batch, rows, heads, fold, size = q.shape
    wide = _accumulate(q.dtype)
    block = torch.eye(heads, dtype=wide, device=q.device).mul_(scale).view(heads, 1, heads, 1)
    left = (q.unsqueeze(4) * block).view(batch, rows * heads * fold, heads * size)
    right = k.flatten(2).to(wide)
    return torch.bmm(left, right.transpose(1, 2)).view(batch, rows, heads, fold, -1)
