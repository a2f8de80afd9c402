"""Linear layers in bfloat16 through the compiled module `_bf16`."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_bf16: Any
try:
    from tokloom.plugins.quant.weights.dense import _bf16  # type: ignore[attr-defined, no-redef]  # compiled
except ImportError:
    _bf16 = None

#: rows from which tiles (AMX) beat vectors: measured on 2 cores of a Xeon, where both wait for memory below
TILE_ROWS = 5
_NEVER = 1 << 40
_LANES, _INPUTS = 16, 32


class CompiledLinear:
    """Implements `tokloom.sdk.Linear` over one packed bfloat16 matrix. Sums are float32; a row's result depends on how
    many rows there are, in the last bit.

    Args:
        weight: `[out, in]` bfloat16 on the host; `in` is even.
        bias: `[out]` or None.
        threads: at most so many work on one call.
        tiles: use AMX where the processor has it.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, threads: int, *, tiles: bool = True) -> None:
        self._out, self._in = weight.shape
        blocks, padded = -(-self._out // _LANES), -(-self._in // _INPUTS) * _INPUTS
        whole = F.pad(weight, (0, padded - self._in, 0, blocks * _LANES - self._out))
        self._packed = whole.view(blocks, _LANES, padded // 2, 2).permute(0, 2, 1, 3).contiguous()
        self._bias = None if bias is None else F.pad(bias.float(), (0, blocks * _LANES - self._out)).contiguous()
        self._threads = threads
        self._multiply = _bf16.multiply
        self._matrix = _bf16.matrix(
            self._packed.data_ptr(),
            0 if self._bias is None else self._bias.data_ptr(),
            self._in,
            padded,
            self._out,
            TILE_ROWS if tiles and _bf16.support() == 2 else _NEVER,
        )

    def apply(self, x: Tensor) -> Tensor:
        if x.stride(1) != 1:
            x = x.contiguous()
        rows = x.shape[0]
        y = x.new_empty(rows, self._out)
        self._multiply(self._matrix, self._threads, rows, x.data_ptr(), x.stride(0), y.data_ptr())
        return y

    def dequantize(self) -> Tensor:
        blocks, pairs = self._packed.shape[:2]
        whole = self._packed.permute(0, 2, 1, 3).reshape(blocks * _LANES, 2 * pairs)
        return whole[: self._out, : self._in].float()

    @property
    def nbytes(self) -> int:
        return self._packed.nbytes + (0 if self._bias is None else self._bias.nbytes)


def compiles(weight: Tensor) -> bool:
    """Whether the module was built, this processor can run it, and it takes the matrix."""
    fits = weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and weight.shape[1] % 2 == 0
    return fits and _bf16 is not None and bool(_bf16.support())
