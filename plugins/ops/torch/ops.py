"""The functions of OpSet in torch operators."""

import torch
import torch.nn.functional as F
from torch import Tensor


class TorchOps:
    """Implements `tokloom.sdk.OpSet`."""

    def __init__(self) -> None:
        self._angles: tuple[Tensor, Tensor, Tensor, Tensor] | None = None

    def embed(self, ids: Tensor, table: Tensor) -> Tensor:
        return F.embedding(ids, table)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps).to(dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = residual.add_(x)
        return self.rms_norm(total, weight, eps, x.dtype), total

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        cosines, sines = self._whole(cos, sin, q.dtype)
        return _rotate(q, cosines, sines), _rotate(k, cosines, sines)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def _whole(self, cos: Tensor, sin: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """`[T, 1, D]` factors of x and of its swapped halves; the same angles serve every layer of a step."""
        if self._angles is None or self._angles[0] is not cos or self._angles[1] is not sin:
            wide = torch.float64 if dtype == torch.float64 else torch.float32
            cosines = torch.cat((cos, cos), dim=-1).unsqueeze(1).to(wide)
            sines = torch.cat((-sin, sin), dim=-1).unsqueeze(1).to(wide)
            self._angles = (cos, sin, cosines, sines)
        return self._angles[2], self._angles[3]


def _rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    swapped = x.roll(x.shape[-1] // 2, dims=-1)
    return torch.addcmul(x * cosines, swapped.to(cosines.dtype), sines).to(x.dtype)
