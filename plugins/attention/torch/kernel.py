"""TorchAttention: the kernel behind the offer `torch`."""

from typing import Final

import torch
from torch import Tensor

from tokloom.plugins.attention.torch.plan import TorchPlan
from tokloom.sdk import (
    Accepts,
    AttnBatch,
    AttnParams,
    AttnPlan,
    KVFormat,
    KVPlane,
    LayerSpec,
    Pages,
    PluginFault,
    Unsupported,
    Workspace,
)

FLOATS: Final = ("float64", "float32", "bfloat16", "float16")


class TorchAttention:
    """Attention over paged keys and values in torch operators.

    Per step and parameter set, `plan` cuts the batch into tiles, groups like tiles and decides visibility; the first
    `run` looks the groups up in the page tables, which needs the page size; each `run` is a few operators per group::

        plan          cut ── group ── visibility
        run, layer 0  bind (tables → rows, masks → dtype) ── gather k, v ── attend ── scatter
        run, layer i                                         gather k, v ── attend ── scatter

    Stateless between steps; plans are independent of each other and may be alive together.
    """

    def accepts(self, spec: LayerSpec, format: KVFormat) -> Accepts | Unsupported:
        """See AttentionKernel. Any format whose planes are `k`, `v` of floats, or of int8 with `k_scale`, `v_scale`."""
        reason = _params_fault(spec.params) or _format_fault(spec.params, format)
        if not reason and spec.dtype not in FLOATS:
            reason = f"queries of dtype {spec.dtype}"
        if reason:
            return Unsupported(reason)
        dtypes = {plane.name: plane.dtype for plane in format.planes}
        note = "" if dtypes["k"] == dtypes["v"] == spec.dtype else f"keys and values are converted to {spec.dtype}"
        return Accepts(note)

    def plan(
        self, batch: AttnBatch, params: AttnParams, workspace: Workspace, *, capture: bool, reuse: AttnPlan | None
    ) -> TorchPlan:
        """See AttentionKernel. Reads positions, lengths and tree on the host."""
        if capture:
            raise PluginFault(
                "this kernel cannot be recorded into a graph",
                subject="attention.torch",
                remedy='It declares graph="none": plan with capture=False',
            )
        return TorchPlan(batch, params)

    def run(self, layer: int, q: Tensor, pages: Pages, plan: AttnPlan, out: Tensor, lse: Tensor | None) -> None:
        """See AttentionKernel."""
        if not isinstance(plan, TorchPlan):
            raise PluginFault(
                f"run got a plan of type {type(plan).__name__}",
                subject="attention.torch",
                remedy="Pass the plan that this kernel's plan() returned",
            )
        with torch.no_grad():
            plan.run(q, pages, out, lse)


def _params_fault(params: AttnParams) -> str:
    if params.kv_heads < 1 or params.q_heads % params.kv_heads:
        return f"{params.q_heads} query heads are not a multiple of {params.kv_heads} key heads"
    if params.window is not None and params.window < 1:
        return f"a window of {params.window} keys"
    for name, values in (("sinks", params.sinks), ("alibi", params.alibi)):
        if values and len(values) != params.q_heads:
            return f"{len(values)} {name} for {params.q_heads} query heads"
    return ""


def _format_fault(params: AttnParams, format: KVFormat) -> str:
    """Why the planes of a format cannot be read, or nothing."""
    planes = {plane.name: plane for plane in format.planes}
    head = (format.page_tokens, params.kv_heads)
    quantised = "k" in planes and planes["k"].dtype == "int8"
    wanted: dict[str, tuple[int, ...]] = {"k": (*head, params.head_k), "v": (*head, params.head_v)}
    if quantised:
        wanted |= {"k_scale": head, "v_scale": head}
    if planes.keys() != wanted.keys():
        return f"format {format.id} has planes {', '.join(sorted(planes))}; wanted {', '.join(sorted(wanted))}"
    return next((fault for name in wanted if (fault := _plane_fault(planes[name], wanted[name], quantised))), "")


def _plane_fault(plane: KVPlane, shape: tuple[int, ...], quantised: bool) -> str:
    if plane.shape != shape:
        return f"plane {plane.name} has shape {plane.shape}; wanted {shape}"
    dtypes = ("int8",) if quantised and not plane.name.endswith("_scale") else FLOATS
    return "" if plane.dtype in dtypes else f"plane {plane.name} has dtype {plane.dtype}"
