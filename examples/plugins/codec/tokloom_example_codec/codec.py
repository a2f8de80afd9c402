"""HalfCodec: planes k and v of float16, one row per token."""

from collections.abc import Sequence

from torch import Tensor

from tokloom.sdk import FormatPair, KVFormat, LayerSpec, Pages


class HalfCodec:
    """Implements `tokloom.sdk.KVCodec`. A token's bytes depend on its own key and value alone."""

    fingerprint = "half-1"
    residual_tokens = 0

    def formats(self, spec: LayerSpec, page_tokens: int) -> Sequence[FormatPair]:
        params = spec.params
        planes = [
            ("k", "float16", (page_tokens, params.kv_heads, params.head_k)),
            ("v", "float16", (page_tokens, params.kv_heads, params.head_v)),
        ]
        name = f"half-{page_tokens}x{params.kv_heads}x{params.head_k}+{params.head_v}"
        return (FormatPair(KVFormat.pack(name, page_tokens, planes)),)

    def append(self, layer: int, k: Tensor, v: Tensor, pages: Pages, slots: Tensor) -> None:
        kept = slots >= 0
        page, offset = slots[kept] // pages.format.page_tokens, slots[kept] % pages.format.page_tokens
        pages.planes["k"][page, offset] = k[kept].half()
        pages.planes["v"][page, offset] = v[kept].half()

    def read(self, layer: int, pages: Pages, page_ids: Tensor) -> tuple[Tensor, Tensor]:
        return pages.planes["k"][page_ids].float(), pages.planes["v"][page_ids].float()

    def move(self, layer: int, pages: Pages, src: Tensor, dst: Tensor) -> None:
        size = pages.format.page_tokens
        for plane in pages.planes.values():
            plane[dst // size, dst % size] = plane[src // size, src % size].clone()
