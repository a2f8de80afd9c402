"""KVCodec: owner of the bytes of a KV page."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from attrs import field, frozen

from tokloom.sdk.values.batches import LayerSpec
from tokloom.sdk.values.kv import FormatPair, Pages

if TYPE_CHECKING:
    from torch import Tensor


@frozen(kw_only=True)
class CodecCaps:
    """What a codec promises.

    Attributes:
        equivalence: `position`: a token's stored bytes depend on its own k and v alone, so that chunking, hits and
            preemption never change results. `stepwise`: equal only at fixed absolute chunking without preemption.
        lossless: reads back what was appended, up to the cache dtype.
        seals: formats have an open part; the plugin is also a SealingCodec.
        transforms: formats want q or outputs transformed; the plugin is also a TransformingCodec.
    """

    equivalence: Literal["position", "stepwise"] = "position"
    lossless: bool = False
    seals: bool = False
    transforms: bool = False


class KVCodec(Protocol):
    """Call order: `formats` and `fingerprint` at composition; per layer and step `append` before attention runs (unless
    the kernel writes); `move` after verification of a tree; `read` whenever someone wants plain keys and values.
    A codec owns the bytes of pages, not which page a token goes to, and keeps no state per sequence: copying a page
    copies everything. Layers are the model's layer numbers.
    """

    def formats(self, spec: LayerSpec, page_tokens: int) -> Sequence[FormatPair]:
        """Layouts for a layer, best first; empty if it cannot store such a layer."""
        ...

    @property
    def fingerprint(self) -> str:
        """Names everything that changes stored bytes; part of every cache key's namespace. Constant."""
        ...

    @property
    def residual_tokens(self) -> int:
        """A page is sealed once this many tokens follow it. 0 for codecs that do not seal. Constant."""
        ...

    def append(self, layer: int, k: "Tensor", v: "Tensor", pages: Pages, slots: "Tensor") -> None:
        """Store row t of `k` `[T, kv_heads, head_k]`, `v` `[T, kv_heads, head_v]` at `slots[t]` of the open pool (the
        main pool without one); a slot of -1 is skipped and no other byte changes. Reference of every writer. `slots`
        `[T]` int64 on the device: `page * page_tokens + offset`, distinct but for -1. k and v may be strided.
        """
        ...

    def read(self, layer: int, pages: Pages, page_ids: "Tensor") -> "tuple[Tensor, Tensor]":
        """Decode whole pages `page_ids` `[n]`: k `[n, page_tokens, kv_heads, head_k]` and v likewise, float32 (float64
        from float64 planes). The oracle of every kernel; slots never written hold anything. `pages.format` tells main
        pages from open ones.
        """
        ...

    def move(self, layer: int, pages: Pages, src: "Tensor", dst: "Tensor") -> None:
        """Copy token slots `src` `[n]` to `dst` `[n]` (int64, on the device) as if all were read before any is written.
        In the open pool where there is one: sealed pages never move.
        """
        ...


class SealingCodec(Protocol):
    """A codec with open pages (capability `seals`). Sealed pages are never written again."""

    def seal(self, layer: int, open_pages: Pages, src: "Tensor", main_pages: Pages, dst: "Tensor") -> None:
        """Encode full open pages `src` `[n]` into main pages `dst` `[n]` (int64 page ids on the device). Called per
        layer before a step's forward; if it raises, the pages are lost and what may share them is computed again.
        """
        ...


@frozen
class Transform:
    """A linear map per kv head, applied by the core around `run` to the query heads that share it.

    Attributes:
        scale: `[kv_heads, size]`, multiplied elementwise, before the matrix; or None.
        matrix: `[kv_heads, size, size]`, orthogonal, applied as `x @ matrix`; or None.

    `size` is `head_k` for queries and `head_v` for outputs. Tensors are on the device; they are cast to the dtype of
    what they are applied to.
    """

    scale: "Tensor | None" = field(default=None, eq=False)
    matrix: "Tensor | None" = field(default=None, eq=False)


class TransformingCodec(Protocol):
    """A codec whose formats want transformed queries or outputs (capability `transforms`). Asked once per layer when
    the engine is made; what it returns is constant.
    """

    def q_transform(self, layer: int) -> Transform:
        """Applied to q before `run`."""
        ...

    def o_transform(self, layer: int) -> Transform:
        """Applied to merged outputs after `run`."""
        ...
