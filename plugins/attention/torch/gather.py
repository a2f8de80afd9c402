"""Reading the keys and values of a group of tiles out of their pages."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokloom.plugins.attention.torch.tiles import Ints
from tokloom.sdk import Pages


class TokenIndex:
    """Pool addresses of `[B, L]` tokens. Built once per step, used by every layer."""

    def __init__(self, tables: "NDArray[np.generic]", seqs: Ints, slots: Ints, page_tokens: int, device: str) -> None:
        self.shape = slots.shape
        # 64 bits before any product: page * rows_per_page passes 2^31 in large pools
        pages = tables[seqs[:, None], slots // page_tokens].astype(np.int64)
        self._page = torch.from_numpy(np.maximum(pages, 0).reshape(-1)).to(device)
        self._offset = torch.from_numpy((slots % page_tokens).reshape(-1)).to(device)
        self._rows: dict[int, Tensor] = {}

    def take(self, plane: Tensor) -> Tensor:
        """Tokens of a plane `[pages, page_tokens, ...]` as `[B, L, ...]`.

        Token rows of all pages lie on one grid when the page stride is a multiple of a token's size, as it nearly
        always is; one `index_select` over that grid then copies whole rows.
        """
        inner = plane.shape[2:]
        size = inner.numel()
        stride = plane.stride(0)
        if size and stride % size == 0 and _is_packed(plane):
            per_page = stride // size
            height = (plane.shape[0] - 1) * per_page + plane.shape[1]
            grid = plane.as_strided((height, size), (size, 1))
            taken = grid.index_select(0, self._grid_rows(per_page))
        else:
            taken = plane[self._page, self._offset]
        return taken.view(*self.shape, *inner)

    def _grid_rows(self, per_page: int) -> Tensor:
        rows = self._rows.get(per_page)
        if rows is None:
            rows = self._rows[per_page] = self._page * per_page + self._offset
        return rows


def _is_packed(plane: Tensor) -> bool:
    """Whether everything inside one page is contiguous."""
    expected = 1
    for extent, stride in zip(reversed(plane.shape[1:]), reversed(plane.stride()[1:]), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return plane.shape[0] > 0


def keys_and_values(pages: Pages, index: TokenIndex, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`[B, L, kv_heads, head]` keys and values in `dtype`, dequantised where the pages are int8."""
    return _plain(pages, "k", index, dtype), _plain(pages, "v", index, dtype)


def _plain(pages: Pages, name: str, index: TokenIndex, dtype: torch.dtype) -> Tensor:
    taken = index.take(pages.planes[name])
    if taken.dtype != torch.int8:
        return taken.to(dtype)
    # in float32 whatever the queries are, so that the values are exactly those of the codec's reader
    scale = index.take(pages.planes[f"{name}_scale"]).float()
    return taken.float().mul_(scale.unsqueeze(-1)).to(dtype)
