"""DecodeGraphs: decode steps replayed from a recording over static buffers, one recording per batch size class."""

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray
from torch import Tensor

from tokloom.core.attend import Attend, Captured
from tokloom.core.batch import StepRows
from tokloom.core.composition import Composition
from tokloom.core.device import Graph
from tokloom.core.rows import Rows
from tokloom.sdk import AttnBatch, ForwardBatch, Hidden, KVGroup, LoadedModel


@frozen
class _Static:
    """Buffers of one batch size; a step copies its values in, then replays."""

    size: int
    ids: Tensor = field(eq=False)
    positions: Tensor = field(eq=False)
    lens: NDArray[np.int32] = field(eq=False)
    batches: dict[int, AttnBatch] = field(eq=False)
    captured: Captured = field(eq=False)
    graph: Graph[Hidden] = field(eq=False)


class DecodeGraphs:
    """Used when the profile wants graphs and every plugin involved is safe to replay. Batches are padded to the next
    power of two: padded rows have no keys and write nowhere.
    """

    def __init__(self, composition: Composition, model: LoadedModel, rows: Rows, attend: Attend) -> None:
        self._device = composition.device
        self._model = model
        self._ops = composition.ops.plugin
        self._rows = rows
        self._attend = attend
        self._groups = [group for group in composition.layout.groups if group.owner == "model"]
        self._max = composition.settings.max_sequences
        self._static: dict[int, _Static] = {}
        self.replays = 0
        self._usable = (
            composition.settings.graphs
            and composition.decode.caps.graph != "none"
            and not composition.needs.features
            and not any(part.caps.layerwise for part in composition.connectors)
            and all(group.open is None for group in self._groups)
        )

    def apply_to(self, step: StepRows) -> bool:
        """Whether this step can be replayed: plain decoding only."""
        return self._usable and step.num_decode == step.size

    def run(self, step: StepRows) -> Hidden:
        """The step's hidden states, `[B, H]`."""
        size = min(1 << (step.size - 1).bit_length(), self._max)
        static = self._static.get(size)
        if static is None:
            static = self._static[size] = self._record(size)
        self._fill(static, step)
        self._attend.replan(static.captured, static.batches)
        hidden = static.graph.replay()
        self.replays += 1
        return Hidden(hidden.last[: step.size])

    def _record(self, size: int) -> _Static:
        device = self._device
        ids = device.upload(np.zeros(size, dtype=np.int64))
        positions = device.upload(np.zeros(size, dtype=np.int64))
        lens = np.zeros(size, dtype=np.int32)
        batches = {group.id: self._batch(group, size, positions, lens) for group in self._groups}
        captured = self._attend.capture(size, batches)
        forward = ForwardBatch(ids, positions, np.arange(size + 1, dtype=np.int32))

        def record() -> Hidden:
            self._attend.use(captured)
            return self._model.forward(forward, self._attend, self._ops)

        return _Static(size, ids, positions, lens, batches, captured, device.capture(record))

    def _batch(self, group: KVGroup, size: int, positions: Tensor, lens: NDArray[np.int32]) -> AttnBatch:
        width = self._rows.tables[group.id, "main"].shape[1]
        upload = self._device.upload
        return AttnBatch(
            group=group.id,
            pool="main",
            q_indptr=np.arange(size + 1, dtype=np.int32),
            kv_start=np.zeros(size, dtype=np.int32),
            kv_lens=lens,
            device_kv_lens=upload(np.zeros(size, dtype=np.int32)),
            tables=upload(np.full((size, width), -1, dtype=np.int32)),
            positions=positions,
            slots=upload(np.full(size, -1, dtype=np.int64)),
            num_decode=size,
            host_exact=True,
        )

    def _fill(self, static: _Static, step: StepRows) -> None:
        count, upload = step.size, self._device.upload
        static.ids[:count].copy_(upload(self._rows.tokens[step.rows, step.start]))
        static.positions[:count].copy_(upload(step.start))
        static.lens[:count] = step.start + 1
        static.lens[count:] = 0
        for group in self._groups:
            batch = static.batches[group.id]
            table = self._rows.tables[group.id, "main"][step.rows]
            page = group.page_tokens
            where = table[np.arange(count), step.start // page].astype(np.int64) * page + step.start % page
            batch.device_kv_lens.copy_(upload(static.lens))
            batch.tables[:count].copy_(upload(table))
            batch.slots[:count].copy_(upload(where))
            batch.slots[count:].fill_(-1)
