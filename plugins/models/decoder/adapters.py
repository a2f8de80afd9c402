"""Adapters: low-rank additions to linear layers, chosen row by row.

A linear layer gets a wrapper when the first adapter that changes it is loaded; without adapters nothing is different.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import attrs
import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

from tokloom.plugins.models.decoder.adapter_file import AdapterFile
from tokloom.plugins.models.decoder.mlp import Gated
from tokloom.sdk import AdapterInfo, AdapterRows, CheckpointError, Linear, LinearDesc

Part = TypeVar("Part", bound=attrs.AttrsInstance)
#: rows of a batch: a run of them, or their numbers `[n]` on the device
RowIndex = slice | Tensor


@frozen
class _Up:
    """B of one stacked matrix, `[out, rank]` and scaled: from columns `ranks` of `x @ A.T` to columns `outs` of y."""

    matrix: Tensor
    ranks: slice
    outs: slice


@frozen
class LoraPair:
    """An adapter of one linear layer: the A of all its stacked matrices packed into one `[ranks, in]`, and their Bs."""

    down: Tensor
    ups: tuple[_Up, ...]

    @property
    def nbytes(self) -> int:
        return self.down.nbytes + sum(up.matrix.nbytes for up in self.ups)

    def add(self, x: Tensor, y: Tensor, rows: RowIndex) -> None:
        """`y[rows] += x[rows] @ A.T @ B.T`, in place."""
        inner = F.linear(x[rows], self.down)
        for up in self.ups:
            change = F.linear(inner[:, up.ranks], up.matrix)
            if isinstance(rows, slice):
                y[rows, up.outs] += change
            else:
                y[:, up.outs].index_add_(0, rows, change)


class Selection:
    """Which rows of the batch at hand use which adapter; set at the beginning of a forward pass, valid during it."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, RowIndex]] = []

    def set(self, adapters: Sequence[AdapterRows], device: torch.device) -> None:
        self.rows = [(entry.digest, _index(entry.ranges, device)) for entry in adapters]


def _index(ranges: Sequence[tuple[int, int]], device: torch.device) -> RowIndex:
    if len(ranges) == 1:
        return slice(*ranges[0])
    return torch.cat([torch.arange(first, stop) for first, stop in ranges]).to(device)


class AdaptedLinear:
    """Implements `tokloom.sdk.Linear`: a linear layer and, for rows that use one, the change of their adapter."""

    def __init__(self, inner: Linear, selection: Selection) -> None:
        self._inner = inner
        self._selection = selection
        self.pairs: dict[str, LoraPair] = {}

    def apply(self, x: Tensor) -> Tensor:
        y = self._inner.apply(x)
        for digest, rows in self._selection.rows:
            pair = self.pairs.get(digest)
            if pair is not None:
                pair.add(x, y, rows)
        return y

    def dequantize(self) -> Tensor:
        return self._inner.dequantize()

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes + sum(pair.nbytes for pair in self.pairs.values())


class Adapters:
    """The adapters of one loaded model.

    Args:
        descs: its linear layers; `layers.3.qkv` is the attribute `qkv` of layer 3, or of a part of it.
    """

    def __init__(self, descs: Sequence[LinearDesc], dtype: torch.dtype, device: str) -> None:
        self._descs = tuple(descs)
        self._dtype = dtype
        self._device = torch.device(device)
        self._selection = Selection()
        self.nbytes = 0

    def select(self, rows: Sequence[AdapterRows]) -> None:
        """A forward pass over these rows begins."""
        self._selection.set(rows, self._device)

    def load(self, path: Path, layers: Sequence[Part]) -> tuple[AdapterInfo, tuple[Part, ...]]:
        """The layers with the adapter in them. Raises CheckpointError, and changes nothing, where it does not fit."""
        file = AdapterFile(path, self._descs, self._dtype.itemsize)
        pairs = {desc.name: pair for desc in self._descs if (pair := self._pair(desc, file)) is not None}
        held = {name for number, layer in enumerate(layers) for name in _linears(f"layers.{number}", layer)}
        for name in pairs.keys() - held:
            raise CheckpointError(
                f"adapters of {name} are not supported", subject=file.config.subject, remedy="Use another adapter"
            )
        self.nbytes += sum(pair.nbytes for pair in pairs.values())
        digest = file.info.digest
        adapted = tuple(self._adapt(f"layers.{n}", layer, digest, pairs) for n, layer in enumerate(layers))
        return file.info, adapted

    def _pair(self, desc: LinearDesc, file: AdapterFile) -> LoraPair | None:
        downs: list[Tensor] = []
        ups: list[_Up] = []
        rank = column = 0
        for part, out in zip(desc.parts, desc.out_parts, strict=True):
            if part in file.modules:
                down, up = file.read(part)
                matrix = up.to(_wide(self._dtype)) * file.config.scale_of(part)
                ups.append(_Up(self._held(matrix), slice(rank, rank + len(down)), slice(column, column + out)))
                downs.append(down.to(_wide(self._dtype)))
                rank += len(down)
            column += out
        return LoraPair(self._held(torch.cat(downs)), tuple(ups)) if downs else None

    def _held(self, matrix: Tensor) -> Tensor:
        return matrix.to(self._device, self._dtype)

    def _adapt(self, name: str, part: Part, digest: str, pairs: dict[str, LoraPair]) -> Part:
        changed: dict[str, AdaptedLinear | Gated] = {}
        for field in attrs.fields(type(part)):
            value = getattr(part, field.name)
            if isinstance(value, Gated):
                changed[field.name] = self._adapt(name, value, digest, pairs)
                continue
            pair = pairs.get(f"{name}.{field.name}")
            if pair is None:
                continue
            adapted = value if isinstance(value, AdaptedLinear) else AdaptedLinear(value, self._selection)
            adapted.pairs[digest] = pair
            changed[field.name] = adapted
        return attrs.evolve(part, **changed)  # type: ignore[misc]  # whatever attrs class a part is


def _linears(name: str, part: attrs.AttrsInstance) -> Iterator[str]:
    """Names of the linear layers that can be adapted: those of experts cannot, they see rows in another order."""
    for field in attrs.fields(type(part)):
        value = getattr(part, field.name)
        if isinstance(value, Gated):
            yield from _linears(name, value)
        elif hasattr(value, "apply") and hasattr(value, "dequantize"):
            yield f"{name}.{field.name}"


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
