"""The functions of OpSet in torch operators.

A decoding step runs each of these once or twice per layer over few rows, right after weights have swept the caches:
what counts there is the number of operators.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


class TorchOps:
    """Implements `tokloom.sdk.OpSet`."""

    def __init__(self) -> None:
        #: the angles used last, first; models have one or two sets
        self._angles: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def embed(self, ids: Tensor, table: Tensor) -> Tensor:
        return F.embedding(ids, table)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        x = x if x.dtype.itemsize >= 4 else x.float()
        # sqrt(mean(x^2) + eps) as the hypotenuse of norm / sqrt(size) and sqrt(eps)
        root = torch.linalg.vector_norm(x, dim=-1, keepdim=True).mul_(x.shape[-1] ** -0.5)
        root = torch.hypot(root, root.new_full((), eps**0.5))
        return (x / root).mul_(weight).to(dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = residual.add_(x)
        return self.rms_norm(total, weight, eps, x.dtype), total

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        cosines, sines = self._whole(cos, sin, q.dtype)
        joint = _joint(q, k)
        if joint is None:
            return _rotate(q, cosines, sines), _rotate(k, cosines, sines)
        both = _rotate(joint, cosines, sines)
        return both[:, : q.shape[1]], both[:, q.shape[1] :]

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def gelu_tanh_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.gelu(gate, approximate="tanh").mul_(up)

    def _whole(self, cos: Tensor, sin: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """`[T, 1, D]` factors of x and of its swapped halves; the same angles serve every layer of a step."""
        for known_cos, known_sin, cosines, sines in self._angles:
            if known_cos is cos and known_sin is sin:
                return cosines, sines
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        cosines = torch.cat((cos, cos), dim=-1).unsqueeze(1).to(wide)
        sines = torch.cat((-sin, sin), dim=-1).unsqueeze(1).to(wide)
        self._angles = [(cos, sin, cosines, sines), *self._angles[:1]]
        return cosines, sines


def _joint(q: Tensor, k: Tensor) -> Tensor | None:
    """q and k as one tensor `[T, Hq + Hk, D]`, if they lie side by side in memory as in a joint projection."""
    beside = (
        q.stride() == k.stride()
        and q.stride()[1:] == (q.shape[2], 1)
        and k.storage_offset() == q.storage_offset() + q.shape[1] * q.shape[2]
        and k.untyped_storage().data_ptr() == q.untyped_storage().data_ptr()
    )
    return q.as_strided((q.shape[0], q.shape[1] + k.shape[1], q.shape[2]), q.stride()) if beside else None


def _rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    wide = x.to(cosines.dtype)
    swapped = wide.roll(x.shape[-1] // 2, dims=-1)
    return torch.addcmul(wide * cosines, swapped, sines).to(x.dtype)
