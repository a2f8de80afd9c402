"""Codecs: plain, sealing (alike or apart), wanting transformed queries and outputs, and one that is only stepwise."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tokloom.conformance.doubles.offers import Seeded
from tokloom.sdk import Context, FormatPair, KVFormat, LayerSpec, NoOptions, Pages, Transform


def _format(name: str, spec: LayerSpec, page: int, prefix: str = "") -> KVFormat:
    params = spec.params
    planes = [
        (f"{prefix}k", "float64", (page, params.kv_heads, params.head_k)),
        (f"{prefix}v", "float64", (page, params.kv_heads, params.head_v)),
    ]
    id = f"{name}-{page}x{params.kv_heads}x{params.head_k}+{params.head_v}"
    return KVFormat.pack(id, page, planes)


class _Plain:
    """Planes k and v of one row per token."""

    residual_tokens = 0

    def append(self, layer: int, k: Tensor, v: Tensor, pages: Pages, slots: Tensor) -> None:
        keep = slots >= 0
        page = pages.format.page_tokens
        where = slots[keep]
        assert len(set(where.tolist())) == len(where), "two rows are written to one slot"
        pages.planes["k"][where // page, where % page] = k[keep].double()
        pages.planes["v"][where // page, where % page] = v[keep].double()

    def read(self, layer: int, pages: Pages, page_ids: Tensor) -> tuple[Tensor, Tensor]:
        return pages.planes["k"][page_ids], pages.planes["v"][page_ids]

    def move(self, layer: int, pages: Pages, src: Tensor, dst: Tensor) -> None:
        page = pages.format.page_tokens
        for plane in pages.planes.values():
            plane[dst // page, dst % page] = plane[src // page, src % page]  # indexing reads all before it writes


class TagDenseCodec(_Plain):
    """Keys and values as they are, in float64. Implements `tokloom.sdk.KVCodec`."""

    fingerprint = "tagdense"

    def __init__(self, options: NoOptions, context: Context) -> None:
        pass

    def formats(self, spec: LayerSpec, page_tokens: int) -> Sequence[FormatPair]:
        return (FormatPair(_format("tagdense", spec, page_tokens)),)


class SealingCodec(_Plain):
    """Fresh tokens in open pages; full pages are sealed into main pages once `residual` tokens follow them.

    Implements `tokloom.sdk.KVCodec` and `SealingCodec`. Both parts look alike, so that any float kernel reads them.
    """

    prefix = ""

    def __init__(self, options: Seeded, context: Context) -> None:
        self.residual_tokens = options.residual
        self.seals = 0

    @property
    def fingerprint(self) -> str:
        return f"sealing-{self.prefix}{self.residual_tokens}"

    def formats(self, spec: LayerSpec, page_tokens: int) -> Sequence[FormatPair]:
        sealed = _format("sealed", spec, page_tokens, self.prefix)
        return (FormatPair(sealed, _format("open", spec, page_tokens)),)

    def append(self, layer: int, k: Tensor, v: Tensor, pages: Pages, slots: Tensor) -> None:
        assert pages.format.id.startswith("open-"), "rows are appended to sealed pages"
        super().append(layer, k, v, pages, slots)

    def seal(self, layer: int, open_pages: Pages, src: Tensor, main_pages: Pages, dst: Tensor) -> None:
        assert (open_pages.format.id[:5], main_pages.format.id[:7]) == ("open-", "sealed-"), "pools are exchanged"
        self.seals += 1
        for name, plane in open_pages.planes.items():
            content = plane[src]
            assert not torch.isnan(content).any(), "a page is sealed before all of it was written"
            main_pages.planes[self.prefix + name][dst] = self.encode(content)

    def encode(self, content: Tensor) -> Tensor:
        """What a sealed page holds of an open page's content; its own inverse."""
        return content


class ApartCodec(SealingCodec):
    """Sealed planes have other names and hold negated values: a pool taken for the other one shows at once."""

    prefix = "sealed_"

    def encode(self, content: Tensor) -> Tensor:
        return -content

    def read(self, layer: int, pages: Pages, page_ids: Tensor) -> tuple[Tensor, Tensor]:
        if pages.format.id.startswith("open-"):
            return super().read(layer, pages, page_ids)
        return self.encode(pages.planes["sealed_k"][page_ids]), self.encode(pages.planes["sealed_v"][page_ids])


class _Transforming(_Plain):
    """Counts how often the core asks for transforms."""

    def __init__(self, options: NoOptions, context: Context) -> None:
        self._layers = {spec.layer: spec.params for spec in context.model.layers}
        self.transforms = 0


class ScaledCodec(_Transforming):
    """Keys are stored halved and values doubled; queries and outputs are scaled to make up for it.

    Implements `tokloom.sdk.KVCodec` and `TransformingCodec`. `read` gives what is stored.
    """

    fingerprint = "scaled"

    def formats(self, spec: LayerSpec, page_tokens: int) -> Sequence[FormatPair]:
        return (FormatPair(_format("scaled", spec, page_tokens)),)

    def append(self, layer: int, k: Tensor, v: Tensor, pages: Pages, slots: Tensor) -> None:
        super().append(layer, k / 2, v * 2, pages, slots)

    def q_transform(self, layer: int) -> Transform:
        self.transforms += 1
        params = self._layers[layer]
        return Transform(scale=torch.full((params.kv_heads, params.head_k), 2.0, dtype=torch.float64))

    def o_transform(self, layer: int) -> Transform:
        params = self._layers[layer]
        return Transform(scale=torch.full((params.kv_heads, params.head_v), 0.5, dtype=torch.float64))


class RotatedCodec(_Transforming):
    """The first two components of keys and values are stored turned by a quarter, the other way round in every other
    head: a transform that is left out, transposed or given to the wrong head changes the sign.

    Implements `tokloom.sdk.KVCodec` and `TransformingCodec`. `read` gives what is stored.
    """

    fingerprint = "rotated"

    def formats(self, spec: LayerSpec, page_tokens: int) -> Sequence[FormatPair]:
        return (FormatPair(_format("rotated", spec, page_tokens)),)

    def append(self, layer: int, k: Tensor, v: Tensor, pages: Pages, slots: Tensor) -> None:
        turned = [torch.einsum("thi,hij->thj", x.double(), _turns(x.shape[1], x.shape[2])) for x in (k, v)]
        super().append(layer, turned[0], turned[1], pages, slots)

    def q_transform(self, layer: int) -> Transform:
        self.transforms += 1
        return Transform(matrix=_turns(self._layers[layer].kv_heads, self._layers[layer].head_k))

    def o_transform(self, layer: int) -> Transform:
        return Transform(matrix=_turns(self._layers[layer].kv_heads, self._layers[layer].head_v).mT)


def _turns(heads: int, size: int) -> Tensor:
    """`[heads, size, size]` quarter turns of the first two components, as `x @ matrix`."""
    matrix = torch.eye(size, dtype=torch.float64).repeat(heads, 1, 1)
    for head in range(heads):
        way = 1.0 if head % 2 == 0 else -1.0
        matrix[head, :2, :2] = torch.tensor([[0.0, way], [-way, 0.0]], dtype=torch.float64)
    return matrix


class StepwiseCodec(_Plain):
    """A value's first component is stored with the number of rows that were appended to its page in the same call: the
    same tokens give the same bytes only if they are computed in the same chunks. Implements `tokloom.sdk.KVCodec`.
    """

    fingerprint = "stepwise"

    def __init__(self, options: NoOptions, context: Context) -> None:
        pass

    def formats(self, spec: LayerSpec, page_tokens: int) -> Sequence[FormatPair]:
        return (FormatPair(_format("stepwise", spec, page_tokens)),)

    def append(self, layer: int, k: Tensor, v: Tensor, pages: Pages, slots: Tensor) -> None:
        numbers = slots.clamp_min(0) // pages.format.page_tokens
        company = torch.bincount(numbers, weights=(slots >= 0).double(), minlength=1)[numbers]
        stored = v.double().clone()
        stored[:, :, 0] += company.unsqueeze(1)
        super().append(layer, k, stored, pages, slots)
