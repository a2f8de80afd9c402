"""From processed logits to the law p: temperature, top-k, top-p, min-p, and the draw by inverse CDF.

Everything is per row and vectorised over rows. Sums that decide something are running sums in id order or in order of
weight, never tree reductions, so that padding and the other rows of a batch cannot change a result.
"""

from collections.abc import Sequence
from typing import Final

import torch
from attrs import field, frozen
from torch import Tensor

from tokloom.sdk import SamplingParams

#: A nucleus is first looked for among these many largest weights; rows that need more are sorted.
_NUCLEUS_GUESSES: Final = (256, 4096)
#: Rows whose top_k is at most this share of the vocabulary are drawn from the kept tokens alone.
_COMPACT_SHARE: Final = 8


@frozen(eq=False)
class Filters:
    """One row each: `temperature > 0`, `top_k >= 0` (0 keeps all), `0 < top_p <= 1`, `0 <= min_p <= 1`."""

    temperature: Tensor = field()
    top_k: Tensor = field()
    top_p: Tensor = field()
    min_p: Tensor = field()

    @classmethod
    def of(cls, params: Sequence[SamplingParams], device: torch.device) -> "Filters":
        """The filters of rows that are sampled with `params`."""
        floats = torch.tensor([(p.temperature, p.top_p, p.min_p) for p in params], dtype=torch.float64).to(device)
        top_k = torch.tensor([min(p.top_k, 2**40) for p in params], dtype=torch.int64).to(device)
        return cls(floats[:, 0], top_k, floats[:, 1], floats[:, 2])

    def rows(self, index: Tensor) -> "Filters":
        """The filters of some rows."""
        return Filters(self.temperature[index], self.top_k[index], self.top_p[index], self.min_p[index])

    def without_top_k(self) -> "Filters":
        """The same, for rows that were cut to their top k already."""
        return Filters(self.temperature, torch.zeros_like(self.top_k), self.top_p, self.min_p)


def weights(logits: Tensor, filters: Filters) -> Tensor:
    """`[R, C]` float64 weights in [0, 1] proportional to p: the largest is 1, dropped tokens have 0.

    `logits` `[R, C]`: no NaN and at least one finite entry per row.
    """
    x = logits.to(torch.float64)
    limited = (filters.top_k > 0) & (filters.top_k < x.shape[1])
    if bool(limited.any()):
        k = torch.where(limited, filters.top_k, x.shape[1])
        x = x.masked_fill(~top_k_mask(x, k), -torch.inf)
    w = ((x - x.amax(-1, keepdim=True)) / filters.temperature[:, None]).exp_()
    nucleus = (filters.top_p < 1.0).nonzero().flatten()
    if len(nucleus):
        w[nucleus] = _nucleus(w[nucleus], filters.top_p[nucleus])
    if bool((filters.min_p > 0.0).any()):
        w = w.masked_fill(w < filters.min_p[:, None], 0.0)
    return w


def law(logits: Tensor, filters: Filters) -> Tensor:
    """`[R, V]` float64: p of each row."""
    w = weights(logits, filters)
    return w / w.cumsum(-1)[:, -1:]


def draw(logits: Tensor, filters: Filters, u: Tensor) -> Tensor:
    """`[R, N]` token ids: for each row the inverse CDF of p, in id order, at `u` `[R, N]` in [0, 1)."""
    vocab = logits.shape[1]
    compact = (filters.top_k > 0) & (filters.top_k * _COMPACT_SHARE <= vocab)
    if not bool(compact.any()):
        return invert(weights(logits, filters), u)
    out = torch.empty(u.shape, dtype=torch.int64, device=logits.device)
    few, many = compact.nonzero().flatten(), (~compact).nonzero().flatten()
    values, ids = _compact(logits[few], filters.top_k[few])
    index = invert(weights(values, filters.rows(few).without_top_k()), u[few])
    out[few] = ids.gather(1, index)
    if len(many):
        out[many] = invert(weights(logits[many], filters.rows(many)), u[many])
    return out


def invert(weights: Tensor, u: Tensor) -> Tensor:
    """The first index at which the running sum of `weights` `[R, C]` exceeds `u * total`; `[R, N]` for `u` `[R, N]`.

    It never names an index of weight 0: there the running sum does not grow.
    """
    cdf = weights.cumsum(-1)
    return torch.searchsorted(cdf, u * cdf[:, -1:], right=True).clamp_(max=weights.shape[1] - 1)


def top_k_mask(x: Tensor, k: Tensor) -> Tensor:
    """`[R, C]` bool: the `k` `[R]` largest of each row; among equals the lowest ids stay."""
    widest = int(k.max())
    order = torch.topk(x, min(widest, x.shape[1]), dim=-1).values
    return _keep(x, k, order.gather(1, (k - 1).clamp(min=0, max=x.shape[1] - 1)[:, None]))


def _keep(x: Tensor, k: Tensor, threshold: Tensor) -> Tensor:
    """The k largest, given the k-th largest value `[R, 1]`."""
    above, equal = x > threshold, x == threshold
    room = k[:, None] - above.sum(-1, keepdim=True)
    crowded = (equal.sum(-1, keepdim=True) > room).flatten().nonzero().flatten()
    if len(crowded):
        equal[crowded] &= equal[crowded].cumsum(-1) <= room[crowded]
    return above | equal


def _nucleus(w: Tensor, top_p: Tensor) -> Tensor:
    """Zero all but the smallest set of largest weights whose mass reaches `top_p`; the crossing token stays."""
    target = top_p[:, None] * w.cumsum(-1)[:, -1:]
    out = torch.empty_like(w)
    left = torch.arange(w.shape[0], device=w.device)
    for guess in (*(g for g in _NUCLEUS_GUESSES if g < w.shape[1]), w.shape[1]):
        own = w[left]
        order = torch.topk(own, guess, dim=-1).values if guess < w.shape[1] else own.sort(-1, descending=True).values
        found = (order.cumsum(-1)[:, -1:] >= target[left]).flatten()
        if guess == w.shape[1]:
            found = torch.ones_like(found)
        out[left[found]] = _cut(own[found], order[found], target[left[found]])
        left = left[~found]
        if not len(left):
            break
    return out


def _cut(w: Tensor, order: Tensor, target: Tensor) -> Tensor:
    before = torch.zeros_like(order)
    before[:, 1:] = order.cumsum(-1)[:, :-1]
    count = (before < target).sum(-1).clamp(min=1)
    return w.masked_fill(~_keep(w, count, order.gather(1, (count - 1)[:, None])), 0.0)


def _compact(logits: Tensor, top_k: Tensor) -> tuple[Tensor, Tensor]:
    """The kept logits and their ids, ascending, `[R, C]`; places beyond a row's own k have -inf."""
    values, ids = torch.topk(logits, int(top_k.max()) + 1, dim=-1)
    last = values.gather(1, (top_k - 1)[:, None])
    beyond = torch.arange(values.shape[1], device=logits.device) >= top_k[:, None]
    for row in (values.gather(1, top_k[:, None]) == last).flatten().nonzero().flatten().tolist():
        # Equals on both sides of the cut: the lowest ids stay, which topk does not promise.
        own = top_k_mask(logits[row][None], top_k[row][None])[0].nonzero().flatten()
        ids[row, : len(own)] = own
        values[row, : len(own)] = logits[row, own]
    values = values.masked_fill(beyond, -torch.inf)
    order = ids.masked_fill(beyond, logits.shape[1]).argsort(-1)
    return values.gather(1, order), ids.gather(1, order)
