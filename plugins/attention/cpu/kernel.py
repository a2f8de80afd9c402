"""CpuAttention: the kernel behind the offer `cpu`."""

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokloom.plugins.attention.cpu.plain import attend_rows
from tokloom.sdk import (
    Accepts,
    AttnBatch,
    AttnParams,
    AttnPlan,
    KVFormat,
    LayerSpec,
    Pages,
    PluginFault,
    Unsupported,
    Workspace,
)

_decode: Any
try:
    from tokloom.plugins.attention.cpu import _decode  # type: ignore[attr-defined, no-redef]  # compiled at installation
except ImportError:
    _decode = None

Ints = NDArray[np.int32]

#: key slots of one task; fixed, so that no result depends on the batch or the number of threads
SPLIT: Final = 512
FLOATS: Final = ("float64", "float32", "bfloat16", "float16")
#: what is compiled, and the module's names for it
QUERIES: Final = {"float32": 0, "bfloat16": 1}
KEYS: Final = {**QUERIES, "int8": 2}
#: multiplications below which one thread is as fast: waking another costs some ten microseconds, and far more on a
#: machine with other work
ALONE: Final = 1 << 19
LANES: Final = 16
MOST_FOLD: Final = 16
MOST_HEAD: Final = 256


class CpuAttention:
    """One query row at a time over its pages, without gathering them; long rows in runs of `SPLIT` slots.

    Compiled for pages of float32, bfloat16 or int8, queries of float32 or bfloat16, any page size, heads of a multiple
    of 16 up to 256 elements and at most 16 query heads per key head; other floats and sizes take torch operators, as do
    all without the compiled module. Trees, ALiBi and attention that is not causal are left to other kernels.
    """

    def __init__(self, threads: int, *, compiled: bool = True) -> None:
        self._threads = threads
        self._native: Any = _decode if compiled else None

    def accepts(self, spec: LayerSpec, format: KVFormat) -> Accepts | Unsupported:
        """See AttentionKernel."""
        p = spec.params
        if p.kv_heads < 1 or p.q_heads % p.kv_heads:
            return Unsupported(f"{p.q_heads} query heads are not a multiple of {p.kv_heads} key heads")
        head = (format.page_tokens, p.kv_heads)
        wanted: dict[str, tuple[int, ...]] = {"k": (*head, p.head_k), "v": (*head, p.head_v)}
        dtypes = {plane.name: plane.dtype for plane in format.planes}
        kind = dtypes.get("k")
        if kind == "int8":
            wanted |= {"k_scale": head, "v_scale": head}
            dtypes_ok = dtypes.get("k_scale") == dtypes.get("v_scale") == "float32"
        else:
            dtypes_ok = kind in FLOATS
        if {plane.name: plane.shape for plane in format.planes} != wanted:
            return Unsupported(f"pages of format {format.id}: it reads planes {wanted}")
        if not dtypes_ok or dtypes["v"] != kind or spec.dtype not in FLOATS:
            return Unsupported(f"queries of {spec.dtype} over planes of {dtypes}")
        return Accepts("" if self._compiled(p, spec.dtype, str(kind)) else "in torch operators")

    def _compiled(self, params: AttnParams, queries: str, keys: str) -> bool:
        sizes = (params.head_k, params.head_v)
        return (
            self._native is not None
            and queries in QUERIES
            and keys in KEYS
            and all(size % LANES == 0 and size <= MOST_HEAD for size in sizes)
            and params.q_heads // params.kv_heads <= MOST_FOLD
        )

    def plan(
        self, batch: AttnBatch, params: AttnParams, workspace: Workspace, *, capture: bool, reuse: AttnPlan | None
    ) -> "CpuPlan":
        """See AttentionKernel."""
        if capture or batch.tree is not None:
            raise PluginFault(
                "plan got a tree or a recording, which its capabilities exclude",
                subject="attention.cpu",
                remedy="Plan causal rows with capture=False",
            )
        return CpuPlan(batch, params, workspace)

    def run(self, layer: int, q: Tensor, pages: Pages, plan: AttnPlan, out: Tensor, lse: Tensor | None) -> None:
        """See AttentionKernel."""
        if not isinstance(plan, CpuPlan):
            raise PluginFault(
                f"run got a plan of type {type(plan).__name__}",
                subject="attention.cpu",
                remedy="Pass the plan that this kernel's plan() returned",
            )
        if not self._compiled(plan.params, _name(q), _name(pages.planes["k"])):
            slots, visible = plan.slots(pages.format.page_tokens)
            attend_rows(q, pages.planes, slots, visible, plan.params, plan.sinks, out, lse)
            return
        if q.stride(1) != q.shape[2] or q.stride(2) != 1:
            q = q.contiguous()
        if not out.is_contiguous() or (lse is not None and not lse.is_contiguous()):
            packed, sums = torch.empty(out.shape, dtype=out.dtype), None if lse is None else torch.empty(lse.shape)
            self.run(layer, q, pages, plan, packed, sums)
            out.copy_(packed)
            if lse is not None and sums is not None:
                lse.copy_(sums)
            return
        native = plan.native(self._native, pages, q)
        planes = pages.planes
        scales = (planes["k_scale"].data_ptr(), planes["v_scale"].data_ptr()) if "k_scale" in planes else (0, 0)
        self._native.run(
            native,
            self._threads if plan.work > ALONE else 1,
            q.data_ptr(),
            planes["k"].data_ptr(),
            planes["v"].data_ptr(),
            *scales,
            out.data_ptr(),
            0 if lse is None else lse.data_ptr(),
            q.stride(0),
            *plan.strides,
        )


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


class CpuPlan(AttnPlan):
    """Visible slots `[lo, hi)` of every row."""

    __slots__ = (
        "_native",
        "_partial",
        "_sequence",
        "_sinks",
        "_splits",
        "_tables",
        "_workspace",
        "hi",
        "lo",
        "params",
        "strides",
        "work",
    )

    def __init__(self, batch: AttnBatch, params: AttnParams, workspace: Workspace) -> None:
        self.params = params
        counts = np.diff(batch.q_indptr)
        self._sequence: Ints = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        start = batch.kv_start[self._sequence]
        positions = batch.positions.numpy()[: len(self._sequence)]
        lens = batch.device_kv_lens.numpy()[self._sequence]
        self.hi: Ints = np.clip(positions + 1 - start, 0, lens).astype(np.int32)
        low = np.zeros_like(self.hi) if params.window is None else np.maximum(positions + 1 - params.window - start, 0)
        self.lo: Ints = low.astype(np.int32)
        self._tables: Ints = np.ascontiguousarray(batch.tables.numpy(), dtype=np.int32)
        self.work = int(np.maximum(self.hi - self.lo, 0).sum()) * params.q_heads * (params.head_k + params.head_v)
        self._workspace = workspace
        self._sinks = np.array(params.sinks if batch.sinks_here else (), dtype=np.float32)
        self._splits = max(1, -(-int(self.hi.max(initial=0)) // SPLIT))
        self._native: Any = None
        self._partial: Tensor | None = None
        self.strides: tuple[int, ...] = ()

    @property
    def sinks(self) -> Tensor | None:
        """`[q_heads]`, if this segment applies them."""
        return torch.tensor(self.params.sinks, dtype=torch.float64) if len(self._sinks) else None

    def slots(self, page_tokens: int) -> tuple[Tensor, Tensor]:
        """Addresses `page * page_tokens + offset` `[T, L]` from each row's first visible slot on, and whether the row
        sees them.
        """
        slots = self.lo[:, None] + np.arange(int((self.hi - self.lo).max(initial=0)), dtype=np.int64)
        column = np.minimum(slots // page_tokens, max(0, self._tables.shape[1] - 1))
        pages = self._tables[self._sequence[:, None], column].astype(np.int64)
        visible = (slots < self.hi[:, None]) & (pages >= 0)
        addresses = np.where(visible, pages * page_tokens + slots % page_tokens, 0)
        return torch.from_numpy(addresses), torch.from_numpy(visible)

    def native(self, module: Any, pages: Pages, q: Tensor) -> Any:
        """The plan as the compiled module reads it; made at the first layer, since pages tell their strides."""
        if self._native is None:
            p, planes = self.params, pages.planes
            self._partial = self._workspace.take(len(self.hi) * p.q_heads * self._splits * (p.head_v + 2) * 4)
            scale = planes["k_scale"].stride()[:2] if "k_scale" in planes else (0, 0)
            self.strides = (*planes["k"].stride()[:3], *planes["v"].stride()[:3], *scale)
            self._native = module.plan(
                len(self.hi),
                p.kv_heads,
                p.q_heads // p.kv_heads,
                p.head_k,
                p.head_v,
                pages.format.page_tokens,
                self._splits,
                SPLIT,
                self._tables.shape[1],
                QUERIES[_name(q)],
                KEYS[_name(planes["k"])],
                self._sequence.ctypes.data,
                self.lo.ctypes.data,
                self.hi.ctypes.data,
                self._tables.ctypes.data,
                self._sinks.ctypes.data if len(self._sinks) else 0,
                self._partial.data_ptr(),
                p.scale,
                p.soft_cap or 0.0,
            )
        return self._native
