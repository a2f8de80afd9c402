"""A world that also checks pages while launches are in flight, against the allocator's own tables."""

from typing import Any

import torch
from engine_world import World, state_pending

from tokloom.conformance.doubles import oracle
from tokloom.core.composition import Composition
from tokloom.sdk import CopyPage, Pool, SealPage, ZeroPage

Place = tuple[int, str, int]


class CheckedWorld(World):
    """`World` with three more checks after every step. Only for allocator `paged`.

    Launched pages (I9, KV-14): a page that a launched plan may read or write is neither free nor evictable until the
    plan has been committed, whoever was released in between.
    Mirrors: with nothing under way, the runner's page tables are the allocator's, entry by entry.
    Content (K1): KV below `num_computed` is f(prefix) at any depth, on every page that no operation is yet to fill.
    """

    def __init__(self, composition: Composition, *, check: bool = True) -> None:
        super().__init__(composition, check=check)
        self.checked = {"launched": 0, "mirrored": 0, "content": 0}
        self._launched: dict[int, set[Place]] = {}
        self._launch = self.core.runner.launch
        self.core.runner.launch = self._record  # type: ignore[method-assign]

    @property
    def allocator(self) -> Any:
        """The plugin, with the tables that only its own kind has."""
        return self.core.state.allocator

    def _record(self, plan: Any) -> Any:
        named: set[Place] = set()
        for span in plan.spans:
            named.update(self._places(span.seq_id))
        for op in plan.ops:
            named.update(_touched(op))
        if plan.spans or plan.ops:
            self._launched[plan.step] = named
        return self._launch(plan)

    def _places(self, seq_id: int) -> list[Place]:
        row = self.allocator.rows.get(seq_id)
        if row is None:
            return []
        return [
            (group.id, part.name, page)
            for group, table in zip(self.allocator.groups, row.tables, strict=True)
            for part in group.parts(table)
            for page in part.entries
            if page >= 0
        ]

    def audit(self) -> None:
        super().audit()
        in_flight = {entry[0].step for entry in self.core._in_flight}
        self._launched = {step: named for step, named in self._launched.items() if step in in_flight}
        self._check_launched()
        self._check_mirrors()
        self._check_all_content()

    def _check_content(self, seq: Any) -> None:
        """Replaced by the checks below."""

    def _check_launched(self) -> None:
        groups = self.allocator.groups
        available = {
            (group.id, name): {*pool.free, *pool.cached}
            for group in groups
            for name, pool in (("main", group.main), ("open", group.open))
            if pool is not None
        }
        for step, named in self._launched.items():
            for group_id, name, page in named:
                self.checked["launched"] += 1
                assert page not in available[group_id, name], f"step {step} is in flight and page {page} may be taken"

    def _check_mirrors(self) -> None:
        if self.core._in_flight or state_pending(self.core):
            return
        rows = self.core.runner.rows
        for seq in self.core.state.running.values():
            row = rows.of(seq.seq_id)
            assert int(rows.computed[row]) == seq.num_computed
            assert rows.tokens[row, : rows.length[row]].tolist() == seq.tokens
            own = self.allocator.rows[seq.seq_id]
            for group, table in zip(self.allocator.groups, own.tables, strict=True):
                for part in group.parts(table):
                    mirror = rows.tables[group.id, part.name][row].tolist()
                    wanted = list(part.entries) + [-1] * (len(mirror) - len(part.entries))
                    self.checked["mirrored"] += len(part.entries)
                    assert mirror == wanted, f"tables of sequence {seq.seq_id} differ: {mirror}, {wanted}"

    def _unfilled(self) -> set[Place]:
        """Pages that an operation which has not run for certain is yet to fill."""
        ops = [op for op, _ in self.allocator.pending]
        for plan, *_ in self.core._in_flight:
            ops += plan.ops
        return {_touched(op)[-1] for op in ops}

    def _check_all_content(self) -> None:
        unfilled = self._unfilled()
        for seq in self.core.state.running.values():
            own = self.allocator.rows[seq.seq_id]
            adapter = oracle.adapter_tag(seq.request.scope.adapter)
            wanted = oracle.tags(seq.tokens[: seq.num_computed], self.windows, adapter=adapter)
            for group, table in zip(self.composition.context.layout.groups, own.tables, strict=True):
                if group.owner == "model":
                    self._check_group(seq, group, table, wanted, unfilled)

    def _check_group(self, seq: Any, group: Any, table: Any, wanted: list[list[int]], unfilled: set[Place]) -> None:
        low = 0 if group.window is None else max(0, seq.num_computed - group.window + 1)
        page_tokens = group.page_tokens
        for page in range(low // page_tokens, -(-seq.num_computed // page_tokens)):
            sealed = group.open is None or (page < len(table.main) and table.main[page] >= 0)
            pool: Pool = "main" if sealed else "open"
            number = (table.main if sealed else table.open)[page]
            assert number >= 0, f"page {page} of sequence {seq.seq_id} is gone"
            if (group.id, pool, number) in unfilled:
                continue
            for index, layer in enumerate(group.layers):
                _, value = self.composition.codec.plugin.read(
                    layer, self.core.pools.layers(group.id, pool)[index], torch.tensor([number])
                )
                scale = 2 if self.composition.codec.name == "scaled" else 1
                first, stop = max(low, page * page_tokens), min(seq.num_computed, (page + 1) * page_tokens)
                found = (value[0, first % page_tokens : first % page_tokens + stop - first, 0, 0] / scale).tolist()
                self.checked["content"] += len(found)
                assert found == wanted[layer][first:stop], (
                    f"layer {layer}, positions {first} to {stop} of sequence {seq.seq_id}: {found}"
                )


def _touched(op: Any) -> list[Place]:
    """The pages of an operation; the one it writes is last."""
    if isinstance(op, CopyPage):
        return [(op.group, op.pool, op.src), (op.group, op.pool, op.dst)]
    if isinstance(op, SealPage):
        return [(op.group, "open", op.src), (op.group, "main", op.dst)]
    assert isinstance(op, ZeroPage)
    return [(op.group, op.pool, op.page)]
