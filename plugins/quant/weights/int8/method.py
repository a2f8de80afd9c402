"""Int8 linear layers: `W[o, i] ~ codes[o, i] * scale[o]`, codes in -127..127."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from tokloom.sdk import CheckpointInfo, LinearDesc, ParamDesc

#: rows up to which the packed kernel beats decoding the matrix (measured on 2 cores with AVX-512, bf16)
FEW_ROWS = 8


class Int8Linear:
    """Implements `tokloom.sdk.Linear`. Few rows multiply the codes directly, many rows a decoded matrix."""

    def __init__(self, codes: Tensor, scale: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self._codes = codes
        self._scale = scale.to(dtype)
        self._bias = bias
        self._dtype = dtype
        # the packed kernel reads whole vectors of inputs and blocks of outputs without checking that they exist
        whole = codes.shape[0] % 16 == 0 and codes.shape[1] % 32 == 0
        self._packed = dtype == torch.bfloat16 and codes.device.type == "cpu" and whole

    def apply(self, x: Tensor) -> Tensor:
        if self._packed and x.shape[0] <= FEW_ROWS:
            y = torch._weight_int8pack_mm(x.contiguous(), self._codes, self._scale)
        else:
            y = F.linear(x, self._codes.to(self._dtype)).mul_(self._scale)
        return y if self._bias is None else y.add_(self._bias)

    def dequantize(self) -> Tensor:
        return self._codes.float() * self._scale.float().unsqueeze(1)

    @property
    def nbytes(self) -> int:
        bias = 0 if self._bias is None else self._bias.nbytes
        return self._codes.nbytes + self._scale.nbytes + bias


class Int8Weights:
    """Implements `tokloom.sdk.WeightMethod`."""

    def claim(self, checkpoint: CheckpointInfo) -> int:
        return 0 if checkpoint.quant_method else 1

    def params(self, desc: LinearDesc) -> Sequence[ParamDesc]:
        return (ParamDesc("weight", (-1, desc.in_features)),)

    def finalize(self, desc: LinearDesc, parts: Sequence[Mapping[str, Tensor]], bias: Tensor | None) -> Int8Linear:
        dtype = getattr(torch, desc.dtype)
        encoded = [_encode(part["weight"], dtype) for part in parts]
        codes = torch.cat([codes for codes, _ in encoded])
        scale = torch.cat([scale for _, scale in encoded])
        return Int8Linear(codes, scale, None if bias is None else bias.to(dtype), dtype)


def _encode(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Codes `[out, in]` int8 and scales `[out]`, rounded to the compute dtype first so that codes fit them."""
    wide = weight.double() if dtype == torch.float64 else weight.float()
    scale = (wide.abs().amax(1) / 127).to(dtype).to(wide.dtype)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    codes = (wide / scale.unsqueeze(1)).round().clamp(-127, 127).to(torch.int8)
    return codes, scale
