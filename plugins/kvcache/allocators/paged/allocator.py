"""PagedAllocator: the KVAllocator protocol over pools, indexes and rows."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from tokloom.plugins.kvcache.allocators.paged import planning
from tokloom.plugins.kvcache.allocators.paged.audit import audit
from tokloom.plugins.kvcache.allocators.paged.groups import make_groups
from tokloom.plugins.kvcache.allocators.paged.index import longest_hit
from tokloom.plugins.kvcache.allocators.paged.pool import NEVER, NONE, PagePool, fault
from tokloom.plugins.kvcache.allocators.paged.publishing import Publication
from tokloom.plugins.kvcache.allocators.paged.reclaim import immediate_gain
from tokloom.plugins.kvcache.allocators.paged.tables import Group, Part, Row, Table, pad, set_entry
from tokloom.sdk import (
    Allocation,
    AllocatorStats,
    CacheKey,
    CopyPage,
    Evicted,
    GroupId,
    GroupStats,
    Hit,
    KVLayout,
    Lease,
    NoSpace,
    PageId,
    PageOp,
    Published,
    Quote,
    Scope,
    SeqId,
    SequenceView,
    SlotRequest,
    TableDelta,
    ZeroPage,
)

NOTHING: Final = Allocation(())


class PagedAllocator:
    """Pages of fixed size, shared through a hash-chained prefix cache.

    Row and lease references, operation holds and fences live in the pools; this class turns calls into references
    and table deltas. A page is given up with the fence of its dropper: the caller's for truncate, slide, release and
    end_lease; the latest drained step where the contract has no fence (copy-on-write, deduplication, sealing), since
    no later step can have been launched with the old table.
    """

    def __init__(self, layout: KVLayout, *, prefix_cache: bool = True) -> None:
        self.groups = make_groups(layout)
        self.prefix_cache = prefix_cache
        self.zero_new_pages = layout.zero_new_pages
        self.rows: dict[SeqId, Row] = {}
        self.leases: dict[int, tuple[tuple[PagePool, PageId], ...]] = {}
        self.pending: list[tuple[PageOp, tuple[tuple[PagePool, PageId], ...]]] = []
        self.drained = NEVER
        self.clock = 0  # counts publications; dates hits
        self._lease_ids = 0
        self._empty_hit = Hit(0, ((),) * len(self.groups))
        self._hit_tokens = self._evictions = self._copies = self.seals = 0

    # -- planning a step ---------------------------------------------------------------------------------------------

    def lookup(self, seq: SequenceView, keys: Sequence[Sequence[CacheKey]], max_tokens: int) -> Hit:
        if not self.prefix_cache:
            return self._empty_hit
        found = [group.index.resident(group_keys) for group, group_keys in zip(self.groups, keys, strict=True)]
        sizes, windows = [group.page_tokens for group in self.groups], [group.window for group in self.groups]
        tokens = longest_hit(found, sizes, windows, max_tokens)
        return Hit(tokens, tuple(map(tuple, found)), self.clock)

    def quote(self, seq: SequenceView, want: SlotRequest, hit: Hit) -> Quote:
        plans = planning.row_plans(self.groups, self.rows.get(seq.seq_id), want, hit)
        stale = planning.stale_pages(self.groups, hit) if hit.tokens else 0
        return planning.quote_of(planning.pool_needs(self.groups, plans, want), stale)

    def allocate(self, seq: SequenceView, want: SlotRequest, hit: Hit) -> Allocation | NoSpace:
        row = self.rows.get(seq.seq_id)
        if row is not None and not hit.tokens and self._in_place(row, want):
            if want.stop > row.stop:
                row.stop = want.stop
            return NOTHING
        plans = planning.row_plans(self.groups, row, want, hit)
        stale = planning.stale_pages(self.groups, hit) if hit.tokens else 0
        short = max((need.new - need.room for need in planning.pool_needs(self.groups, plans, want)), default=0)
        if stale or short > 0:
            return NoSpace(max(stale, short))
        if row is None:
            row = self.rows[seq.seq_id] = self._new_row(seq.request.scope)
        row.stop = max(row.stop, want.stop, hit.tokens + want.external)
        self._hit_tokens += hit.tokens
        deltas: list[TableDelta] = []
        evicted: list[Evicted] = []
        for group, plan in zip(self.groups, plans, strict=True):
            self._pin_hit(seq.seq_id, group, row.tables[group.id], plan, hit, deltas)
        for group, plan in zip(self.groups, plans, strict=True):
            self._take(seq.seq_id, group, row.tables[group.id], plan, want, hit, deltas, evicted)
        return Allocation(tuple(deltas), tuple(evicted))

    def drain(self, step: int) -> tuple[PageOp, ...]:
        self.drained = max(self.drained, step)
        if not self.pending:
            return ()
        ops = tuple(op for op, _ in self.pending)
        for _, holds in self.pending:
            for pool, page in holds:
                pool.unhold(page, step)
        self.pending.clear()
        return ops

    def pending_ops(self) -> bool:
        return bool(self.pending)

    # -- committing a step -------------------------------------------------------------------------------------------

    def truncate(self, seq_id: SeqId, tokens: int, fence: int) -> tuple[TableDelta, ...]:
        row = self.rows.get(seq_id)
        if row is None:
            return ()
        row.stop = min(row.stop, tokens)
        deltas: list[TableDelta] = []
        for group, table in zip(self.groups, row.tables, strict=True):
            keep = max(group.pages(tokens), table.sealed, table.published, table.start)
            for index in range(len(table.write) - 1, keep - 1, -1):
                self._clear(seq_id, group, group.parts(table)[-1], index, fence, deltas)
            del table.write[keep:]
            self.trim_reserve(group, table, row.stop)
        return tuple(deltas)

    def fork(self, parent: SeqId, child: SeqId, tokens: int) -> Allocation | NoSpace:
        source = self.rows.get(parent)
        if source is None or child in self.rows or tokens > source.stop:
            raise fault("KV-02", f"cannot fork {child} from the first {tokens} tokens of {parent}")
        for group, table in zip(self.groups, source.tables, strict=True):
            if tokens % group.page_tokens and table.sealed > tokens // group.page_tokens:
                raise fault("KV-04", f"fork of {parent} at {tokens} ends inside a sealed page; fork before publishing")
        row = self.rows[child] = Row([], source.scope, tokens, source.tainted)
        deltas: list[TableDelta] = []
        for group, table in zip(self.groups, source.tables, strict=True):
            pages = group.pages(tokens)
            full = tokens // group.page_tokens
            copy = Table(
                table.main[:pages], None if table.open is None else table.open[:pages], min(table.start, pages)
            )
            copy.sealed, copy.published = min(table.sealed, full), min(table.published, full)
            row.tables.append(copy)
            for pool, name, entries in group.parts(copy):
                for index, page in enumerate(entries):
                    if page != NONE:
                        pool.pin(page)
                        deltas.append(TableDelta(child, group.id, name, index, page))
        return Allocation(tuple(deltas))

    def publish(self, seq: SequenceView, tokens: int, keys: Sequence[Sequence[CacheKey]]) -> Published:
        row = self.rows.get(seq.seq_id)
        if row is None:
            return Published()
        note = Publication(self)
        for group, table, group_keys in zip(self.groups, row.tables, keys, strict=True):
            if self.prefix_cache and not row.tainted:
                note.publish(seq.seq_id, group, table, row.scope, tokens, group_keys)
            if group.open is not None:
                note.seal_rest(seq.seq_id, group, table, tokens)
                self.trim_reserve(group, table, row.stop)
        return note.result()

    def slide(self, seq_id: SeqId, tokens: int, fence: int) -> tuple[TableDelta, ...]:
        row = self.rows.get(seq_id)
        if row is None:
            return ()
        deltas: list[TableDelta] = []
        for group, table in zip(self.groups, row.tables, strict=True):
            first = group.first_visible(tokens)
            if first <= table.start:
                continue
            for part in group.parts(table):
                for index in range(min(first, len(part.entries)) - 1, table.start - 1, -1):
                    self._clear(seq_id, group, part, index, fence, deltas)
            table.start = min(first, max(len(table.write), len(table.main)))
            if group.open is not None:
                table.sealed = max(table.sealed, table.start)
                self.trim_reserve(group, table, row.stop)
            table.published = max(table.published, table.start)
        return tuple(deltas)

    def release(self, seq_id: SeqId, fence: int) -> int:
        row = self.rows.pop(seq_id, None)
        if row is None:
            return 0
        dropped = 0
        for pool, page in self._held_by(row):
            pool.drop(page, fence)
            dropped += 1
        for group, table in zip(self.groups, row.tables, strict=True):
            dropped += len(table.reserve)
            self.trim_reserve(group, table, 0, keep=0)
        return dropped

    def settle(self, step: int) -> None:
        for group in self.groups:
            for pool in group.pools():
                pool.settle(step)

    # -- others who hold pages ---------------------------------------------------------------------------------------

    def lease(self, seq_id: SeqId, start: int, stop: int) -> Lease:
        row = self.rows.get(seq_id)
        if row is None:
            raise fault("KV-02", f"sequence {seq_id} has no pages to lease")
        main: list[tuple[GroupId, PageId]] = []
        holds: list[tuple[PagePool, PageId]] = []
        for group, table in zip(self.groups, row.tables, strict=True):
            for pool, name, entries in group.parts(table):
                for page in entries[start // group.page_tokens : group.pages(stop)]:
                    if page != NONE:
                        holds.append((pool, page))
                        if name == "main":
                            main.append((group.id, page))
        return self._new_lease(tuple(main), tuple(holds))

    def lease_pages(self, pages: Sequence[tuple[GroupId, PageId]]) -> Lease:
        for group_id, page in pages:
            pool = self.groups[group_id].main
            if not 0 <= page < pool.size or not (pool.refs[page] or pool.keys[page] is not None):
                raise fault("KV-02", f"page {page} of group {group_id} is neither held nor published")
        return self._new_lease(tuple(pages), tuple((self.groups[group_id].main, page) for group_id, page in pages))

    def end_lease(self, lease: Lease, fence: int) -> None:
        holds = self.leases.pop(lease.lease_id, None)
        if holds is None:
            raise fault("KV-02", f"lease {lease.lease_id} has ended before or was never given")
        for pool, page in reversed(holds):
            pool.drop(page, fence)

    def invalidate(self, scope: Scope | None) -> int:
        for row in self.rows.values():
            row.tainted |= scope is None or row.scope == scope
        return sum(group.index.invalidate(scope) for group in self.groups)

    # -- figures -----------------------------------------------------------------------------------------------------

    def reclaimable(self, seq_id: SeqId) -> int:
        row = self.rows.get(seq_id)
        if row is None:
            return 0
        return immediate_gain(self._held_by(row)) + sum(len(table.reserve) for table in row.tables)

    def stats(self) -> AllocatorStats:
        pools = [pool for group in self.groups for pool in group.pools()]
        return AllocatorStats(
            total_pages=sum(pool.size for pool in pools),
            free_pages=sum(len(pool.free) for pool in pools),
            cached_pages=sum(len(pool.cached) for pool in pools),
            held_pages=sum(pool.held for pool in pools),
            fenced_pages=sum(len(pool.fenced) for pool in pools),
            hit_tokens=self._hit_tokens,
            evictions=self._evictions,
            copies=self._copies,
            seals=self.seals,
            groups=tuple(_group_stats(group) for group in self.groups),
        )

    def audit(self) -> None:
        audit(self.groups, self.rows, self.leases, self.pending)

    # -- shared steps ------------------------------------------------------------------------------------------------

    def emit(self, op: PageOp, *holds: tuple[PagePool, PageId]) -> None:
        """Queue an operation; it holds its pages until it is drained, and by fence until that step has settled."""
        for pool, page in holds:
            pool.hold(page)
        self.pending.append((op, holds))

    def trim_reserve(self, group: Group, table: Table, stop: int, *, keep: int | None = None) -> None:
        """Give back reserved pages that sealing up to `stop` cannot need. No step has ever seen them."""
        needed = max(0, group.sealable(stop) - table.sealed) if keep is None else keep
        while len(table.reserve) > needed:
            group.main.drop(table.reserve.pop(), NEVER)

    def _in_place(self, row: Row, want: SlotRequest) -> bool:
        """Whether the span's pages are there and exclusive already: the usual decode step."""
        for group, table in zip(self.groups, row.tables, strict=True):
            size, entries, pool = group.page_tokens, table.write, group.write
            last = (want.stop - 1) // size
            if last >= len(entries):
                return False
            for index in range(want.write_from // size, last + 1):
                page = entries[index]
                if page == NONE or pool.refs[page] != 1 or pool.keys[page] is not None:
                    return False
            if group.open is not None and group.sealable(want.stop) - table.sealed > len(table.reserve):
                return False
        return True

    def _new_row(self, scope: Scope) -> Row:
        return Row([Table(open=None if group.open is None else []) for group in self.groups], scope)

    def _pin_hit(
        self, seq_id: SeqId, group: Group, table: Table, plan: planning.GroupPlan, hit: Hit, deltas: list[TableDelta]
    ) -> None:
        for index, page in plan.pins:
            group.main.pin(page)
            set_entry(table.main, index, page)
            deltas.append(TableDelta(seq_id, group.id, "main", index, page))
        pages = hit.tokens // group.page_tokens
        pad(table.main, pages)
        if hit.tokens:
            table.start, table.published = group.first_visible(hit.tokens), pages

    def _take(
        self,
        seq_id: SeqId,
        group: Group,
        table: Table,
        plan: planning.GroupPlan,
        want: SlotRequest,
        hit: Hit,
        deltas: list[TableDelta],
        evicted: list[Evicted],
    ) -> None:
        take = partial(self._take_page, group, evicted)
        table.sealed = plan.sealed
        for index in plan.copies:
            src, dst = table.write[index], take(group.write)
            self.emit(CopyPage(group.id, group.write_name, src, dst), (group.write, src), (group.write, dst))
            group.write.drop(src, self.drained)
            self._copies += 1
            table.write[index] = dst
            table.published = min(table.published, index)
            deltas.append(TableDelta(seq_id, group.id, group.write_name, index, dst))
        for index in plan.loaded:
            page = take(group.main)
            set_entry(table.main, index, page)
            deltas.append(TableDelta(seq_id, group.id, "main", index, page))
        if table.open is not None:
            pad(table.open, table.sealed)
            pad(table.main, table.sealed)
        for index in plan.fresh:
            page = take(group.write)
            set_entry(table.write, index, page)
            deltas.append(TableDelta(seq_id, group.id, group.write_name, index, page))
            begin, end = index * group.page_tokens, (index + 1) * group.page_tokens
            if self.zero_new_pages and not (begin < hit.tokens + want.external and end > hit.tokens and want.external):
                self.emit(ZeroPage(group.id, group.write_name, page), (group.write, page))
        table.reserve.extend(take(group.main) for _ in range(plan.reserve))

    def _take_page(self, group: Group, evicted: list[Evicted], pool: PagePool) -> PageId:
        page, key = pool.take()
        if key is not None:
            group.index.forget(key)
            evicted.append(Evicted(group.id, key, page))
            self._evictions += 1
        return page

    def _clear(self, seq_id: SeqId, group: Group, part: Part, index: int, fence: int, deltas: list[TableDelta]) -> None:
        page = part.entries[index]
        if page != NONE:
            part.entries[index] = NONE
            part.pool.drop(page, fence)
            deltas.append(TableDelta(seq_id, group.id, part.name, index, NONE))

    def _held_by(self, row: Row) -> list[tuple[PagePool, PageId]]:
        """Pages of all tables, tails before heads."""
        return [
            (pool, page)
            for group, table in zip(self.groups, row.tables, strict=True)
            for pool, _, entries in reversed(group.parts(table))
            for page in reversed(entries)
            if page != NONE
        ]

    def _new_lease(self, main: tuple[tuple[GroupId, PageId], ...], holds: tuple[tuple[PagePool, PageId], ...]) -> Lease:
        for pool, page in holds:
            pool.pin(page)
        self._lease_ids += 1
        self.leases[self._lease_ids] = holds
        return Lease(self._lease_ids, main)


def _group_stats(group: Group) -> GroupStats:
    pools = group.pools()
    return GroupStats(
        group=group.id,
        total=sum(pool.size for pool in pools),
        free=sum(len(pool.free) for pool in pools),
        cached=sum(len(pool.cached) for pool in pools),
        held=sum(pool.held for pool in pools),
    )
