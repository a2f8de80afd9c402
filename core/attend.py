"""Attend: what a model calls per layer: write keys and values, run the kernel over every segment, merge."""

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from tokloom.core.batch import StepRows, segments
from tokloom.core.composition import Composition
from tokloom.core.pools import PagePools
from tokloom.core.rows import Rows
from tokloom.sdk import (
    AttentionKernel,
    AttnBatch,
    AttnParams,
    AttnPlan,
    KVWriter,
    LayerwiseConnector,
    Pages,
    Transform,
    TransformingCodec,
)


class ScratchArena:
    """Implements `tokloom.sdk.Workspace`: one growing buffer, handed out piecewise within a step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)
        self._used = 0

    def reset(self) -> None:
        """Everything taken before may be overwritten."""
        self._used = 0

    def take(self, nbytes: int) -> Tensor:
        begin = -(-self._used // 64) * 64
        if begin + nbytes > self._buffer.numel():
            self._buffer = torch.empty(
                max(2 * nbytes, 2 * self._buffer.numel()), dtype=torch.uint8, device=self._device
            )
            begin = 0
        self._used = begin + nbytes
        return self._buffer[begin : begin + nbytes]


@frozen
class _Layer:
    """What one layer needs, bound once. `plan` is the place of its plans in a piece; keys are written to `target`."""

    layer: int
    params: AttnParams
    group: int
    plan: int
    pages: tuple[Pages, ...]
    target: Pages
    q_transform: Transform | None
    o_transform: Transform | None


@frozen
class _Piece:
    """Spans that one kernel takes: rows `[lo, hi)`, batches per group and plans per group and parameters."""

    kernel: AttentionKernel
    lo: int
    hi: int
    batches: dict[int, list[AttnBatch]]
    plans: list[list[AttnPlan]]


@frozen
class Captured:
    """A piece whose plans are replayed, with scratch memory of its own."""

    piece: _Piece
    workspace: ScratchArena


class Attend:
    """Implements `tokloom.sdk.AttentionCall`. `prepare` once per step, then called once per layer."""

    def __init__(self, composition: Composition, rows: Rows, pools: PagePools) -> None:
        self._composition = composition
        self._rows = rows
        self._decode = composition.decode
        self._prefill = composition.prefill
        self._verify = composition.verify
        self._one_kernel = composition.decode.plugin is composition.prefill.plugin and composition.decode.caps.mixed
        self._groups = [group for group in composition.layout.groups if group.owner == "model"]
        #: groups and parameters that need plans
        self._needed: list[tuple[int, AttnParams]] = []
        self._layers = self._bind_layers(pools)
        writer: KVWriter = composition.prefill.plugin  # type: ignore[assignment]  # capability `writes`
        self._write = writer.write if composition.writer else composition.codec.plugin.append
        self._layerwise: list[LayerwiseConnector] = [
            part.plugin  # type: ignore[misc]  # capability `layerwise`
            for part in composition.connectors
            if part.caps.layerwise
        ]
        self._workspace = ScratchArena(composition.device.torch_device)
        self._pieces: list[_Piece] = []
        self._slots: dict[int, Tensor] = {}
        self._plain = not self._layerwise and not any(b.q_transform or b.o_transform for b in self._layers.values())
        #: plans where one kernel takes one segment per group and nothing else happens around it, as in most steps
        self._direct: list[AttnPlan] | None = None
        self._step = 0

    def _bind_layers(self, pools: PagePools) -> dict[int, _Layer]:
        composition = self._composition
        transforming: TransformingCodec | None = None
        if composition.codec.caps.transforms and not composition.decode.caps.applies_transforms:
            transforming = composition.codec.plugin  # type: ignore[assignment]
        by_layer = {spec.layer: spec for spec in composition.model.spec.layers}
        layers: dict[int, _Layer] = {}
        for group in self._groups:
            main = pools.layers(group.id, "main")
            opens = pools.layers(group.id, "open") if group.open is not None else main
            for index, number in enumerate(group.layers):
                pages = (main[index],) if group.open is None else (main[index], opens[index])
                need = group.id, by_layer[number].params
                if need not in self._needed:
                    self._needed.append(need)
                layers[number] = _Layer(
                    number,
                    by_layer[number].params,
                    group.id,
                    self._needed.index(need),
                    pages,
                    pages[-1],
                    transforming.q_transform(number) if transforming else None,
                    transforming.o_transform(number) if transforming else None,
                )
        return layers

    def prepare(self, number: int, step: StepRows) -> None:
        """Plan attention for a step: once per kernel, group, segment and parameter set."""
        self._step = number
        self._workspace.reset()
        self._pieces = [self._piece(kernel, step, first, last) for kernel, first, last in self._split(step)]
        self._slots = {
            group.id: self._pieces[0].batches[group.id][0].slots
            if len(self._pieces) == 1
            else torch.cat([piece.batches[group.id][0].slots for piece in self._pieces])
            for group in self._groups
        }
        self._look_for_direct()

    def _look_for_direct(self) -> None:
        """The pieces of the step are known."""
        plans = self._pieces[0].plans
        single = self._plain and len(self._pieces) == 1 and all(len(own) == 1 for own in plans)
        self._direct = [own[0] for own in plans] if single else None

    def capture(self, size: int, batches: dict[int, AttnBatch]) -> Captured:
        """Plan a decode batch over static buffers, for recording."""
        workspace = ScratchArena(self._composition.device.torch_device)
        kernel = self._decode.plugin
        plans = [
            [kernel.plan(batches[group], params, workspace, capture=True, reuse=None)] for group, params in self._needed
        ]
        lists = {group: [batch] for group, batch in batches.items()}
        return Captured(_Piece(kernel, 0, size, lists, plans), workspace)

    def replan(self, captured: Captured, batches: dict[int, AttnBatch]) -> None:
        """The static buffers changed: update the plans of a recording in place."""
        for (group, params), plans in zip(self._needed, captured.piece.plans, strict=True):
            plans[0] = captured.piece.kernel.plan(
                batches[group], params, captured.workspace, capture=True, reuse=plans[0]
            )

    def use(self, captured: Captured) -> None:
        """Attend with a captured piece until the next `prepare`."""
        self._pieces = [captured.piece]
        self._slots = {group: batches[0].slots for group, batches in captured.piece.batches.items()}
        self._look_for_direct()

    def _split(self, step: StepRows) -> list[tuple[AttentionKernel, int, int]]:
        if self._one_kernel:
            return [(self._decode.plugin, 0, step.size)]
        middle = step.num_decode + step.num_verify
        cuts = [(self._decode, 0, step.num_decode)]
        cuts.append((self._verify, step.num_decode, middle))
        cuts.append((self._prefill, middle, step.size))
        return [(part.plugin, first, last) for part, first, last in cuts if last > first]

    def _piece(self, kernel: AttentionKernel, step: StepRows, first: int, last: int) -> _Piece:
        caps = (self._decode if kernel is self._decode.plugin else self._prefill).caps
        trim = "segments" in caps.features
        device = self._composition.device
        batches = {
            group.id: segments(device, self._rows, group, step, first, last, trim=trim) for group in self._groups
        }
        plans = [
            [kernel.plan(batch, params, self._workspace, capture=False, reuse=None) for batch in batches[group]]
            for group, params in self._needed
        ]
        return _Piece(kernel, int(step.indptr[first]), int(step.indptr[last]), batches, plans)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        bound = self._layers[layer]
        if self._direct is not None:
            self._write(layer, k, v, bound.target, self._slots[bound.group])
            out = torch.empty((q.shape[0], bound.params.q_heads, bound.params.head_v), dtype=q.dtype, device=q.device)
            self._pieces[0].kernel.run(layer, q, bound.target, self._direct[bound.plan], out, None)
            return out
        for connector in self._layerwise:
            connector.before_layer(self._step, layer)
        self._write(layer, k, v, bound.target, self._slots[bound.group])
        if bound.q_transform is not None:
            q = _transform(q, bound.q_transform, bound.params.kv_heads)
        out = torch.empty((q.shape[0], bound.params.q_heads, bound.params.head_v), dtype=q.dtype, device=q.device)
        if len(self._pieces) == 1:
            self._run(self._pieces[0], bound, q, out)
        else:
            for piece in self._pieces:
                self._run(piece, bound, q[piece.lo : piece.hi], out[piece.lo : piece.hi])
        if bound.o_transform is not None:
            out = _transform(out, bound.o_transform, bound.params.kv_heads)
        for connector in self._layerwise:
            connector.after_layer(self._step, layer)
        return out

    def _run(self, piece: _Piece, bound: _Layer, q: Tensor, out: Tensor) -> None:
        plans = piece.plans[bound.plan]
        if len(plans) == 1:
            piece.kernel.run(bound.layer, q, bound.pages[0], plans[0], out, None)
            return
        outs, lses = [], []
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        for pages, plan in zip(bound.pages, plans, strict=True):
            part = torch.empty_like(out)
            lse = torch.empty(out.shape[:2], dtype=wide, device=out.device)
            piece.kernel.run(bound.layer, q, pages, plan, part, lse)
            outs.append(part)
            lses.append(lse)
        out.copy_(merge(outs, lses))


def merge(outs: Sequence[Tensor], lses: Sequence[Tensor]) -> Tensor:
    """Combine attention over disjoint key sets: weights are `exp(lse - logsumexp(lses))`; rows without keys give 0."""
    lse = torch.stack(list(lses)).double()
    top = lse.amax(0, keepdim=True)
    weights = torch.exp(lse - torch.where(torch.isinf(top), torch.zeros_like(top), top))
    weights = weights / weights.sum(0, keepdim=True).clamp_min(1e-300)
    compute = torch.float64 if outs[0].dtype == torch.float64 else torch.float32
    stacked = torch.stack(list(outs)).to(compute)
    return (stacked * weights.to(compute).unsqueeze(-1)).sum(0).to(outs[0].dtype)


def _transform(x: Tensor, transform: Transform, kv_heads: int) -> Tensor:
    """Apply a per-kv-head map to `[T, heads, size]`."""
    if transform.scale is None and transform.matrix is None:
        return x
    grouped = x.view(x.shape[0], kv_heads, -1, x.shape[2])
    if transform.scale is not None:
        grouped = grouped * transform.scale.to(x.dtype).unsqueeze(1)
    if transform.matrix is not None:
        grouped = grouped @ transform.matrix.to(x.dtype)
    return grouped.flatten(1, 2)
