"""Weight methods against float64."""

import os
import random
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tokloom.plugins.quant.weights.dense.compiled import CompiledLinear, compiles
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


def assert_close(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Float32 sums in any order, rounded once to bfloat16."""
    exact = x.double() @ weight.double().T
    scale = x.double().abs() @ weight.double().abs().T
    if bias is not None:
        exact, scale = exact + bias.double(), scale + bias.double().abs()
    assert ((y.double() - exact).abs() <= exact.abs() * 2**-8 + scale * 2**-20).all()


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


def test_what_onednn_packs_is_multiplied_right() -> None:
    for rows, size in ((960, 576), (7, 13), (33, 1)):
        weight = matrices((rows,), size, 8)[0].bfloat16()
        linear = DenseWeights(compiled=False).finalize(desc((rows,), size, "bfloat16"), [{"weight": weight}], None)
        for count in (0, 1, 5, 70):
            x = matrices((count,), size, 9)[0].bfloat16()
            assert_close(linear.apply(x), x, weight, None)
        assert linear.nbytes == weight.nbytes


def test_without_packing_the_plain_matrix_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = matrices((16,), 32, 8)[0].bfloat16()
    x = matrices((3,), 32, 9)[0].bfloat16()
    monkeypatch.setattr("tokloom.plugins.quant.weights.dense.method._pack", lambda weight: None)
    linear = DenseWeights(compiled=False).finalize(desc((16,), 32, "bfloat16"), [{"weight": weight}], None)
    assert torch.equal(linear.apply(x), torch.nn.functional.linear(x, weight))


needs_compiled = pytest.mark.skipif(
    not compiles(torch.zeros(2, 2, dtype=torch.bfloat16)),
    reason="no compiled kernel: not built at installation, or the processor has no AVX512_BF16",
)


@needs_compiled
@pytest.mark.parametrize("tiles", [True, False])
@pytest.mark.parametrize("shape", [(960, 576), (37, 64), (16, 2), (100, 130), (49, 1538), (1, 32)])
def test_the_compiled_kernel_is_right_for_every_number_of_rows(shape: tuple[int, int], tiles: bool) -> None:
    """Against float64, with NaN around rows and results: padding is neither read nor written."""
    out, size = shape
    seed = random.randrange(1 << 30)
    print("seed", seed)
    weight, bias = matrices((out,), size, seed)[0].bfloat16(), matrices((1,), out, seed + 1)[0][0].bfloat16()
    for threads, biased in ((1, True), (2, False)):
        linear = CompiledLinear(weight, bias if biased else None, threads, tiles=tiles)
        assert torch.equal(linear.dequantize(), weight.float())
        for rows in (*range(20), 31, 32, 33, 63, 64, 65, 97, 130, 257):
            around = torch.full((rows, size + 9), float("nan"), dtype=torch.bfloat16)
            x = around[:, :size]
            x.copy_(matrices((rows,), size, seed + 2)[0])
            assert_close(linear.apply(x), x, weight, bias if biased else None)


@needs_compiled
def test_a_packed_matrix_takes_the_bytes_of_the_plain_one() -> None:
    weight = matrices((960,), 576, 3)[0].bfloat16()
    assert CompiledLinear(weight, None, 1).nbytes == weight.nbytes


@needs_compiled
def test_threads_that_end_take_their_buffers_along() -> None:
    linear = CompiledLinear(matrices((32,), 4096, 3)[0].bfloat16(), None, 1)
    x = matrices((128,), 4096, 4)[0].bfloat16()

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def multiply_in_threads(count: int) -> None:
        for _ in range(count):
            thread = threading.Thread(target=linear.apply, args=(x,))
            thread.start()
            thread.join()

    multiply_in_threads(5)
    before = resident()
    multiply_in_threads(60)
    assert resident() - before < 20 << 20
