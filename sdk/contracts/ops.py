"""OpSet: the pure functions a model is made of besides linear layers and attention."""

from typing import TYPE_CHECKING, Protocol

from attrs import frozen

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@frozen(kw_only=True)
class OpCaps:
    """What an op set promises. `batch_invariant`: a row's result does not depend on the others, bit for bit."""

    batch_invariant: bool = False


class OpSet(Protocol):
    """Every function leaves its inputs unchanged unless it says otherwise and returns x's dtype."""

    def embed(self, ids: "Tensor", table: "Tensor") -> "Tensor":
        """Rows of `table` `[V, H]` for `ids` `[T]`."""
        ...

    def rms_norm(self, x: "Tensor", weight: "Tensor", eps: float, dtype: "torch.dtype") -> "Tensor":
        """`x / sqrt(mean(x^2) + eps) * weight` over the last axis, computed in float32 at least, given as `dtype`. x is
        `[T, H]`, the residual stream or the narrower output of a layer; or heads `[T, heads, D]`, which may be strided,
        with `weight` `[heads, D]`.
        """
        ...

    def add_rms_norm(self, x: "Tensor", residual: "Tensor", weight: "Tensor", eps: float) -> "tuple[Tensor, Tensor]":
        """`s = residual + x` in residual's dtype, which may be wider than x's; returns `(rms_norm(s) as x's dtype, s)`.
        May overwrite `residual`, which must not be used after.
        """
        ...

    def rope(self, q: "Tensor", k: "Tensor", cos: "Tensor", sin: "Tensor") -> "tuple[Tensor, Tensor]":
        """Rotate halves: `q` `[T, Hq, D]`, `k` `[T, Hk, D]`, `cos`, `sin` `[T, D/2]` float32 (RoFormer, GPT-NeoX
        layout). May overwrite q and k.
        """
        ...

    def silu_mul(self, gate_up: "Tensor") -> "Tensor":
        """`[T, 2 I] -> [T, I]`: SiLU of the first half times the second."""
        ...

    def gelu_tanh_mul(self, gate_up: "Tensor") -> "Tensor":
        """`[T, 2 I] -> [T, I]`: GELU of the first half, by its approximation with tanh (Hendrycks and Gimpel, 2016),
        times the second.
        """
        ...
