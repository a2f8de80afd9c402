"""Recompute every count from who holds what, and name the first invariant that does not hold. O(pages)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tokloom.plugins.kvcache.allocators.paged.pool import NONE, PagePool, fault
from tokloom.plugins.kvcache.allocators.paged.tables import Group, Row, Table
from tokloom.sdk import PageId, PageOp

Holds = Sequence[tuple[PagePool, PageId]]


def audit(
    groups: Sequence[Group],
    rows: Mapping[int, Row],
    leases: Mapping[int, Holds],
    pending: Iterable[tuple[PageOp, Holds]],
) -> None:
    """Check pools, indexes and rows. Raises PluginFault."""
    refs: Counter[tuple[PagePool, PageId]] = Counter()
    for row in rows.values():
        for group, table in zip(groups, row.tables, strict=True):
            _check_table(group, table, row.stop)
            refs.update((part.pool, page) for part in group.parts(table) for page in part.entries if page != NONE)
            refs.update((group.main, page) for page in table.reserve)
    for lease in leases.values():
        refs.update(lease)
    holds: Counter[tuple[PagePool, PageId]] = Counter()
    for _, held in pending:
        holds.update(held)
    for group in groups:
        for pool in group.pools():
            _check_pool(pool, refs, holds)
        _check_index(group)


def _require(invariant: str, ok: bool, message: str) -> None:
    if not ok:
        raise fault(invariant, message)


def _check_table(group: Group, table: Table, stop: int) -> None:
    """Shapes of one table: see the drawing in tables.py."""
    for part in group.parts(table):
        pages = [page for page in part.entries if page != NONE]
        _require("I3", len(set(pages)) == len(pages), "a row names a page twice")
        for page in pages:
            _require("I9", part.pool.refs[page] > 0, f"a live row names page {page}, which nobody holds")
        _require("KV-16", all(page == NONE for page in part.entries[: table.start]), "a page that slid out is held")
    if group.open is None:
        _require("KV-09", table.published <= len(table.main), "more pages are published than there are")
        return
    _require("KV-04", len(table.main) <= max(table.sealed, table.start), "an open page has a sealed page already")
    _require("KV-04", all(page == NONE for page in table.write[: table.sealed]), "a sealed page is still open")
    _require("KV-09", table.published <= table.sealed, "a page is published before it is sealed")
    needed = group.sealable(stop) - table.sealed
    _require("KV-01", len(table.reserve) <= max(0, needed), "pages are reserved that commit cannot need")


def _check_pool(
    pool: PagePool, refs: Mapping[tuple[PagePool, PageId], int], holds: Mapping[tuple[PagePool, PageId], int]
) -> None:
    free = set(pool.free)
    _require("I2", len(free) == len(pool.free), "a page is free twice")
    _require("I1", all(0 <= page < pool.size for page in free), "the free list has a page that does not exist")
    busy = Counter(pool.parents[page] for page in range(pool.size) if page not in pool.cached)
    for page in range(pool.size):
        wanted = refs.get((pool, page), 0)
        _require("KV-02", pool.refs[page] == wanted, f"page {page} counts {pool.refs[page]} of {wanted} holders")
        _require("KV-05", pool.holds[page] == holds.get((pool, page), 0), f"operations hold page {page} miscounted")
        _require("I8", pool.busy[page] == busy[page], f"page {page} miscounts the children that need it")
        _check_region(pool, page, page in free)
    _require("I5", pool.held >= 0, "the regions add up to more than the pool")


def _check_region(pool: PagePool, page: PageId, free: bool) -> None:
    """A page is in exactly one region, the one its counts say."""
    regions = free + (page in pool.cached) + (page in pool.fenced)
    needed = bool(pool.refs[page] or pool.holds[page] or pool.busy[page])
    _require("KV-01", regions == (0 if needed else 1), f"page {page} is in {regions} regions and needed: {needed}")
    if free or page in pool.cached:
        _require("KV-14", pool.fences[page] <= pool.settled, f"page {page} may be taken before its fence settled")
    if free:
        _require("I4", pool.keys[page] is None, f"page {page} is free and published")
    if page in pool.cached:
        _require("I4", pool.keys[page] is not None, f"page {page} is cached and not published")
    parent = pool.parents[page]
    if parent != NONE:
        _require("KV-17", pool.keys[parent] is not None, f"page {page} outlived its parent {parent}")


def _check_index(group: Group) -> None:
    keys = {key: page for page, key in enumerate(group.main.keys) if key is not None}
    _require("I7", keys == group.index.pages, "the index and the pages' keys differ")
    scopes = {page for page, scope in enumerate(group.index.scopes) if scope is not None}
    _require("KV-19", scopes == set(keys.values()), "a page without a key remembers a scope, or the other way round")
    if group.open is not None:
        _require("KV-04", all(key is None for key in group.open.keys), "an open page is published")
