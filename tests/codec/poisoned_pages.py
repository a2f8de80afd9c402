"""Pools of pages as an engine makes them: strided views into one byte buffer, full of poison."""

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from tokloom.plugins.quant.kv.dense import OFFER as DENSE
from tokloom.plugins.quant.kv.int8 import OFFER as INT8
from tokloom.sdk import AttnParams, Context, KVCodec, KVFormat, LayerSpec, NoOptions, Pages

NAN = float("nan")


def codec_named(name: str) -> KVCodec:
    offer = {"dense": DENSE, "int8": INT8}[name]
    return offer.factory(NoOptions(), cast(Context, None))


def format_of(codec: KVCodec, spec: LayerSpec, page_tokens: int) -> KVFormat:
    return codec.formats(spec, page_tokens)[0].main


def spec_of(dtype: str, heads: int, head_k: int, head_v: int) -> LayerSpec:
    return LayerSpec(0, AttnParams(heads, heads, head_k, head_v, 1.0), dtype)


def make_pages(format: KVFormat, count: int, seed: int, poison: float = NAN) -> tuple[Pages, Tensor]:
    """A pool of `count` pages and the buffer `[count, page_bytes]` behind it.

    Bytes are random, floating-point planes hold `poison`.
    """
    generator = torch.Generator().manual_seed(seed)
    buffer = torch.randint(0, 256, (count, format.page_bytes), dtype=torch.uint8, generator=generator)
    pages = view_pages(format, buffer)
    for plane in pages.planes.values():
        if plane.is_floating_point():
            plane.fill_(poison)
    return pages, buffer


def view_pages(format: KVFormat, buffer: Tensor) -> Pages:
    planes: dict[str, Any] = {}
    for plane in format.planes:
        raw = buffer[:, plane.offset : plane.offset + plane.nbytes].view(getattr(torch, plane.dtype))
        planes[plane.name] = raw.unflatten(1, plane.shape)
    return Pages(format, planes)


def sparse_pages(format: KVFormat, count: int, folder: Path) -> Pages:
    """A pool as large as one likes: a file of holes, of which only the pages that are written take memory."""
    buffer = torch.from_file(str(folder / "pool"), shared=True, size=count * format.page_bytes, dtype=torch.uint8)
    return view_pages(format, buffer.view(count, format.page_bytes))
