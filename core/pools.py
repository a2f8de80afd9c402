"""PagePools: the memory of KV pages, and the operations on whole pages."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tokloom.core.device import TORCH_DTYPES, Device, to_host
from tokloom.sdk import (
    CopyPage,
    GroupId,
    KVCodec,
    KVFormat,
    KVGroup,
    KVLayout,
    PageId,
    PageOp,
    Pages,
    Pool,
    SealingCodec,
    SealPage,
)


class PagePools:
    """One uint8 buffer `[layers, pages, page_bytes]` per group and pool, and typed views of every plane.

    Implements `tokloom.sdk.PageAccess`.

    Args:
        poison: fill fresh memory with 0xFF bytes (NaN in every float plane), so that whoever reads what nobody wrote
            shows it. Otherwise it is left as it comes, and costs nothing until it is used.
    """

    def __init__(self, layout: KVLayout, device: Device, codec: KVCodec, *, poison: bool = False) -> None:
        self._poison = poison
        self._layout = layout
        self._codec = codec
        self._buffers: dict[tuple[GroupId, Pool], Tensor] = {}
        self._pages: dict[tuple[GroupId, Pool], tuple[Pages, ...]] = {}
        for group in layout.groups:
            self._make(group, "main", group.main, layout.main_pages[group.id], device)
            if group.open is not None:
                self._make(group, "open", group.open, layout.open_pages[group.id], device)

    def _make(self, group: KVGroup, pool: Pool, format: KVFormat, pages: int, device: Device) -> None:
        shape = (len(group.layers), pages, format.page_bytes)
        buffer = torch.empty(shape, dtype=torch.uint8, device=device.torch_device)
        if self._poison:
            buffer.fill_(0xFF)
        self._buffers[group.id, pool] = buffer
        self._pages[group.id, pool] = tuple(_views(format, buffer[index]) for index in range(len(group.layers)))

    def layers(self, group: GroupId, pool: Pool) -> tuple[Pages, ...]:
        """The pool of each of the group's layers, in order."""
        return self._pages[group, pool]

    @property
    def total_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.numel() for buffer in self._buffers.values())

    def read(self, group: GroupId, page: PageId) -> Tensor:
        return to_host(self._buffers[group, "main"][:, page])

    def write(self, group: GroupId, page: PageId, data: Tensor) -> None:
        self._buffers[group, "main"][:, page].copy_(data)

    def nbytes(self, group: GroupId) -> int:
        buffer = self._buffers[group, "main"]
        return buffer.shape[0] * buffer.shape[2]

    def execute(self, ops: Sequence[PageOp]) -> None:
        """Run page operations in emission order."""
        for op in ops:
            if isinstance(op, SealPage):
                self._seal(op)
            elif isinstance(op, CopyPage):
                buffer = self._buffers[op.group, op.pool]
                buffer[:, op.dst].copy_(buffer[:, op.src])
            else:
                self._buffers[op.group, op.pool][:, op.page].zero_()

    def _seal(self, op: SealPage) -> None:
        codec: SealingCodec = self._codec  # type: ignore[assignment]  # capability `seals`, checked at composition
        device = self._buffers[op.group, "open"].device
        source = torch.tensor([op.src], device=device)
        target = torch.tensor([op.dst], device=device)
        opens, mains = self._pages[op.group, "open"], self._pages[op.group, "main"]
        for layer, open_pages, main_pages in zip(self._layout.groups[op.group].layers, opens, mains, strict=True):
            codec.seal(layer, open_pages, source, main_pages, target)


def _views(format: KVFormat, pages: Tensor) -> Pages:
    """`[pages, page_bytes]` uint8 -> a typed view `[pages, *shape]` of each plane."""
    planes = {
        plane.name: pages[:, plane.offset : plane.offset + plane.nbytes]
        .view(TORCH_DTYPES[plane.dtype])
        .view(-1, *plane.shape)
        for plane in format.planes
    }
    return Pages(format, planes)
