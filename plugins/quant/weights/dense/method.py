"""Dense linear layers: plain, or packed once for the processor: by our own kernel, else by oneDNN."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from tokloom.plugins.quant.weights.dense.compiled import CompiledLinear, compiles
from tokloom.sdk import CheckpointInfo, LinearDesc, ParamDesc


class DenseLinear:
    """Implements `tokloom.sdk.Linear` over one matrix."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def apply(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)

    def dequantize(self) -> Tensor:
        return self._weight.float()

    @property
    def nbytes(self) -> int:
        bias = 0 if self._bias is None else self._bias.nbytes
        return self._weight.nbytes + bias


class PackedLinear:
    """Implements `tokloom.sdk.Linear` over one matrix in the blocked layout of oneDNN.

    Given a plain matrix, oneDNN brings it into that layout at every call, which for a few rows takes longer than the
    multiplication.
    """

    def __init__(self, packed: Tensor, bias: Tensor | None) -> None:
        self._packed = packed
        self._bias = bias

    def apply(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return y

    def dequantize(self) -> Tensor:
        return self._packed.to_dense().float()

    @property
    def nbytes(self) -> int:
        bias = 0 if self._bias is None else self._bias.nbytes
        return self._packed.numel() * self._packed.element_size() + bias


class DenseWeights:
    """Implements `tokloom.sdk.WeightMethod`.

    Args:
        threads: at most so many work on one call of the compiled kernel.
        compiled: False leaves the compiled kernel out.
    """

    def __init__(self, threads: int = 1, *, compiled: bool = True) -> None:
        self._threads = threads
        self._compiled = compiled

    def claim(self, checkpoint: CheckpointInfo) -> int:
        return 0 if checkpoint.quant_method else 1

    def params(self, desc: LinearDesc) -> Sequence[ParamDesc]:
        return (ParamDesc("weight", (-1, desc.in_features)),)

    def finalize(
        self, desc: LinearDesc, parts: Sequence[Mapping[str, Tensor]], bias: Tensor | None
    ) -> DenseLinear | PackedLinear | CompiledLinear:
        dtype = getattr(torch, desc.dtype)
        weights = [part["weight"].to(dtype) for part in parts]
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        bias = None if bias is None else bias.to(dtype)
        if self._compiled and compiles(weight):
            return CompiledLinear(weight, bias, self._threads)
        packed = _pack(weight)
        return DenseLinear(weight, bias) if packed is None else PackedLinear(packed, bias)


def _pack(weight: Tensor) -> Tensor | None:
    """The matrix in oneDNN's layout, or None where this build of torch, this processor or this dtype has none."""
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16:
        return None
    try:
        with torch.inference_mode():
            packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 1)
            torch.ops.mkldnn._linear_pointwise(weight.new_zeros(1, weight.shape[1]), packed, None, "none", [], "")
    except (AttributeError, RuntimeError):  # operators that torch does not promise to keep
        return None
    return packed
