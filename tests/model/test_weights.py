"""Weight methods and ops against float64."""

import pytest
import torch
from torch import Tensor

from tokloom.plugins.ops.torch.ops import TorchOps
from tokloom.plugins.quant.weights.dense.method import DenseWeights
from tokloom.plugins.quant.weights.int8.method import Int8Weights
from tokloom.sdk import CheckpointInfo, LinearDesc

DTYPES = {"float64": 1e-12, "float32": 2e-5, "bfloat16": 2e-2, "float16": 4e-3}


def desc(rows: tuple[int, ...], size: int, dtype: str, bias: bool = False) -> LinearDesc:
    parts = tuple(f"p{i}" for i in range(len(rows)))
    return LinearDesc(name="l", role="mlp_in", parts=parts, out_parts=rows, in_features=size, bias=bias, dtype=dtype)


def matrices(rows: tuple[int, ...], size: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(r, size, generator=generator, dtype=torch.float64) / size**0.5 for r in rows]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 2, 8, 9, 40])
@pytest.mark.parametrize("method", [DenseWeights, Int8Weights])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [((7, 33, 5), 46), ((16, 48), 64)])
def test_apply_multiplies_by_what_dequantize_says(
    method: type, dtype: str, count: int, bias: bool, shape: tuple[tuple[int, ...], int]
) -> None:
    rows, size = shape
    linear_desc = desc(rows, size, dtype, bias)
    b = matrices((sum(rows),), 1, 5)[0].flatten() if bias else None
    linear = method().finalize(linear_desc, [{"weight": w} for w in matrices(rows, size, count)], b)
    x = matrices((count,), size, 99)[0].to(getattr(torch, dtype))
    before = x.clone()
    y = linear.apply(x)
    expected = x.double() @ linear.dequantize().double().T + (b.to(x.dtype).double() if b is not None else 0)
    assert y.dtype == x.dtype
    assert torch.equal(x, before)
    tolerance = max(DTYPES[dtype], 1e-6 if method is Int8Weights or dtype == "float64" else 0)
    assert (y.double() - expected).abs().max() <= tolerance * max(1.0, expected.abs().max().item())


@pytest.mark.parametrize("dtype", DTYPES)
def test_dense_keeps_the_rounded_checkpoint(dtype: str) -> None:
    parts = matrices((4, 3), 8, 0)
    linear = DenseWeights().finalize(desc((4, 3), 8, dtype), [{"weight": w} for w in parts], None)
    assert torch.equal(linear.dequantize(), torch.cat(parts).to(getattr(torch, dtype)).float())


@pytest.mark.parametrize("dtype", DTYPES)
def test_int8_rounds_each_channel_to_half_a_step(dtype: str) -> None:
    weight = matrices((64,), 96, 3)[0] * torch.logspace(-6, 3, 64, dtype=torch.float64).unsqueeze(1)
    weight[5] = 0
    weight[6, 0] = 1e4  # an outlier
    linear = Int8Weights().finalize(desc((64,), 96, dtype), [{"weight": weight.clone()}], None)
    step = weight.abs().amax(1, keepdim=True) / 127
    margin = {"bfloat16": 1.6, "float16": 2.5}.get(dtype, 1.001)
    small = weight.abs().amax(1) > (1e-4 if dtype == "float16" else 0)
    error = (linear.dequantize().double() - weight).abs()
    assert (error <= 0.5 * step * margin + step * 127 * (2**-8 if dtype != "float32" else 2**-20))[small].all()
    assert torch.equal(linear.dequantize()[5], torch.zeros(96))


def test_int8_halves_the_bytes() -> None:
    weight = matrices((128,), 256, 0)[0]
    dense = DenseWeights().finalize(desc((128,), 256, "bfloat16"), [{"weight": weight}], None)
    int8 = Int8Weights().finalize(desc((128,), 256, "bfloat16"), [{"weight": weight}], None)
    assert int8.nbytes < 0.52 * dense.nbytes


@pytest.mark.parametrize("method", [DenseWeights(), Int8Weights()])
def test_foreign_checkpoints_are_not_claimed(method: DenseWeights | Int8Weights) -> None:
    assert method.claim(CheckpointInfo("gptq", {}, {})) == 0
    assert method.claim(CheckpointInfo("", {}, {})) > 0


# -- ops --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_ops_equal_their_definitions(dtype: str) -> None:
    kind, tolerance = getattr(torch, dtype), max(DTYPES[dtype], 1e-10)
    ops = TorchOps()
    x, r = (m.to(kind) for m in matrices((6, 6), 40, 1))
    weight = matrices((1,), 40, 2)[0][0].to(kind)

    def norm(t: Tensor) -> Tensor:
        return t / (t.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()

    assert (ops.rms_norm(x, weight, 1e-5, kind).double() - norm(x.double())).abs().max() < tolerance
    total = x.double() + r.double()
    normed, summed = ops.add_rms_norm(x.clone(), r.clone(), weight, 1e-5)
    assert (summed.double() - total).abs().max() < tolerance
    assert (normed.double() - norm(summed.double())).abs().max() < tolerance
    gate, up = x.double().chunk(2, -1)
    assert (ops.silu_mul(x).double() - gate * torch.sigmoid(gate) * up).abs().max() < tolerance
    assert torch.equal(ops.embed(torch.tensor([3, 0, 3]), r), r[[3, 0, 3]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rope_rotates_pairs_of_halves(dtype: str) -> None:
    kind, tolerance = getattr(torch, dtype), max(DTYPES[dtype], 1e-6)
    generator = torch.Generator().manual_seed(4)
    q = torch.randn(5, 3, 8, generator=generator, dtype=torch.float64).to(kind)
    k = torch.randn(5, 1, 8, generator=generator, dtype=torch.float64).to(kind)
    angles = torch.arange(5).double().unsqueeze(1) * torch.tensor([1.0, 0.3, 0.1, 0.01]).double()
    ops = TorchOps()
    for _ in range(2):  # a second call with other angles must not reuse the first ones
        cos, sin = angles.cos(), angles.sin()
        turned = ops.rope(
            q.clone(), k.clone(), cos.float() if dtype != "float64" else cos, sin.float() if dtype != "float64" else sin
        )
        for before, after in zip((q, k), turned, strict=True):
            pairs = torch.complex(before.double()[..., :4], before.double()[..., 4:]) * torch.polar(
                torch.ones_like(angles), angles
            ).unsqueeze(1)
            expected = torch.cat((pairs.real, pairs.imag), -1)
            assert after.dtype == kind
            assert (after.double() - expected).abs().max() < tolerance * 4
        angles = angles * 2 + 1


def test_a_wider_residual_stays_wide() -> None:
    x = torch.randn(3, 16).bfloat16()
    residual = torch.randn(3, 16)
    normed, total = TorchOps().add_rms_norm(x, residual.clone(), torch.ones(16), 1e-6)
    assert normed.dtype == torch.bfloat16
    assert total.dtype == torch.float32
    assert torch.equal(total, residual + x)
