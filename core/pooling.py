"""Pooling: hidden states of a prompt's rows into one vector, whatever the chunks in which they were computed."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokloom.core.batch import StepRows
from tokloom.core.device import to_host
from tokloom.core.plan import Span


def pool(spans: Sequence[Span], step: StepRows, last: Tensor) -> dict[int, NDArray[np.float64]]:
    """Per span that pools, `[H]`: its last row, or the sum of its rows in float64, which hides how they were chunked.

    `last` `[T, H]` is `Hidden.last`. A span that pools has no drafts.
    """
    found: dict[int, NDArray[np.float64]] = {}
    for b, span in enumerate(spans):
        if not span.pools:
            continue
        first, stop = int(step.indptr[b]), int(step.indptr[b + 1])
        rows = last[stop - 1 if span.pools == "last" else first : stop]
        found[b] = to_host(rows.sum(0, dtype=torch.float64)).numpy()
    return found


def embedding(total: NDArray[np.float64], rows: int, *, normalize: bool) -> tuple[float, ...] | None:
    """The vector of a sum over `rows` rows, as float32 values; None unless all of them are finite. Zeros stay zeros."""
    vector = total / rows
    if normalize:
        length = float(np.linalg.norm(vector))
        vector = vector / length if length > 0.0 else vector
    with np.errstate(over="ignore"):
        values = vector.astype(np.float32)
    return tuple(values.tolist()) if np.isfinite(values).all() else None
