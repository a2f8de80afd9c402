"""The functions of OpSet over rows of float32 and bfloat16, compiled; other dtypes in torch operators."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_rows: Any
try:
    from tokloom.plugins.ops.cpu import _rows  # type: ignore[attr-defined, no-redef]  # compiled at installation
except ImportError:
    _rows = None

_COMPILED = (torch.float32, torch.bfloat16)


class CpuOps:
    """Implements `tokloom.sdk.OpSet`. Every compiled function computes in float32 and rounds once, at its end.

    Args:
        threads: at most so many work on one call.
        compiled: False takes torch operators everywhere, as without the compiled module.
    """

    def __init__(self, threads: int, *, compiled: bool = True) -> None:
        self._threads = threads
        self._native: Any = _rows if compiled else None

    def embed(self, ids: Tensor, table: Tensor) -> Tensor:
        return F.embedding(ids, table)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        wide = x if x.dtype.itemsize >= 4 else x.float()
        if weight.dim() == 1 and self._takes(wide, weight) and wide.dtype == torch.float32 and dtype in _COMPILED:
            return self._norm(None, wide.view(-1, x.shape[-1]), weight, eps, dtype).view(x.shape)
        return (F.rms_norm(wide, (x.shape[-1],), None, eps) * weight.to(wide.dtype)).to(dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        if self._takes(x, residual, weight) and residual.dtype == torch.float32:
            return self._norm(x, residual, weight, eps, x.dtype), residual
        total = residual.add_(x)
        return self.rms_norm(total, weight, eps, x.dtype), total

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        for x in (q, k):
            if self._native is not None and _heads(x) and self._takes(cos, sin):
                self._native.rope(
                    self._threads,
                    x.dtype == torch.bfloat16,
                    *x.shape,
                    x.stride(0),
                    x.data_ptr(),
                    cos.data_ptr(),
                    sin.data_ptr(),
                )
            else:
                x.copy_(_rotated(x, cos, sin))
        return q, k

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        if not self._takes(gate_up):
            gate, up = gate_up.chunk(2, dim=-1)
            return F.silu(gate) * up
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, size)
        bf16 = gate_up.dtype == torch.bfloat16
        self._native.silu_mul(self._threads, bf16, rows, size, gate_up.data_ptr(), out.data_ptr())
        return out

    def gelu_tanh_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.gelu(gate, approximate="tanh").mul_(up)

    def _takes(self, *tensors: Tensor) -> bool:
        return self._native is not None and all(t.is_contiguous() and t.dtype in _COMPILED for t in tensors)

    def _norm(self, x: Tensor | None, residual: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        out = torch.empty(residual.shape, dtype=dtype)
        weight = weight.float()
        self._native.norm(
            self._threads,
            dtype == torch.bfloat16,
            *residual.shape,
            0 if x is None else x.data_ptr(),
            residual.data_ptr(),
            weight.data_ptr(),
            out.data_ptr(),
            eps,
        )
        return out


def _heads(x: Tensor) -> bool:
    """Whether the heads `[T, H, D]` of each row are packed, in a compiled dtype."""
    return x.dtype in _COMPILED and x.stride()[1:] == (x.shape[2], 1)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.to(cos.dtype).chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1).to(x.dtype)
