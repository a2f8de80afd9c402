"""Operator sets against their definitions in float64."""

from typing import cast

import pytest
import torch
from torch import Tensor

from tokloom.plugins.ops.cpu import tokloom_ops
from tokloom.plugins.ops.cpu.ops import CpuOps, _rows
from tokloom.plugins.ops.torch.ops import TorchOps
from tokloom.sdk import CompositionError, Context, DeviceInfo, NoOptions, OpSet

needs_compiled = pytest.mark.skipif(_rows is None, reason="the extension module was not compiled: no C compiler")
OPS: dict[str, OpSet] = {
    "torch": TorchOps(),
    "cpu": CpuOps(2),
    "cpu_operators": CpuOps(2, compiled=False),
}
each_set = pytest.mark.parametrize(
    "ops", [pytest.param(ops, id=name, marks=needs_compiled if name == "cpu" else ()) for name, ops in OPS.items()]
)
each_dtype = pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
each_shape = pytest.mark.parametrize(("rows", "size"), [(1, 576), (3, 37), (600, 48), (0, 16), (2, 1)])
TOLERANCE = {"float64": 1e-12, "float32": 3e-6, "bfloat16": 2e-2, "float16": 3e-3}
EPS = 1e-5


def noise(seed: int, dtype: str, *shape: int, scale: float = 1.0) -> Tensor:
    print("seed", seed)
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, dtype=torch.float64, generator=generator) * scale).to(getattr(torch, dtype))


def assert_close(got: Tensor, want: Tensor, dtype: str) -> None:
    assert str(got.dtype) == f"torch.{dtype}"
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(got.double(), want, atol=tolerance, rtol=tolerance)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + EPS) * weight.double()


def stream(dtype: str) -> str:
    """The residual stream of a compute dtype."""
    return "float64" if dtype == "float64" else "float32"


@each_set
@each_dtype
@each_shape
@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e4])
def test_rms_norm(ops: OpSet, dtype: str, rows: int, size: int, scale: float) -> None:
    x, weight = noise(1, stream(dtype), rows, size, scale=scale), noise(2, stream(dtype), size)
    before = x.clone()
    got = ops.rms_norm(x, weight, EPS, getattr(torch, dtype))
    assert_close(got, normed(before, weight), dtype)
    assert torch.equal(x, before)


@each_set
@each_dtype
@each_shape
def test_add_rms_norm(ops: OpSet, dtype: str, rows: int, size: int) -> None:
    x, residual, weight = (
        noise(1, dtype, rows, size),
        noise(2, stream(dtype), rows, size),
        noise(3, stream(dtype), size),
    )
    before, total = x.clone(), residual.double() + x.double()
    got, after = ops.add_rms_norm(x, residual.clone(), weight, EPS)
    assert_close(got, normed(total, weight), dtype)
    assert_close(after, total, stream(dtype))
    assert torch.equal(x, before)


@each_set
@each_dtype
@pytest.mark.parametrize("apart", [False, True], ids=["joint", "apart"])
@pytest.mark.parametrize(
    ("rows", "heads", "kv_heads", "size"), [(1, 9, 3, 64), (40, 4, 1, 16), (300, 2, 2, 80), (0, 2, 1, 8)]
)
def test_rope(ops: OpSet, dtype: str, apart: bool, rows: int, heads: int, kv_heads: int, size: int) -> None:
    joint = noise(4, dtype, rows, (heads + 2 * kv_heads) * size)
    q, k, v = torch.split(joint.clone(), [heads * size, kv_heads * size, kv_heads * size], dim=-1)
    if apart:
        q, k = q.clone(), k.clone()
    angles = noise(5, stream(dtype), rows, size // 2, scale=3.0)
    given = [q.reshape(rows, heads, size).double().clone(), k.reshape(rows, kv_heads, size).double().clone()]
    turned = ops.rope(q.view(rows, heads, size), k.view(rows, kv_heads, size), angles.cos(), angles.sin())
    for x, got in zip(given, turned, strict=True):
        pair = torch.complex(x[..., : size // 2], x[..., size // 2 :])
        want = pair * torch.polar(torch.ones_like(angles.double()), angles.double()).unsqueeze(1)
        assert_close(got, torch.cat((want.real, want.imag), -1), dtype)
    assert torch.equal(v, joint[:, (heads + kv_heads) * size :])


@each_set
def test_angles_of_one_call_are_not_taken_for_another(ops: OpSet) -> None:
    for seed in (7, 8):
        q, angles = noise(seed, "float32", 5, 2, 8), noise(seed, "float32", 5, 4)
        want = ops.rope(q.clone(), q.clone(), angles.cos(), angles.sin())[0]
        fresh = TorchOps().rope(q.clone(), q.clone(), angles.cos(), angles.sin())[0]
        torch.testing.assert_close(want, fresh, atol=1e-6, rtol=1e-6)


@each_set
def test_embed_takes_rows(ops: OpSet) -> None:
    table = noise(9, "bfloat16", 11, 16)
    assert torch.equal(ops.embed(torch.tensor([3, 0, 3]), table), table[[3, 0, 3]])


@each_set
@each_dtype
@each_shape
def test_silu_mul(ops: OpSet, dtype: str, rows: int, size: int) -> None:
    gate_up = noise(6, dtype, rows, 2 * size, scale=3.0)
    gate_up[:1, :1], gate_up[-1:, :1] = 200.0, -200.0
    before = gate_up.clone()
    gate, up = before.double().chunk(2, -1)
    assert_close(ops.silu_mul(gate_up), gate * torch.sigmoid(gate) * up, dtype)
    assert torch.equal(gate_up, before)


@each_set
@each_dtype
@each_shape
def test_gelu_tanh_mul(ops: OpSet, dtype: str, rows: int, size: int) -> None:
    gate_up = noise(7, dtype, rows, 2 * size, scale=3.0)
    gate_up[:1, :1], gate_up[-1:, :1] = 200.0, -200.0
    before = gate_up.clone()
    gate, up = before.double().chunk(2, -1)
    inner = (2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)
    assert_close(ops.gelu_tanh_mul(gate_up), 0.5 * gate * (1 + torch.tanh(inner)) * up, dtype)
    assert torch.equal(gate_up, before)


@each_set
@each_dtype
@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("heads", [1, 3])
def test_norms_of_strided_heads(ops: OpSet, dtype: str, rows: int, heads: int) -> None:
    joint = noise(8, dtype, rows, (heads + 1) * 24, scale=30.0)
    x = joint[:, : heads * 24].view(rows, heads, 24)
    weight = noise(9, stream(dtype), heads, 24)
    before = joint.clone()
    assert_close(ops.rms_norm(x, weight, EPS, x.dtype), normed(x, weight), dtype)
    assert torch.equal(joint, before)


@each_set
@each_dtype
def test_norms_of_what_is_narrower_than_the_stream(ops: OpSet, dtype: str) -> None:
    x, weight = noise(10, dtype, 5, 48, scale=1e3), noise(11, stream(dtype), 48)
    assert_close(ops.rms_norm(x, weight, EPS, x.dtype), normed(x, weight), dtype)


@each_set
def test_not_a_number_stays_in_its_row(ops: OpSet) -> None:
    x, residual, weight = noise(1, "bfloat16", 3, 64), noise(2, "float32", 3, 64), noise(3, "float32", 64)
    x[1, 5] = torch.nan
    normal, _ = ops.add_rms_norm(x, residual, weight, EPS)
    assert bool(normal[1].isnan().all())
    assert bool(normal[[0, 2]].isfinite().all())
    gated = ops.silu_mul(x)
    assert bool(gated[1].isnan().any())
    assert bool(gated[[0, 2]].isfinite().all())


@needs_compiled
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_bit_depends_on_company_or_threads(dtype: str) -> None:
    x, residual, weight = noise(1, dtype, 100, 576), noise(2, "float32", 100, 576), noise(3, "float32", 576)
    for one, two in ((CpuOps(1), CpuOps(2)), (CpuOps(2), CpuOps(2))):
        together = one.add_rms_norm(x, residual.clone(), weight, EPS)[0], one.silu_mul(x)
        for row in (0, 57, 99):
            part = slice(row, row + 1)
            assert torch.equal(two.add_rms_norm(x[part], residual[part].clone(), weight, EPS)[0], together[0][part])
            assert torch.equal(two.silu_mul(x[part]), together[1][part])


def test_another_device_is_refused() -> None:
    class Elsewhere:
        device = DeviceInfo(type="cuda", name="cuda:0", threads=1, memory_bytes=1)

    (offer,) = tokloom_ops()
    with pytest.raises(CompositionError, match="cuda:0"):
        offer.factory(NoOptions(), cast(Context, Elsewhere()))
