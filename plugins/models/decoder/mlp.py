"""What follows attention in a layer: one gated MLP, or a mixture of them."""

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

from tokloom.sdk import Linear, OpSet


@frozen
class Gated:
    """`down(activation(gate(x)) * up(x))`. `activation`: `silu` or `gelu_tanh`."""

    gate_up: Linear
    down: Linear
    activation: str

    def apply(self, x: Tensor, ops: OpSet) -> Tensor:
        """`[T, H] -> [T, H]`."""
        both = self.gate_up.apply(x)
        return self.down.apply(ops.silu_mul(both) if self.activation == "silu" else ops.gelu_tanh_mul(both))


@frozen
class Mixture:
    """Each row goes through the `used` experts that its router weighs most.

    Attributes:
        router: `[E, H]` in float32 at least.
        normed: the weights of a row's experts sum to 1.
    """

    router: Tensor
    experts: tuple[Gated, ...]
    used: int
    normed: bool

    def apply(self, x: Tensor, ops: OpSet) -> Tensor:
        """`[T, H] -> [T, H]`. Rows are gathered per expert; a row's sum runs over its experts in their order."""
        shares = F.linear(x.to(self.router.dtype), self.router).softmax(-1)
        weights, chosen = shares.topk(self.used, dim=-1)
        if self.normed:
            weights = weights / weights.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        rows = order // self.used
        weights = weights.flatten()[order].unsqueeze(1)
        total = torch.zeros(x.shape, dtype=weights.dtype, device=x.device)
        first = 0
        counts: list[int] = torch.bincount(chosen.flatten(), minlength=len(self.experts)).tolist()
        for expert, count in zip(self.experts, counts, strict=True):
            if count:
                own = rows[first : first + count]
                y = expert.apply(x[own], ops)
                total.index_add_(0, own, y.to(total.dtype) * weights[first : first + count])
                first += count
        return total.to(x.dtype)
