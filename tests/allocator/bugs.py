"""Broken allocators. Each replaces one function; `caught_by` are the invariants that notice.

Some are mistakes other engines shipped. What comes first depends on the random program, so a bug may name several.
"""

import random
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

from allocator_driver import Driver, layout
from allocator_driver import group as kv_group
from attrs import frozen

from tokloom.plugins.kvcache.allocators.paged import allocator as allocator_module
from tokloom.plugins.kvcache.allocators.paged import planning
from tokloom.plugins.kvcache.allocators.paged.allocator import PagedAllocator
from tokloom.plugins.kvcache.allocators.paged.index import PrefixIndex, longest_hit
from tokloom.plugins.kvcache.allocators.paged.pool import NEVER, NONE, PagePool
from tokloom.plugins.kvcache.allocators.paged.publishing import Publication
from tokloom.plugins.kvcache.allocators.paged.tables import Group, Row, Table
from tokloom.sdk import Allocation, Hit, NoSpace, Quote, Scope, SlotRequest

Target = type | ModuleType


@frozen
class Bug:
    """`target.attribute` becomes `replacement`. A `scenario` shows it where a random program seldom gets there."""

    name: str
    target: Target
    attribute: str
    replacement: Callable[..., Any]
    caught_by: frozenset[str]
    scenario: Callable[[], None] | None = None


BUGS: Final[list[Bug]] = []


def bug(
    target: Target, attribute: str, *caught_by: str, scenario: Callable[[], None] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the replacement of `target.attribute`."""

    def register(replacement: Callable[..., Any]) -> Callable[..., Any]:
        name = replacement.__name__.replace("_", " ")
        BUGS.append(Bug(name, target, attribute, replacement, frozenset(caught_by), scenario))
        return replacement

    return register


pool_drop, pool_take, pool_unhold = PagePool.drop, PagePool.take, PagePool.unhold
emit, allocate, quote, release = (
    PagedAllocator.emit,
    PagedAllocator.allocate,
    PagedAllocator.quote,
    PagedAllocator.release,
)
slide, truncate, publish, lookup, drain = (
    PagedAllocator.slide,
    PagedAllocator.truncate,
    PagedAllocator.publish,
    PagedAllocator.lookup,
    PagedAllocator.drain,
)
plan_group, plan_write, replace = planning.plan_group, planning._plan_write, Publication._replace
end_lease, held_by, sealable = PagedAllocator.end_lease, PagedAllocator._held_by, Group.sealable


@bug(Publication, "_replace", "I9", "KV-02", "P7", "KV-21")
def deduplication_leaves_the_row_alone(
    self: Publication, seq_id: int, group: Group, table: Table, index: int, found: int, *, sealed: bool
) -> None:
    group.write.drop(table.write[index] if not sealed else table.main[index], self._allocator.drained)


@bug(Publication, "_replace", "KV-02")
def the_duplicate_is_never_freed(
    self: Publication, seq_id: int, group: Group, table: Table, index: int, found: int, *, sealed: bool
) -> None:
    own = table.main[index] if sealed else table.write[index]
    (group.main if sealed else group.write).pin(own)
    replace(self, seq_id, group, table, index, found, sealed=sealed)


@bug(Publication, "_replace", "KV-14")
def the_duplicate_is_freed_under_a_running_step(
    self: Publication, seq_id: int, group: Group, table: Table, index: int, found: int, *, sealed: bool
) -> None:
    drained, self._allocator.drained = self._allocator.drained, NEVER
    replace(self, seq_id, group, table, index, found, sealed=sealed)
    self._allocator.drained = drained


@bug(PagePool, "take", "I9", "KV-17", "KV-02", "KV-14", "KV-08", "I4")
def eviction_ignores_references(self: PagePool) -> tuple[int, bytes | None]:
    victim = next((page for page, key in enumerate(self.keys) if key is not None), NONE)
    if self.free or victim == NONE:
        return pool_take(self)
    key, self.keys[victim] = self.keys[victim], None
    self.cached.pop(victim, None)
    self.refs[victim] = 1
    return victim, key


@bug(PagedAllocator, "lookup", "P0", "P2")
def a_match_covers_the_whole_prompt(
    self: PagedAllocator, seq: Any, keys: Sequence[Sequence[bytes]], max_tokens: int
) -> Hit:
    return lookup(self, seq, keys, max_tokens + 1)


@bug(PagePool, "drop", "KV-14", "KV-15", "K1")
def the_last_dropper_decides_the_fence(self: PagePool, page: int, fence: int) -> None:
    self.fences[page] = fence
    pool_drop(self, page, fence)


def copy_of_a_copy() -> None:
    """A page is copied, leased, and copied again before any step is launched: the order of the copies matters."""
    driver = Driver(layout(kv_group(0, 4), main=[8]), PagedAllocator, random.Random(0))
    seq = driver.start([0, 1, 1, 0, 1, 0], Scope())
    driver.schedule(seq, 6)
    driver.quiesce()
    for _ in range(2):
        driver.lease(seq, 0)
        assert driver.rewind(seq, 1)
    driver.quiesce()


@bug(PagedAllocator, "drain", "K1", scenario=copy_of_a_copy)
def operations_lose_their_order(self: PagedAllocator, step: int) -> tuple[Any, ...]:
    return drain(self, step)[::-1]


@bug(planning, "_plan_write", "KV-04")
def published_pages_are_written_in_place(
    group: Group, plan: planning.GroupPlan, index: int, page: int, *, from_hit: bool
) -> None:
    if page == NONE or group.write.refs[page] > 1:
        plan_write(group, plan, index, page, from_hit=from_hit)


@bug(planning, "_plan_write", "KV-04")
def shared_pages_are_written_in_place(
    group: Group, plan: planning.GroupPlan, index: int, page: int, *, from_hit: bool
) -> None:
    if page == NONE or group.write.keys[page] is not None:
        plan_write(group, plan, index, page, from_hit=from_hit)


@bug(planning, "plan_group", "KV-21", "KV-09")
def the_sealed_reserve_is_forgotten(*args: Any) -> planning.GroupPlan:
    plan = plan_group(*args)
    plan.reserve = 0
    return plan


@bug(PagedAllocator, "slide", "KV-16")
def the_window_is_one_key_short_in_slide(self: PagedAllocator, seq_id: int, tokens: int, fence: int) -> Any:
    return slide(self, seq_id, tokens + 1, fence)


@bug(PagedAllocator, "slide", "KV-16")
def the_window_slides_one_key_late(self: PagedAllocator, seq_id: int, tokens: int, fence: int) -> Any:
    return slide(self, seq_id, tokens - 1, fence)


@bug(PagedAllocator, "slide", "KV-14")
def slide_frees_pages_a_running_step_sees(self: PagedAllocator, seq_id: int, tokens: int, fence: int) -> Any:
    return slide(self, seq_id, tokens, NEVER)


@bug(PagedAllocator, "allocate", "KV-06")
def no_space_leaves_the_hit_pinned(self: PagedAllocator, seq: Any, want: SlotRequest, hit: Hit) -> Allocation | NoSpace:
    result = allocate(self, seq, want, hit)
    if isinstance(result, NoSpace) and hit.tokens:
        self.groups[0].main.pin(hit.pages[0][0])
    return result


@bug(PagedAllocator, "release", "KV-02", "KV-03")
def release_forgets_that_it_ran(self: PagedAllocator, seq_id: int, fence: int) -> int:
    row = self.rows.get(seq_id)
    dropped = release(self, seq_id, fence)
    if row is not None:
        self.rows[seq_id] = row
    return dropped


@bug(PrefixIndex, "invalidate", "KV-19", "P2")
def invalidate_ignores_the_scope(self: PrefixIndex, scope: Any, original: Any = PrefixIndex.invalidate) -> int:
    return int(original(self, None))


@bug(PagedAllocator, "invalidate", "KV-19")
def stale_sequences_go_on_publishing(self: PagedAllocator, scope: Any) -> int:
    return sum(group.index.invalidate(scope) for group in self.groups)


@bug(PagedAllocator, "lookup", "P3")
def lookup_counts_as_a_use(self: PagedAllocator, seq: Any, keys: Sequence[Sequence[bytes]], max_tokens: int) -> Hit:
    hit = lookup(self, seq, keys, max_tokens)
    for group, pages in zip(self.groups, hit.pages, strict=True):
        for page in pages:
            if page in group.main.cached:
                group.main.cached.move_to_end(page)
    return hit


@bug(PagedAllocator, "emit", "KV-05", "K1", "KV-14")
def an_operation_does_not_hold_its_source(self: PagedAllocator, op: Any, *holds: tuple[PagePool, int]) -> None:
    emit(self, op, holds[-1])


@bug(PagePool, "unhold", "KV-14")
def an_operation_lets_go_when_it_is_drained(self: PagePool, page: int, step: int) -> None:
    pool_unhold(self, page, NEVER)


@bug(PagedAllocator, "publish", "KV-11", "KV-21", "K2")
def unverified_drafts_are_published(self: PagedAllocator, seq: Any, tokens: int, keys: Any) -> Any:
    row = self.rows.get(seq.seq_id)
    return publish(self, seq, max(tokens, row.stop if row else 0), keys)


@bug(PagedAllocator, "_held_by", "KV-17")
def heads_are_evicted_before_tails(self: PagedAllocator, row: Row) -> list[tuple[PagePool, int]]:
    for pool, page in held_by(self, row):
        if pool.parents[page] != NONE:
            pool.orphan(page)
    return held_by(self, row)[::-1]


@bug(PrefixIndex, "forget", "I7", "KV-10", "KV-19", "P2", "P7")
def an_evicted_page_can_still_be_found(self: PrefixIndex, key: bytes) -> None:
    self.scopes[self.pages[key]] = None


@bug(PagedAllocator, "end_lease", "I14")
def a_lease_may_end_twice(self: PagedAllocator, lease: Any, fence: int) -> None:
    if lease.lease_id in self.leases:
        end_lease(self, lease, fence)


@bug(PagedAllocator, "truncate", "KV-01")
def truncate_keeps_a_page_too_many(self: PagedAllocator, seq_id: int, tokens: int, fence: int) -> Any:
    return truncate(self, seq_id, tokens + 1, fence)


@bug(PagedAllocator, "quote", "KV-07")
def a_quote_forgets_the_pins(self: PagedAllocator, seq: Any, want: SlotRequest, hit: Hit) -> Quote:
    full = quote(self, seq, want, hit)
    plans = planning.row_plans(self.groups, self.rows.get(seq.seq_id), want, hit)
    needs = planning.pool_needs(self.groups, plans, want)
    for need in needs:
        need.room += need.pinned
    return planning.quote_of(needs, 0) if hit.tokens else full


@bug(allocator_module, "longest_hit", "P1", "P2")
def a_hit_ignores_the_window_groups(
    found: Any, page_tokens: Any, windows: Any, max_tokens: int, original: Any = longest_hit
) -> int:
    return int(original(found, page_tokens, [None] * len(windows), max_tokens))


@bug(PagedAllocator, "reclaimable", "KV-15")
def reclaimable_counts_shared_pages(self: PagedAllocator, seq_id: int) -> int:
    return len(held_by(self, self.rows[seq_id]))


@bug(Group, "sealable", "KV-21", "KV-11", "K1", "K2", "KV-09")
def a_page_is_sealed_with_its_residual_open(self: Group, tokens: int) -> int:
    return tokens // self.page_tokens if self.residual == 0 else sealable(self, tokens + 1)


@bug(PagedAllocator, "_take", "K1")
def a_loaded_page_is_zeroed(
    self: PagedAllocator,
    seq_id: int,
    group: Group,
    table: Table,
    plan: Any,
    want: SlotRequest,
    *rest: Any,
    original: Any = PagedAllocator._take,
) -> None:
    original(self, seq_id, group, table, plan, SlotRequest(write_from=want.write_from, stop=want.stop), *rest)
