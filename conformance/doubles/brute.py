"""BruteAllocator: no sharing, no cache, no eviction. Forks copy at once; every page belongs to one sequence."""

from collections import Counter
from collections.abc import Iterable, Sequence

from attrs import define, field

from tokloom.sdk import (
    Allocation,
    AllocatorStats,
    CacheKey,
    Context,
    CopyPage,
    GroupId,
    Hit,
    KVGroup,
    Lease,
    NoOptions,
    NoSpace,
    PageId,
    PageOp,
    PluginFault,
    Pool,
    Published,
    Quote,
    Scope,
    SealPage,
    SeqId,
    SequenceView,
    SlotRequest,
    TableDelta,
    ZeroPage,
)

Place = tuple[GroupId, Pool, PageId]


@define
class _Table:
    """One sequence in one group: pages by index, main pages reserved for sealing, leading pages past the open pool."""

    pages: dict[int, Place] = field(factory=dict)
    reserved: list[Place] = field(factory=list)
    sealed: int = 0
    top: int = 0


@define
class _Plan:
    """What one group needs: indices of fresh pages, indices that a tier fills, main pages to reserve."""

    fresh: list[int]
    loaded: list[int]
    reserve: int


class BruteAllocator:
    """Implements `tokloom.sdk.KVAllocator` with windows and seals, by books as plain as they can be: how many hold each
    page, and the largest fence of those who dropped it.
    """

    def __init__(self, options: NoOptions, context: Context) -> None:
        self._layout = context.layout
        self._batch = context.limits.max_batch_tokens + context.limits.max_draft_tokens
        self._free: dict[tuple[GroupId, Pool], list[PageId]] = {}
        for group, main, opened in zip(
            self._layout.groups, self._layout.main_pages, self._layout.open_pages, strict=True
        ):
            self._free[group.id, "main"] = list(range(main))
            self._free[group.id, "open"] = list(range(opened if group.open is not None else 0))
        self._total = {pool: len(free) for pool, free in self._free.items()}
        self._holders: Counter[Place] = Counter()
        self._fences: dict[Place, int] = {}
        self._tables: dict[SeqId, list[_Table]] = {}
        self._leases: set[int] = set()
        self._made = 0
        self._ops: list[tuple[PageOp, tuple[Place, ...]]] = []
        self._drained: list[tuple[int, tuple[Place, ...]]] = []
        self._last_drain = self._settled = 0
        self._copies = self._seals = 0

    # -- pages -----------------------------------------------------------------------------------------------------

    def _take(self, group: GroupId, pool: Pool) -> Place:
        place = (group, pool, self._free[group, pool].pop())
        self._holders[place] = 1
        return place

    def _drop(self, place: Place, fence: int) -> None:
        self._holders[place] -= 1
        self._fences[place] = max(fence, self._fences.get(place, 0))
        self._collect(place)

    def _collect(self, place: Place) -> None:
        if not self._holders[place] and self._fences[place] <= self._settled:
            del self._holders[place], self._fences[place]
            self._free[place[0], place[1]].append(place[2])

    def _emit(self, op: PageOp, *places: Place) -> None:
        for place in places:
            self._holders[place] += 1
        self._ops.append((op, places))

    # -- quotes ----------------------------------------------------------------------------------------------------

    def lookup(self, seq: SequenceView, keys: Sequence[Sequence[CacheKey]], max_tokens: int) -> Hit:
        return Hit(0, tuple(() for _ in self._layout.groups))

    def _plan(self, group: KVGroup, table: _Table, want: SlotRequest) -> _Plan:
        external = 0 if table.top else want.external
        first = 0 if group.window is None else max(0, external - group.window + 1) // group.page_tokens
        loaded = range(first, external // group.page_tokens)
        fresh = range(max(table.top, loaded.stop), -(-want.stop // group.page_tokens))
        sealed = loaded.stop if loaded else table.sealed
        reserve = _sealable(group, want.stop) - sealed - len(table.reserved) if group.open is not None else 0
        return _Plan(list(fresh), list(loaded), max(0, reserve))

    def _plans(self, seq_id: SeqId, want: SlotRequest) -> list[_Plan]:
        tables = self._tables.get(seq_id) or [_Table() for _ in self._layout.groups]
        return [self._plan(group, table, want) for group, table in zip(self._layout.groups, tables, strict=True)]

    def _needs(self, plans: Sequence[_Plan]) -> dict[tuple[GroupId, Pool], int]:
        needs: dict[tuple[GroupId, Pool], int] = {}
        for group, plan in zip(self._layout.groups, plans, strict=True):
            fresh, ahead = len(plan.fresh), len(plan.loaded) + plan.reserve
            needs[group.id, "main"] = ahead + (fresh if group.open is None else 0)
            if group.open is not None:
                needs[group.id, "open"] = fresh
        return needs

    def _ever(self, group: KVGroup, pool: Pool, tokens: int) -> int:
        """Pages of a pool that a sequence of `tokens` may hold at once."""
        page = group.page_tokens
        most = -(-tokens // page)
        if group.window is not None:
            most = min(most, -(-(group.window - 1 + self._batch) // page) + 1)
        if pool == "open":
            most = min(most, -(-(group.residual_tokens + self._batch) // page) + 2)
        return most

    def quote(self, seq: SequenceView, want: SlotRequest, hit: Hit) -> Quote:
        needs = self._needs(self._plans(seq.seq_id, want))
        groups = {group.id: group for group in self._layout.groups}
        ever = {key: self._ever(groups[key[0]], key[1], max(want.tokens, want.stop)) for key in needs}
        fits_ever = all(ever[key] <= self._total[key] for key in needs)
        tight = min(needs, key=lambda k: len(self._free[k]) - needs[k] if fits_ever else self._total[k] - ever[k])
        return Quote(
            new=needs[tight],
            pinned=0,
            free=len(self._free[tight]),
            total=self._total[tight],
            needed_ever=ever[tight],
            fits_now=all(count <= len(self._free[key]) for key, count in needs.items()),
            fits_ever=fits_ever,
        )

    # -- sequences -------------------------------------------------------------------------------------------------

    def allocate(self, seq: SequenceView, want: SlotRequest, hit: Hit) -> Allocation | NoSpace:
        plans = self._plans(seq.seq_id, want)
        short = max(count - len(self._free[key]) for key, count in self._needs(plans).items())
        if short > 0:
            return NoSpace(short)
        tables = self._tables.setdefault(seq.seq_id, [_Table() for _ in self._layout.groups])
        deltas: list[TableDelta] = []
        for group, table, plan in zip(self._layout.groups, tables, plans, strict=True):
            for index in plan.loaded:
                deltas.append(self._enter(seq.seq_id, table, index, self._take(group.id, "main")))
            if plan.loaded and group.open is not None:
                table.sealed = plan.loaded[-1] + 1
            pool: Pool = "main" if group.open is None else "open"
            for index in plan.fresh:
                place = self._take(group.id, pool)
                deltas.append(self._enter(seq.seq_id, table, index, place))
                if self._layout.zero_new_pages:
                    self._emit(ZeroPage(group.id, pool, place[2]), place)
            table.reserved += [self._take(group.id, "main") for _ in range(plan.reserve)]
        return Allocation(tuple(deltas))

    def _enter(self, seq_id: SeqId, table: _Table, index: int, place: Place) -> TableDelta:
        table.pages[index] = place
        table.top = max(table.top, index + 1)
        return TableDelta(seq_id, place[0], place[1], index, place[2])

    def fork(self, parent: SeqId, child: SeqId, tokens: int) -> Allocation | NoSpace:
        tables = self._tables[parent]
        wanted: Counter[tuple[GroupId, Pool]] = Counter()
        for group, table in zip(self._layout.groups, tables, strict=True):
            kept = [place for index, place in table.pages.items() if index * group.page_tokens < tokens]
            wanted.update((place[0], place[1]) for place in kept)
            wanted[group.id, "main"] += len(table.reserved)
        short = max((count - len(self._free[key]) for key, count in wanted.items()), default=0)
        if short > 0:
            return NoSpace(short)
        deltas: list[TableDelta] = []
        self._tables[child] = own = []
        for group, table in zip(self._layout.groups, tables, strict=True):
            copy = _Table(sealed=table.sealed, reserved=[self._take(group.id, "main") for _ in table.reserved])
            own.append(copy)
            for index, source in sorted(table.pages.items()):
                if index * group.page_tokens < tokens:
                    target = self._take(source[0], source[1])
                    self._emit(CopyPage(source[0], source[1], source[2], target[2]), source, target)
                    self._copies += 1
                    deltas.append(self._enter(child, copy, index, target))
        return Allocation(tuple(deltas))

    def publish(self, seq: SequenceView, tokens: int, keys: Sequence[Sequence[CacheKey]]) -> Published:
        deltas: list[TableDelta] = []
        for group, table in zip(self._layout.groups, self._tables.get(seq.seq_id, ()), strict=False):
            for index in range(table.sealed, _sealable(group, tokens) if group.open is not None else 0):
                table.sealed = index + 1
                source = table.pages.get(index)
                if source is None:
                    continue  # slid out of a window before it was sealed
                target = table.reserved.pop()
                self._emit(SealPage(group.id, source[2], target[2]), source, target)
                self._drop(source, self._last_drain)
                self._seals += 1
                deltas.append(self._enter(seq.seq_id, table, index, target))
                deltas.append(TableDelta(seq.seq_id, group.id, "open", index, -1))
        return Published((), tuple(deltas))

    def truncate(self, seq_id: SeqId, tokens: int, fence: int) -> tuple[TableDelta, ...]:
        deltas: list[TableDelta] = []
        for group, table in zip(self._layout.groups, self._tables.get(seq_id, ()), strict=False):
            last = -(-tokens // group.page_tokens)
            if last < table.sealed:
                raise PluginFault(f"KV-04: truncated to {tokens}, below what is sealed", subject="allocator.brute")
            deltas += self._clear(seq_id, table, [index for index in table.pages if index >= last], fence)
            table.top = min(table.top, last)
            while group.open is not None and len(table.reserved) > _sealable(group, tokens) - table.sealed:
                self._drop(table.reserved.pop(), fence)
        return tuple(deltas)

    def slide(self, seq_id: SeqId, tokens: int, fence: int) -> tuple[TableDelta, ...]:
        deltas: list[TableDelta] = []
        for group, table in zip(self._layout.groups, self._tables.get(seq_id, ()), strict=False):
            if group.window is not None:
                first = max(0, tokens - group.window + 1) // group.page_tokens
                sealed = table.sealed if group.open is not None else first
                gone = [index for index in table.pages if index < min(first, sealed)]
                deltas += self._clear(seq_id, table, gone, fence)
        return tuple(deltas)

    def _clear(self, seq_id: SeqId, table: _Table, indices: Iterable[int], fence: int) -> list[TableDelta]:
        deltas = []
        for index in indices:
            place = table.pages.pop(index)
            self._drop(place, fence)
            deltas.append(TableDelta(seq_id, place[0], place[1], index, -1))
        return deltas

    def release(self, seq_id: SeqId, fence: int) -> int:
        dropped = 0
        for table in self._tables.pop(seq_id, ()):
            for place in [*table.pages.values(), *table.reserved]:
                self._drop(place, fence)
                dropped += 1
        return dropped

    def reclaimable(self, seq_id: SeqId) -> int:
        places = [p for table in self._tables.get(seq_id, ()) for p in [*table.pages.values(), *table.reserved]]
        return sum(self._holders[place] == 1 and self._fences.get(place, 0) <= self._settled for place in places)

    # -- leases ----------------------------------------------------------------------------------------------------

    def lease(self, seq_id: SeqId, start: int, stop: int) -> Lease:
        pages = []
        for group, table in zip(self._layout.groups, self._tables[seq_id], strict=True):
            for index in range(start // group.page_tokens, -(-stop // group.page_tokens)):
                place = table.pages.get(index)
                if place is not None and place[1] == "main":
                    pages.append((group.id, place[2]))
        return self.lease_pages(pages)

    def lease_pages(self, pages: Sequence[tuple[GroupId, PageId]]) -> Lease:
        for group, page in pages:
            if not self._holders[group, "main", page]:
                raise PluginFault(f"page {page} of group {group} is nobody's", subject="allocator.brute")
            self._holders[group, "main", page] += 1
        self._made += 1
        self._leases.add(self._made)
        return Lease(self._made, tuple(pages))

    def end_lease(self, lease: Lease, fence: int) -> None:
        if lease.lease_id not in self._leases:
            raise PluginFault(f"lease {lease.lease_id} is not alive", subject="allocator.brute")
        self._leases.discard(lease.lease_id)
        for group, page in lease.pages:
            self._drop((group, "main", page), fence)

    # -- steps -----------------------------------------------------------------------------------------------------

    def settle(self, step: int) -> None:
        self._settled = max(self._settled, step)
        over = [places for drained, places in self._drained if drained <= self._settled]
        self._drained = [entry for entry in self._drained if entry[0] > self._settled]
        for places in over:
            for place in places:
                self._drop(place, 0)
        for place in [place for place in self._fences if not self._holders[place]]:
            self._collect(place)

    def drain(self, step: int) -> tuple[PageOp, ...]:
        ops, self._ops = self._ops, []
        self._last_drain = step
        self._drained += [(step, places) for _, places in ops]
        return tuple(op for op, _ in ops)

    def pending_ops(self) -> bool:
        return bool(self._ops)

    def invalidate(self, scope: Scope | None) -> int:
        return 0

    def stats(self) -> AllocatorStats:
        held = sum(count > 0 for count in self._holders.values())
        return AllocatorStats(
            total_pages=sum(self._total.values()),
            free_pages=sum(map(len, self._free.values())),
            held_pages=held,
            fenced_pages=sum(not self._holders[place] for place in self._fences),
            copies=self._copies,
            seals=self._seals,
        )

    def audit(self) -> None:
        wanted: Counter[Place] = Counter()
        for tables in self._tables.values():
            for table in tables:
                wanted.update([*table.pages.values(), *table.reserved])
        for _, places in [*self._ops, *self._drained]:
            wanted.update(places)
        for place, count in wanted.items():
            if self._holders[place] < count:
                raise PluginFault(f"KV-02: {place} has {self._holders[place]} holders, not {count}", subject="brute")
        for (group, pool), free in self._free.items():
            used = [place for place in self._holders if place[:2] == (group, pool)]
            if len(set(free)) != len(free) or any(place[2] in free for place in used):
                raise PluginFault(f"KV-01: a {pool} page of group {group} is free and held", subject="brute")
            if len(free) + len(used) != self._total[group, pool]:
                raise PluginFault(f"KV-01: {pool} pages of group {group} were lost", subject="brute")


def _sealable(group: KVGroup, tokens: int) -> int:
    """Leading pages that `residual_tokens` further tokens follow."""
    return max(0, tokens - group.residual_tokens) // group.page_tokens
