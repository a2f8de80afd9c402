"""What an `allocate` would take: the pure half that `quote` and `allocate` share."""

from collections.abc import Sequence

from attrs import define, field

from tokloom.plugins.kvcache.allocators.paged.pool import NONE, PagePool, fault
from tokloom.plugins.kvcache.allocators.paged.tables import Group, Row, Table
from tokloom.sdk import Hit, PageId, Quote, SlotRequest


@define(slots=True)
class GroupPlan:
    """The changes of one group, by page index.

    Attributes:
        pins: (index, page) of the hit.
        copies: entries of the write table that must become exclusive.
        fresh: entries of the write table that get a new page.
        loaded: entries of the main table of a sealing group that a tier will fill.
        reserve: main pages to take ahead of sealing.
        sealed: the table's `sealed` afterwards.
        locked: copies whose source is published: it stays whatever other sequences do.
    """

    pins: list[tuple[int, PageId]] = field(factory=list)
    copies: list[int] = field(factory=list)
    fresh: list[int] = field(factory=list)
    loaded: list[int] = field(factory=list)
    reserve: int = 0
    sealed: int = 0
    locked: int = 0


@define(slots=True)
class PoolNeed:
    """One pool's part of a plan: pages to take, hit pages that stop being evictable, room after pinning."""

    pool: PagePool
    new: int
    pinned: int
    room: int
    ever: int


def plan_group(group: Group, table: Table | None, stop: int, want: SlotRequest, hit: Hit) -> GroupPlan:
    """The changes that make `[.., want.stop)` addressable and `[want.write_from, want.stop)` exclusive in one group."""
    plan = GroupPlan()
    low, need = want.write_from // group.page_tokens, group.pages(want.stop)
    if want.stop <= want.write_from:
        low = need
    if table is None:
        first_new = _plan_prefix(group, plan, low, want, hit)
        present = dict(plan.pins)
    else:
        plan.sealed, first_new = table.sealed, len(table.write)
        present = {
            index: table.write[index] for index in range(low, min(need, first_new)) if table.write[index] != NONE
        }
    if low < need and low < plan.sealed:
        raise fault("KV-04", f"a span writes from position {want.write_from}, below what is sealed")
    for index in range(low, min(need, first_new)):
        _plan_write(group, plan, index, present.get(index, NONE), from_hit=table is None)
    plan.fresh.extend(range(max(first_new, plan.sealed), need))
    if group.open is not None:
        plan.reserve = max(0, group.sealable(max(stop, want.stop)) - plan.sealed - len(table.reserve if table else ()))
    return plan


def _plan_prefix(group: Group, plan: GroupPlan, low: int, want: SlotRequest, hit: Hit) -> int:
    """Pins and loaded pages of a sequence without pages; returns the first index that needs a new page.

    Pages of a window group that no query after the loaded prefix can see are left out.
    """
    hit_pages = hit.tokens // group.page_tokens
    if hit.tokens:
        plan.pins = [(i, hit.pages[group.id][i]) for i in range(group.first_visible(hit.tokens), hit_pages)]
    if group.open is not None:
        plan.sealed = hit_pages
    if not want.external:
        return hit_pages
    end = hit.tokens + want.external
    first = max(hit_pages, group.first_visible(end))
    if group.open is not None:
        plan.loaded = list(range(first, end // group.page_tokens))
        plan.sealed = max(hit_pages, end // group.page_tokens)
        return max(first, plan.sealed)
    return min(first, max(low, hit_pages))


def _plan_write(group: Group, plan: GroupPlan, index: int, page: PageId, *, from_hit: bool) -> None:
    if page == NONE:
        plan.fresh.append(index)
    elif from_hit or group.write.refs[page] > 1 or group.write.keys[page] is not None:
        plan.copies.append(index)
        plan.locked += group.write.keys[page] is not None


def pool_needs(groups: Sequence[Group], plans: Sequence[GroupPlan], want: SlotRequest) -> list[PoolNeed]:
    """Sum a plan per pool."""
    needs: list[PoolNeed] = []
    for group, plan in zip(groups, plans, strict=True):
        ever = group.needed_ever(max(want.tokens, want.stop))
        written, ahead = len(plan.copies) + len(plan.fresh), len(plan.loaded) + plan.reserve
        pinned = sum(page in group.main.cached for _, page in plan.pins)
        if plan.locked and group.window is None:
            ever[-1] = max(ever[-1], group.pages(want.stop) + plan.locked)
        main_new = ahead + (written if group.open is None else 0)
        needs.append(PoolNeed(group.main, main_new, pinned, group.main.available - pinned, ever[0]))
        if group.open is not None:
            needs.append(PoolNeed(group.open, written, 0, group.open.available, ever[1]))
    return needs


def stale_pages(groups: Sequence[Group], hit: Hit) -> int:
    """Pages of the hit that were evicted, or published anew under another key, since the lookup."""
    return sum(
        not group.index.current(page, hit.receipt)
        for group in groups
        for page in hit.pages[group.id][group.first_visible(hit.tokens) : hit.tokens // group.page_tokens]
    )


def quote_of(needs: Sequence[PoolNeed], stale: int) -> Quote:
    """The quote of the pool that decides: the one most exceeded for ever, else the one with least room afterwards."""
    fits_ever = all(need.ever <= need.pool.size for need in needs)
    tight = min(needs, key=lambda need: need.room - need.new if fits_ever else need.pool.size - need.ever)
    return Quote(
        new=tight.new,
        pinned=tight.pinned,
        free=max(tight.room, 0),
        total=tight.pool.size,
        needed_ever=tight.ever,
        fits_now=not stale and all(need.new <= need.room for need in needs),
        fits_ever=fits_ever,
    )


def row_plans(groups: Sequence[Group], row: Row | None, want: SlotRequest, hit: Hit) -> list[GroupPlan]:
    """The plan of every group. A sequence with pages has no hit."""
    if row is not None and hit.tokens:
        raise fault("KV-09", "a hit was given for a sequence that has pages already")
    stop = row.stop if row is not None else 0
    return [plan_group(group, row.tables[group.id] if row is not None else None, stop, want, hit) for group in groups]
