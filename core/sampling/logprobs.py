"""Log-probabilities that are reported: of the raw logits, before any processing."""

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from tokloom.core.sampling.laws import top_k_mask


@frozen
class TokenLogprobs:
    """Of one token: `chosen` (natural log), and the most likely alternatives, best first, lower ids first on ties."""

    chosen: float
    ids: tuple[int, ...] = ()
    values: tuple[float, ...] = ()


def token_logprobs(
    logits: Tensor, rows: Sequence[int], tokens: Sequence[int], tops: Sequence[int]
) -> list[TokenLogprobs]:
    """Per i the log-softmax (float32) of row `rows[i]` of `logits` `[R, V]`, at `tokens[i]` and `tops[i]` best."""
    if not rows:
        return []
    x = logits[torch.tensor(rows, device=logits.device)].float()
    total = x.logsumexp(-1, keepdim=True)
    index = torch.tensor(tokens, device=x.device)[:, None]
    chosen = (x.gather(1, index) - total).flatten().tolist()
    widest = min(max(tops), x.shape[1])
    if widest == 0:
        return [TokenLogprobs(value) for value in chosen]
    keep = top_k_mask(x, torch.full((len(rows),), widest, device=x.device))
    ids = keep.nonzero()[:, 1].view(len(rows), widest)
    best, order = x.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    values, named = (best - total).tolist(), ids.gather(1, order).tolist()
    return [
        TokenLogprobs(value, tuple(own[:top]), tuple(logs[:top]))
        for value, own, logs, top in zip(chosen, named, values, tops, strict=True)
    ]
