"""DenseCodec: two planes per page, `k` and `v`, in the model's dtype."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from tokloom.sdk import FormatPair, KVFormat, LayerSpec, Pages

DTYPES: Final = ("float64", "float32", "bfloat16", "float16")


class DenseCodec:
    """Stores what it is given: `k` `[page_tokens, kv_heads, head_k]`, `v` `[page_tokens, kv_heads, head_v]`."""

    def formats(self, spec: LayerSpec, page_tokens: int) -> Sequence[FormatPair]:
        """See KVCodec. One layout; none for dtypes that are not plain floats."""
        if spec.dtype not in DTYPES:
            return ()
        p = spec.params
        id = f"dense-{spec.dtype}-{page_tokens}x{p.kv_heads}x{p.head_k}+{p.head_v}"
        planes = [
            ("k", spec.dtype, (page_tokens, p.kv_heads, p.head_k)),
            ("v", spec.dtype, (page_tokens, p.kv_heads, p.head_v)),
        ]
        return (FormatPair(KVFormat.pack(id, page_tokens, planes)),)

    @property
    def fingerprint(self) -> str:
        return "dense-1"

    @property
    def residual_tokens(self) -> int:
        return 0

    def append(self, layer: int, k: Tensor, v: Tensor, pages: Pages, slots: Tensor) -> None:
        """See KVCodec."""
        if slots.numel() == 0:
            return
        if int(slots.min()) < 0:
            kept = slots >= 0
            k, v, slots = k[kept], v[kept], slots[kept]
        page, offset = _locate(slots, pages)
        for plane, rows in ((pages.planes["k"], k), (pages.planes["v"], v)):
            plane.index_put_((page, offset), rows.to(plane.dtype))

    def read(self, layer: int, pages: Pages, page_ids: Tensor) -> tuple[Tensor, Tensor]:
        """See KVCodec."""
        k, v = (pages.planes[name].index_select(0, page_ids) for name in ("k", "v"))
        wide = torch.float64 if k.dtype == torch.float64 else torch.float32
        return k.to(wide), v.to(wide)

    def move(self, layer: int, pages: Pages, src: Tensor, dst: Tensor) -> None:
        """See KVCodec."""
        from_page, from_offset = _locate(src, pages)
        to_page, to_offset = _locate(dst, pages)
        for plane in pages.planes.values():
            # indexing copies, so every source is read before any destination is written
            plane[to_page, to_offset] = plane[from_page, from_offset]


def _locate(slots: Tensor, pages: Pages) -> tuple[Tensor, Tensor]:
    """Page and offset of each slot, both int64: a pool may hold more than 2^31 elements."""
    size = pages.format.page_tokens
    slots = slots.long()
    return torch.div(slots, size, rounding_mode="floor"), slots.remainder(size)
