"""Dense linear layers."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

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


class DenseWeights:
    """Implements `tokloom.sdk.WeightMethod`."""

    def claim(self, checkpoint: CheckpointInfo) -> int:
        return 0 if checkpoint.quant_method else 1

    def params(self, desc: LinearDesc) -> Sequence[ParamDesc]:
        return (ParamDesc("weight", (-1, desc.in_features)),)

    def finalize(self, desc: LinearDesc, parts: Sequence[Mapping[str, Tensor]], bias: Tensor | None) -> DenseLinear:
        dtype = getattr(torch, desc.dtype)
        weights = [part["weight"].to(dtype) for part in parts]
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        return DenseLinear(weight, None if bias is None else bias.to(dtype))
