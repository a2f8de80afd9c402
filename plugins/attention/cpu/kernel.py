"""CpuAttention: the kernel behind the offer `cpu`."""

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokloom.plugins.attention.cpu.plain import attend_row
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

try:
    from tokloom.plugins.attention.cpu import _decode  # type: ignore[attr-defined]  # compiled at installation
except ImportError:
    _decode = None

Ints = NDArray[np.int32]

#: key slots of one task; fixed, so that no result depends on the batch or the number of threads
SPLIT: Final = 512
LANES: Final = 16
MOST_FOLD: Final = 16
MOST_HEAD: Final = 256


class CpuAttention:
    """One query row at a time over its pages, without gathering them; long rows in runs of `SPLIT` slots.

    Takes dense pages of float32 or bfloat16, any page size, heads of a multiple of 16 up to 256 elements, at most 16
    query heads per key head; other float formats and sizes take the torch path, as all do without the compiled module.
    Trees, ALiBi and attention that is not causal are left to other kernels.
    """

    def __init__(self, threads: int, *, compiled: bool = True) -> None:
        self._threads = threads
        self._native = _decode if compiled else None

    def accepts(self, spec: LayerSpec, format: KVFormat) -> Accepts | Unsupported:
        """See AttentionKernel."""
        p = spec.params
        if p.kv_heads < 1 or p.q_heads % p.kv_heads:
            return Unsupported(f"{p.q_heads} query heads are not a multiple of {p.kv_heads} key heads")
        planes = {plane.name: plane for plane in format.planes}
        head = (format.page_tokens, p.kv_heads)
        wanted = {"k": (*head, p.head_k), "v": (*head, p.head_v)}
        if {name: plane.shape for name, plane in planes.items()} != wanted:
            return Unsupported(f"pages of format {format.id}: it reads planes k {wanted['k']} and v {wanted['v']}")
        dtypes = {plane.dtype for plane in planes.values()} | {spec.dtype}
        if len(dtypes) > 1 or dtypes & {"int8", "uint8"}:
            return Unsupported(f"queries of {spec.dtype} over pages of {planes['k'].dtype} and {planes['v'].dtype}")
        return Accepts("" if self._compiled(p, spec.dtype) else "in torch operators")

    def _compiled(self, params: AttnParams, dtype: str) -> bool:
        sizes = (params.head_k, params.head_v)
        return (
            self._native is not None
            and dtype in ("float32", "bfloat16")
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
        k, v = pages.planes["k"], pages.planes["v"]
        if self._native is None or not self._compiled(plan.params, str(q.dtype).removeprefix("torch.")):
            for row in range(len(plan.hi)):
                attend_row(q[row], k, v, plan.slots(row, pages.format.page_tokens), plan.params, plan.sinks, out, lse, row)
            return
        if q.stride(1) != q.shape[2] or q.stride(2) != 1:
            q = q.contiguous()
        native = plan.native(self._native, k, v, q.dtype, pages.format.page_tokens)
        self._native.run(
            native,
            self._threads,
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            out.data_ptr(),
            0 if lse is None else lse.data_ptr(),
            q.stride(0),
            *plan.strides,
        )


class CpuPlan(AttnPlan):
    """Visible slots `[lo, hi)` of every row."""

    __slots__ = ("_native", "_partial", "_sequence", "_sinks", "_splits", "_tables", "_workspace", "hi", "lo", "params", "strides")

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
        self._workspace = workspace
        self._sinks = np.array(params.sinks if batch.sinks_here else (), dtype=np.float32)
        self._splits = max(1, -(-int(self.hi.max(initial=0)) // SPLIT))
        self._native: Any = None
        self._partial: Tensor | None = None
        self.strides: tuple[int, ...] = ()

    @property
    def sinks(self) -> "NDArray[np.float32]":
        return self._sinks

    def slots(self, row: int, page_tokens: int) -> "NDArray[np.int64]":
        """Addresses `page * page_tokens + offset` of the slots that a row sees."""
        seen = np.arange(self.lo[row], max(self.lo[row], self.hi[row]), dtype=np.int64)
        pages = self._tables[self._sequence[row], seen // page_tokens].astype(np.int64)
        return (pages * page_tokens + seen % page_tokens)[pages >= 0]

    def native(self, module: Any, k: Tensor, v: Tensor, dtype: torch.dtype, page_tokens: int) -> Any:
        """The plan as the compiled module reads it; made at the first layer, since pages tell their strides."""
        if self._native is None:
            p = self.params
            size = len(self.hi) * p.q_heads * self._splits * (p.head_v + 2) * 4
            self._partial = self._workspace.take(size)
            self.strides = (*k.stride()[:3], *v.stride()[:3])
            self._native = module.plan(
                len(self.hi),
                p.kv_heads,
                p.q_heads // p.kv_heads,
                p.head_k,
                p.head_v,
                page_tokens,
                self._splits,
                SPLIT,
                self._tables.shape[1],
                dtype == torch.bfloat16,
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
