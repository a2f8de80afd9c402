"""Codecs: one that seals pages, one that wants transformed queries and outputs."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tokloom.conformance.doubles.offers import Seeded
from tokloom.sdk import Context, FormatPair, KVFormat, LayerSpec, NoOptions, Pages, Transform


def _format(name: str, spec: LayerSpec, page: int) -> KVFormat:
    params = spec.params
    planes = [
        ("k", "float64", (page, params.kv_heads, params.head_k)),
        ("v", "float64", (page, params.kv_heads, params.head_v)),
    ]
    return KVFormat.pack(f"{name}-{page}", page, planes)


class _Plain:
    """Planes k and v of one row per token."""

    residual_tokens = 0

    def append(self, layer: int, k: Tensor, v: Tensor, pages: Pages, slots: Tensor) -> None:
        keep = slots >= 0
        page = pages.format.page_tokens
        where = slots[keep]
        pages.planes["k"][where // page, where % page] = k[keep]
        pages.planes["v"][where // page, where % page] = v[keep]

    def read(self, layer: int, pages: Pages, page_ids: Tensor) -> tuple[Tensor, Tensor]:
        return pages.planes["k"][page_ids].clone(), pages.planes["v"][page_ids].clone()

    def move(self, layer: int, pages: Pages, src: Tensor, dst: Tensor) -> None:
        page = pages.format.page_tokens
        for plane in pages.planes.values():
            plane[dst // page, dst % page] = plane[src // page, src % page].clone()


class SealingCodec(_Plain):
    """Fresh tokens in open pages; full pages are sealed into main pages once `residual` tokens follow them.

    Implements `tokloom.sdk.KVCodec` and `SealingCodec`.
    """

    def __init__(self, options: Seeded, context: Context) -> None:
        self.residual_tokens = options.residual
        self.seals = 0

    @property
    def fingerprint(self) -> str:
        return f"sealing-{self.residual_tokens}"

    def formats(self, spec: LayerSpec, page_tokens: int) -> Sequence[FormatPair]:
        return (FormatPair(_format("sealed", spec, page_tokens), _format("open", spec, page_tokens)),)

    def seal(self, layer: int, open_pages: Pages, src: Tensor, main_pages: Pages, dst: Tensor) -> None:
        self.seals += 1
        for name, plane in main_pages.planes.items():
            content = open_pages.planes[name][src]
            assert not torch.isnan(content).any(), "a page is sealed before all of it was written"
            plane[dst] = content


class ScaledCodec(_Plain):
    """Keys are stored halved and values doubled; queries and outputs are transformed to make up for it.

    Implements `tokloom.sdk.KVCodec` and `TransformingCodec`.
    """

    def __init__(self, options: NoOptions, context: Context) -> None:
        self.transforms = 0

    fingerprint = "scaled"

    def formats(self, spec: LayerSpec, page_tokens: int) -> Sequence[FormatPair]:
        return (FormatPair(_format("scaled", spec, page_tokens)),)

    def append(self, layer: int, k: Tensor, v: Tensor, pages: Pages, slots: Tensor) -> None:
        super().append(layer, k / 2, v * 2, pages, slots)

    def q_transform(self, layer: int) -> Transform:
        self.transforms += 1
        return Transform(scale=torch.full((1, 2), 2.0, dtype=torch.float64))

    def o_transform(self, layer: int) -> Transform:
        swap = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]], dtype=torch.float64)
        return Transform(scale=torch.full((1, 2), 0.5, dtype=torch.float64), matrix=swap @ swap)
