"""Int8Codec: symmetric 8-bit integers, one float32 scale per token and head."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from tokloom.sdk import FormatPair, KVFormat, LayerSpec, Pages

DTYPES: Final = ("float64", "float32", "bfloat16", "float16")
LEVELS: Final = 127
#: the largest float32 scale whose 127-fold is still finite
LARGEST_SCALE: Final = float.fromhex("0x1.020406p+121")
#: float32's smallest step, which stands in for a scale of zero in divisions
SMALLEST_SCALE: Final = 2.0**-149


class Int8Codec:
    """A row x of one token and head is stored as `round(x / scale)` with `scale = max|x| / 127`.

    Planes `k`, `v` int8 `[page_tokens, kv_heads, head]` and `k_scale`, `v_scale` float32 `[page_tokens, kv_heads]`. A
    value is off by at most half a scale (and by float32's rounding). Rows of zeros read back as zeros; rows above the
    range of `LEVELS * LARGEST_SCALE` saturate.
    """

    def formats(self, spec: LayerSpec, page_tokens: int) -> Sequence[FormatPair]:
        """See KVCodec. One layout, the same for every float dtype."""
        if spec.dtype not in DTYPES:
            return ()
        p = spec.params
        id = f"int8-token-head-{page_tokens}x{p.kv_heads}x{p.head_k}+{p.head_v}"
        planes = [
            ("k", "int8", (page_tokens, p.kv_heads, p.head_k)),
            ("v", "int8", (page_tokens, p.kv_heads, p.head_v)),
            ("k_scale", "float32", (page_tokens, p.kv_heads)),
            ("v_scale", "float32", (page_tokens, p.kv_heads)),
        ]
        return (FormatPair(KVFormat.pack(id, page_tokens, planes)),)

    @property
    def fingerprint(self) -> str:
        return "int8-token-head-1"

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
        if k.shape == v.shape:
            # one pass over both: the rows are independent, and a decode step is bound by calls
            codes, scale = _encode(torch.cat((k, v), dim=1))
            (k_codes, v_codes), (k_scale, v_scale) = codes.chunk(2, 1), scale.chunk(2, 1)
        else:
            (k_codes, k_scale), (v_codes, v_scale) = _encode(k), _encode(v)
        for name, rows in (("k", k_codes), ("v", v_codes), ("k_scale", k_scale), ("v_scale", v_scale)):
            pages.planes[name][page, offset] = rows

    def read(self, layer: int, pages: Pages, page_ids: Tensor) -> tuple[Tensor, Tensor]:
        """See KVCodec."""
        k, v = (
            pages.planes[name].index_select(0, page_ids).float()
            * pages.planes[f"{name}_scale"].index_select(0, page_ids).unsqueeze(-1)
            for name in ("k", "v")
        )
        return k, v

    def move(self, layer: int, pages: Pages, src: Tensor, dst: Tensor) -> None:
        """See KVCodec."""
        from_page, from_offset = _locate(src, pages)
        to_page, to_offset = _locate(dst, pages)
        for plane in pages.planes.values():
            # indexing copies, so every source is read before any destination is written
            plane[to_page, to_offset] = plane[from_page, from_offset]


def _encode(rows: Tensor) -> tuple[Tensor, Tensor]:
    """`[T, heads, size]` to int8 codes and float32 scales `[T, heads]`, each row by itself."""
    wide = rows if rows.dtype == torch.float64 else rows.float()
    scale = (torch.linalg.vector_norm(wide, torch.inf, -1) / LEVELS).clamp_(max=LARGEST_SCALE).float()
    divisor = scale.clamp(min=SMALLEST_SCALE).unsqueeze(-1)
    return (wide / divisor).round_().clamp_(-LEVELS, LEVELS).to(torch.int8), scale


def _locate(slots: Tensor, pages: Pages) -> tuple[Tensor, Tensor]:
    """Page and offset of each slot, both int64: a pool may hold more than 2^31 elements."""
    size = pages.format.page_tokens
    slots = slots.long()
    return torch.div(slots, size, rounding_mode="floor"), slots.remainder(size)
