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

    Compiled for dense pages of float32 or bfloat16, any page size, heads of a multiple of 16 up to 256 elements and at
    most 16 query heads per key head; other float formats and sizes take torch operators, as all do without the compiled
    module. Trees, ALiBi and attention that is not causal are left to other kernels.
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
            slots, visible = plan.slots(pages.format.page_tokens)
            attend_rows(q, k, v, slots, visible, plan.params, plan.sinks, out, lse)
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
