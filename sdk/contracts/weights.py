"""WeightMethod: how linear layers are stored and multiplied."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from attrs import frozen

if TYPE_CHECKING:
    from torch import Tensor


@frozen(kw_only=True)
class WeightCaps:
    """What a weight method promises.

    Attributes:
        lossless: `dequantize` returns the checkpoint's values rounded to the compute dtype.
        batch_invariant: a row's result does not depend on the other rows, bit for bit.
    """

    lossless: bool = False
    batch_invariant: bool = False


@frozen(kw_only=True)
class LinearDesc:
    """One linear layer `y = x @ weight.T + bias`, possibly several checkpoint matrices stacked along the output.

    Attributes:
        name: where it stands in the model, for errors: `layers.0.qkv`.
        role: what it does; a method may treat roles differently.
        parts: checkpoint names of the stacked matrices without their suffix, in order (`….q_proj`, `….k_proj`, …).
        in_features, out_features: sizes; `out_parts` sums to `out_features`.
        dtype: compute dtype.
    """

    name: str
    role: Literal["attn_in", "attn_out", "mlp_in", "mlp_out", "head"]
    parts: tuple[str, ...]
    out_parts: tuple[int, ...]
    in_features: int
    bias: bool
    dtype: str

    @property
    def out_features(self) -> int:
        return sum(self.out_parts)


@frozen
class ParamDesc:
    """A tensor the method wants of each part: `part + "." + suffix`, with its shape (-1: any extent)."""

    suffix: str
    shape: tuple[int, ...]
    optional: bool = False


@frozen
class CheckpointInfo:
    """What a checkpoint says of itself, for `claim`.

    Attributes:
        quant_method: the checkpoint's own declaration (`gptq`, `awq`, …); empty if none.
        quant_config: its fields as text.
        tensors: tensor names -> dtype names.
    """

    quant_method: str
    quant_config: Mapping[str, str]
    tensors: Mapping[str, str]


class Linear(Protocol):
    """A finished linear layer."""

    def apply(self, x: "Tensor") -> "Tensor":
        """`[T, in] -> [T, out]` in x's dtype; x is not modified."""
        ...

    def dequantize(self) -> "Tensor":
        """The matrix `[out, in]` in float32 that `apply` multiplies by. The oracle."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        ...


class WeightMethod(Protocol):
    """Call order: `claim` at composition; per linear layer `params` and then `finalize` with what the loader read."""

    def claim(self, checkpoint: CheckpointInfo) -> int:
        """0: cannot read this checkpoint; larger: better suited."""
        ...

    def params(self, desc: LinearDesc) -> Sequence[ParamDesc]:
        """Tensors wanted per part, besides an optional `bias`, which the loader handles."""
        ...

    def finalize(self, desc: LinearDesc, parts: "Sequence[Mapping[str, Tensor]]", bias: "Tensor | None") -> Linear:
        """Build the layer from each part's tensors by suffix. Deterministic; inputs may be consumed."""
        ...
