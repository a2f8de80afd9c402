"""One behaviour per sentence of the contract."""

import pickle
import random
import subprocess
import sys
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from allocator_driver import FakeSequence, fake_sequence, group, layout

from tokloom.plugins.kvcache.allocators.paged import PagedOptions, tokloom_allocator
from tokloom.plugins.kvcache.allocators.paged.allocator import PagedAllocator
from tokloom.sdk import (
    Allocation,
    CompositionError,
    Context,
    CopyPage,
    Hit,
    KVGroup,
    KVLayout,
    NoSpace,
    PluginFault,
    Published,
    Scope,
    SealPage,
    SlotRequest,
    TableDelta,
    ZeroPage,
)

ONE = layout(group(0, 4), main=[8])
SEALED = layout(group(0, 2, residual=2), main=[8], open=[8])
WINDOWED = layout(group(0, 2), group(1, 2, window=4), main=[16, 16])


class Bench:
    """An allocator and shorthand for calling it."""

    def __init__(self, spec: KVLayout, *, prefix_cache: bool = True) -> None:
        self.spec = spec
        self.alloc = PagedAllocator(spec, prefix_cache=prefix_cache)
        self.none = Hit(0, ((),) * len(spec.groups))

    def keys(self, seq: FakeSequence) -> list[list[bytes]]:
        def of(g: KVGroup) -> list[bytes]:
            stops = range(g.page_tokens, len(seq.tokens) - g.key_lookahead + 1, g.page_tokens)
            return [repr((seq.scope, g.id, seq.tokens[: stop + g.key_lookahead])).encode() for stop in stops]

        return [of(g) for g in self.spec.groups]

    def lookup(self, seq: FakeSequence, max_tokens: int | None = None) -> Hit:
        return self.alloc.lookup(seq, self.keys(seq), len(seq.tokens) - 1 if max_tokens is None else max_tokens)

    def try_grow(self, seq: FakeSequence, start: int, stop: int, hit: Hit | None = None) -> Allocation | NoSpace:
        return self.alloc.allocate(seq, SlotRequest(write_from=start, stop=stop, tokens=stop), hit or self.none)

    def grow(self, seq: FakeSequence, start: int, stop: int, hit: Hit | None = None) -> Allocation:
        result = self.try_grow(seq, start, stop, hit)
        assert isinstance(result, Allocation)
        return result

    def publish(self, seq: FakeSequence, tokens: int) -> Published:
        return self.alloc.publish(seq, tokens, self.keys(seq))

    def cached(self, seq_id: int, tokens: Iterable[int], scope: Scope | None = None) -> FakeSequence:
        """Compute, publish and release a sequence."""
        seq = fake_sequence(seq_id, tokens, scope)
        self.grow(seq, 0, len(seq.tokens), self.lookup(seq))
        self.publish(seq, len(seq.tokens))
        self.alloc.release(seq.seq_id, -1)
        return seq


def pages(deltas: Sequence[TableDelta], pool: str = "main") -> list[int]:
    return [delta.page for delta in deltas if delta.pool == pool and delta.page >= 0]


# -- the offer -------------------------------------------------------------------------------------------------------


def test_the_offer_makes_an_allocator_from_the_layout() -> None:
    (offer,) = tokloom_allocator()
    made = offer.factory(offer.config(), cast(Context, SimpleNamespace(layout=ONE)))
    assert (offer.kind, offer.name, str(offer.contract)) == ("allocator", "paged", "0.1")
    assert made.stats().total_pages == 8


def test_an_unknown_eviction_order_is_refused() -> None:
    with pytest.raises(ValueError, match="eviction"):
        PagedOptions(eviction=cast(Any, "random"))


def test_the_package_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import tokloom.plugins.kvcache.allocators.paged.allocator"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "bad",
    [
        KVLayout((group(1, 2),), (4,), (0,)),
        KVLayout((group(0, 2),), (4, 4), (0,)),
        KVLayout((group(0, 2, window=0),), (4,), (0,)),
    ],
)
def test_a_layout_that_contradicts_itself_is_refused(bad: KVLayout) -> None:
    with pytest.raises(CompositionError):
        PagedAllocator(bad)


# -- prefix hits -----------------------------------------------------------------------------------------------------


def test_a_hit_is_the_longest_resident_prefix_below_the_maximum() -> None:
    bench = Bench(ONE)
    bench.cached(1, range(12))
    seq = fake_sequence(2, range(12))
    assert bench.lookup(seq).tokens == 8
    assert bench.lookup(seq, 12).tokens == 12
    assert bench.lookup(fake_sequence(3, [*range(7), 99, 100])).tokens == 4


def test_another_scope_never_hits() -> None:
    bench = Bench(ONE)
    bench.cached(1, range(12), Scope(salt="a"))
    assert bench.lookup(fake_sequence(2, range(12), Scope(salt="b"))).tokens == 0
    assert bench.lookup(fake_sequence(2, range(12), Scope(adapter="a"))).tokens == 0


def test_without_a_prefix_cache_nothing_is_found_and_sealing_goes_on() -> None:
    bench = Bench(SEALED, prefix_cache=False)
    seq = fake_sequence(1, range(8))
    bench.grow(seq, 0, 8)
    published = bench.publish(seq, 8)
    assert not published.pages
    assert bench.alloc.stats().seals == 3
    assert bench.lookup(fake_sequence(2, range(8))).tokens == 0


def test_hit_tokens_are_counted_when_they_are_used() -> None:
    bench = Bench(ONE)
    bench.cached(1, range(12))
    seq = fake_sequence(2, range(12))
    hit = bench.lookup(seq)
    assert bench.alloc.stats().hit_tokens == 0
    bench.grow(seq, 8, 12, hit)
    assert bench.alloc.stats().hit_tokens == 8


def test_a_window_group_needs_only_the_pages_it_still_sees() -> None:
    bench = Bench(layout(group(0, 2), group(1, 2, window=4), main=[32, 16]))
    old = fake_sequence(1, range(12))
    bench.grow(old, 0, 12)
    bench.publish(old, 12)
    assert len(bench.alloc.slide(1, 12, -1)) == 4  # position 12 sees 9..12: pages 0..3 are the oldest now
    bench.alloc.release(1, -1)
    filler = bench.grow(fake_sequence(2, range(100, 128)), 0, 28)
    assert [evicted.group for evicted in filler.evicted] == [1] * 4
    hit = bench.lookup(fake_sequence(3, range(12)), 12)
    assert hit.tokens == 12
    assert [page >= 0 for page in hit.pages[1]] == [False] * 4 + [True] * 2
    assert bench.lookup(fake_sequence(3, range(11))).tokens == 0  # a shorter hit needs evicted pages


def test_a_stale_hit_is_refused_not_used() -> None:
    bench = Bench(ONE)
    bench.cached(1, range(12))
    seq = fake_sequence(2, range(12))
    hit = bench.lookup(seq)
    bench.grow(fake_sequence(3, range(50, 82)), 0, 32)  # evicts all
    bench.alloc.release(3, -1)
    before = pickle.dumps(bench.alloc)
    want = SlotRequest(write_from=8, stop=12, tokens=12)
    assert not bench.alloc.quote(seq, want, hit).fits_now
    assert isinstance(bench.alloc.allocate(seq, want, hit), NoSpace)
    assert pickle.dumps(bench.alloc) == before


def test_a_group_that_looks_ahead_is_found_one_token_later() -> None:
    bench = Bench(layout(group(0, 2), group(1, 2, lookahead=1), main=[8, 8]))
    seq = fake_sequence(1, range(6))
    bench.grow(seq, 0, 6)
    assert [len(keys) for keys in bench.keys(seq)] == [3, 2]
    bench.publish(seq, 6)
    assert bench.lookup(fake_sequence(2, range(6)), 6).tokens == 4


# -- allocation ------------------------------------------------------------------------------------------------------


def test_a_decode_token_inside_an_exclusive_page_changes_nothing() -> None:
    bench = Bench(ONE)
    seq = fake_sequence(1, range(6))
    bench.grow(seq, 0, 6)
    assert bench.grow(seq, 6, 7) is bench.grow(seq, 6, 7)
    assert bench.grow(seq, 6, 7).deltas == ()


def test_no_space_says_how_many_pages_are_missing_and_changes_nothing() -> None:
    bench = Bench(ONE)
    bench.grow(fake_sequence(1, range(20)), 0, 20)
    before = pickle.dumps(bench.alloc)
    assert bench.try_grow(fake_sequence(2, range(20)), 0, 20) == NoSpace(2)
    assert pickle.dumps(bench.alloc) == before


def test_a_hit_on_a_sequence_with_pages_is_a_fault() -> None:
    bench = Bench(ONE)
    bench.cached(1, range(12))
    seq = fake_sequence(2, range(12))
    hit = bench.lookup(seq)
    bench.grow(seq, 8, 9, hit)
    with pytest.raises(PluginFault, match="KV-09"):
        bench.grow(seq, 9, 24, hit)


def test_writing_into_a_published_page_copies_it_first() -> None:
    bench = Bench(ONE)
    seq = fake_sequence(1, range(8))
    source = pages(bench.grow(seq, 0, 8).deltas)[1]
    bench.publish(seq, 8)
    (delta,) = bench.grow(seq, 7, 8).deltas
    assert delta.index == 1
    assert bench.alloc.drain(0) == (CopyPage(0, "main", source, delta.page),)
    assert bench.alloc.stats().copies == 1
    assert bench.publish(seq, 8).deltas == (TableDelta(1, 0, "main", 1, source),)
    bench.alloc.audit()


def test_forks_share_until_one_writes() -> None:
    bench = Bench(ONE)
    parent = fake_sequence(1, range(6))
    mine = pages(bench.grow(parent, 0, 6).deltas)
    forked = bench.alloc.fork(1, 2, 6)
    assert isinstance(forked, Allocation)
    assert pages(forked.deltas) == mine
    copied = bench.grow(fake_sequence(2, range(7)), 6, 7)
    assert [delta.index for delta in copied.deltas] == [1]
    assert bench.grow(parent, 6, 7).deltas == ()  # the parent is alone with its page again
    bench.alloc.audit()


def test_the_last_of_n_children_writes_in_place() -> None:
    bench = Bench(ONE)
    bench.grow(fake_sequence(0, range(6)), 0, 6)
    for child in (1, 2):
        bench.alloc.fork(0, child, 6)
    moved = [bool(bench.grow(fake_sequence(i, range(7)), 6, 7).deltas) for i in range(3)]
    assert moved == [True, True, False]
    assert bench.alloc.stats().copies == 2


def test_new_pages_are_zeroed_only_where_no_tier_writes() -> None:
    bench = Bench(layout(group(0, 4), main=[8], zero=True))
    want = SlotRequest(write_from=8, stop=13, external=8, tokens=13)
    result = bench.alloc.allocate(fake_sequence(1, range(13)), want, bench.none)
    assert isinstance(result, Allocation)
    fresh = {delta.index: delta.page for delta in result.deltas}
    assert bench.alloc.drain(0) == tuple(ZeroPage(0, "main", fresh[index]) for index in (2, 3))


def test_a_tier_fills_sealed_pages_directly() -> None:
    bench = Bench(SEALED)
    seq = fake_sequence(1, range(6))
    want = SlotRequest(write_from=4, stop=6, external=4, tokens=6)
    result = bench.alloc.allocate(seq, want, bench.none)
    assert isinstance(result, Allocation)
    assert [(delta.pool, delta.index) for delta in result.deltas] == [("main", 0), ("main", 1), ("open", 2)]
    assert len(bench.publish(seq, 4).pages) == 2
    assert bench.alloc.stats().seals == 0


# -- publishing and sealing ------------------------------------------------------------------------------------------


def test_a_duplicate_is_replaced_by_the_published_page_and_waits_for_the_steps_that_read_it() -> None:
    bench = Bench(ONE)
    first, second = fake_sequence(1, range(4)), fake_sequence(2, range(4))
    (kept,) = pages(bench.grow(first, 0, 4).deltas)
    (duplicate,) = pages(bench.grow(second, 0, 4).deltas)
    bench.alloc.drain(5)
    bench.publish(first, 4)
    published = bench.publish(second, 4)
    assert published.pages == ()
    assert published.deltas == (TableDelta(2, 0, "main", 0, kept),)
    assert bench.alloc.groups[0].main.fenced == {duplicate}
    bench.alloc.settle(5)
    assert duplicate in bench.alloc.groups[0].main.free
    bench.alloc.audit()


def test_publishing_is_monotone_and_idempotent() -> None:
    bench = Bench(ONE)
    seq = fake_sequence(1, range(12))
    bench.grow(seq, 0, 12)
    assert len(bench.publish(seq, 8).pages) == 2
    assert bench.publish(seq, 8) == bench.publish(seq, 4) == Published()
    assert len(bench.publish(seq, 12).pages) == 1


def test_a_page_is_sealed_once_the_residual_follows_it() -> None:
    bench = Bench(SEALED)
    seq = fake_sequence(1, range(5))
    opened = pages(bench.grow(seq, 0, 3).deltas, "open")
    assert bench.publish(seq, 3).deltas == ()
    bench.grow(seq, 3, 4)
    published = bench.publish(seq, 4)
    ((_, _, sealed),) = published.pages
    assert published.deltas == (TableDelta(1, 0, "main", 0, sealed), TableDelta(1, 0, "open", 0, -1))
    assert bench.alloc.drain(0) == (SealPage(0, opened[0], sealed),)
    assert bench.alloc.stats().seals == 1


def test_the_source_of_a_seal_is_kept_until_its_step_settles() -> None:
    bench = Bench(layout(group(0, 2, residual=0), main=[2], open=[2]))
    seq = fake_sequence(1, range(4))
    bench.grow(seq, 0, 2)
    bench.publish(seq, 2)
    assert bench.alloc.pending_ops()
    bench.grow(seq, 2, 3)
    assert bench.alloc.groups[0].write.free == []
    bench.alloc.drain(7)
    bench.alloc.settle(6)
    assert bench.alloc.groups[0].write.free == []
    bench.alloc.settle(7)
    assert len(bench.alloc.groups[0].write.free) == 1


def test_main_pages_for_sealing_are_reserved_when_positions_are() -> None:
    bench = Bench(layout(group(0, 2, residual=0), main=[1], open=[8]))
    bench.grow(fake_sequence(1, range(2)), 0, 2)
    assert bench.try_grow(fake_sequence(2, range(2)), 0, 2) == NoSpace(1)
    assert isinstance(bench.try_grow(fake_sequence(2, range(2)), 0, 1), Allocation)


def test_a_span_that_writes_a_sealed_page_is_a_fault() -> None:
    bench = Bench(SEALED)
    seq = fake_sequence(1, range(8))
    bench.grow(seq, 0, 8)
    bench.publish(seq, 8)
    with pytest.raises(PluginFault, match="KV-04"):
        bench.grow(seq, 3, 8)


def test_a_fork_inside_a_sealed_page_is_a_fault_and_at_its_end_is_not() -> None:
    bench = Bench(SEALED)
    seq = fake_sequence(1, range(8))
    bench.grow(seq, 0, 8)
    bench.publish(seq, 8)
    with pytest.raises(PluginFault, match="KV-04"):
        bench.alloc.fork(1, 2, 5)
    assert isinstance(bench.alloc.fork(1, 2, 6), Allocation)
    bench.alloc.audit()


# -- giving back -----------------------------------------------------------------------------------------------------


def test_truncate_gives_back_whole_pages_and_no_published_one() -> None:
    bench = Bench(ONE)
    seq = fake_sequence(1, range(16))
    bench.grow(seq, 0, 16)
    bench.publish(seq, 8)
    assert [(d.index, d.page) for d in bench.alloc.truncate(1, 9, -1)] == [(3, -1)]
    assert [d.index for d in bench.alloc.truncate(1, 2, -1)] == [2]
    assert bench.alloc.truncate(1, 2, -1) == ()


def test_slide_drops_what_no_later_query_sees() -> None:
    bench = Bench(WINDOWED)
    seq = fake_sequence(1, range(12))
    bench.grow(seq, 0, 12)
    dropped = bench.alloc.slide(1, 9, -1)  # position 9 sees 6..9: pages 0..2 go
    assert sorted((d.group, d.index, d.page) for d in dropped) == [(1, 0, -1), (1, 1, -1), (1, 2, -1)]
    assert bench.alloc.slide(1, 9, -1) == ()


def test_release_is_idempotent_and_unknown_sequences_hold_nothing() -> None:
    bench = Bench(ONE)
    bench.grow(fake_sequence(1, range(9)), 0, 9)
    assert [bench.alloc.release(1, -1), bench.alloc.release(1, -1), bench.alloc.release(99, -1)] == [3, 0, 0]
    assert bench.alloc.truncate(99, 0, -1) == bench.alloc.slide(99, 0, -1) == ()
    assert bench.publish(fake_sequence(99, range(8)), 8) == Published()


def test_a_settled_fence_frees_at_once_and_another_waits() -> None:
    bench = Bench(ONE)
    for seq_id in (1, 2):
        bench.grow(fake_sequence(seq_id, range(8)), 0, 8)
    bench.alloc.settle(3)
    bench.alloc.release(1, 3)
    assert bench.alloc.stats().free_pages == 6
    bench.alloc.release(2, 4)
    assert (bench.alloc.stats().free_pages, bench.alloc.stats().fenced_pages) == (6, 2)
    bench.alloc.settle(4)
    assert bench.alloc.stats().free_pages == 8


def test_the_largest_fence_of_all_who_dropped_a_page_counts() -> None:
    bench = Bench(ONE)
    bench.grow(fake_sequence(1, range(4)), 0, 4)
    lease = bench.alloc.lease(1, 0, 4)
    bench.alloc.release(1, 9)
    bench.alloc.end_lease(lease, 2)
    bench.alloc.settle(8)
    assert bench.alloc.stats().fenced_pages == 1
    bench.alloc.settle(9)
    assert bench.alloc.stats().free_pages == 8


def test_eviction_takes_the_least_recently_used_chain_from_its_tail() -> None:
    bench = Bench(ONE)
    old, new = bench.cached(1, range(16)), bench.cached(2, range(50, 62))
    result = bench.grow(fake_sequence(3, range(80, 92)), 0, 12)
    keys = [evicted.key for evicted in result.evicted]
    assert keys == [bench.keys(old)[0][index] for index in (3, 2)]
    assert bench.alloc.stats().evictions == 2
    assert (bench.lookup(old).tokens, bench.lookup(new, 12).tokens) == (8, 12)


def test_a_used_prefix_is_evicted_after_an_unused_one() -> None:
    bench = Bench(ONE)
    first, second = bench.cached(1, range(16)), bench.cached(2, range(50, 66))
    again = fake_sequence(3, range(16))
    bench.grow(again, 12, 16, bench.lookup(again, 12))
    bench.alloc.release(3, -1)
    bench.grow(fake_sequence(4, range(80, 92)), 0, 12)
    assert bench.lookup(first).tokens == 12
    assert bench.lookup(second).tokens < 12


def test_a_parent_stays_while_someone_holds_only_its_child() -> None:
    bench = Bench(ONE)
    seq = fake_sequence(1, range(8))
    bench.grow(seq, 0, 8)
    child = bench.publish(seq, 8).pages[1][2]
    lease = bench.alloc.lease_pages([(0, child)])
    bench.alloc.release(1, -1)
    assert bench.try_grow(fake_sequence(2, range(50, 78)), 0, 28) == NoSpace(1)
    assert bench.lookup(fake_sequence(3, range(9))).tokens == 8
    bench.alloc.end_lease(lease, -1)
    assert isinstance(bench.try_grow(fake_sequence(2, range(50, 78)), 0, 28), Allocation)
    bench.alloc.audit()


def test_reclaimable_is_what_a_release_would_give_at_once() -> None:
    bench = Bench(ONE)
    seq = fake_sequence(1, range(10))
    bench.grow(seq, 0, 10)
    assert bench.alloc.reclaimable(1) == 3
    bench.alloc.fork(1, 2, 10)
    assert bench.alloc.reclaimable(1) == bench.alloc.reclaimable(2) == bench.alloc.reclaimable(99) == 0


def test_a_lease_outlives_its_sequence_and_ends_once() -> None:
    bench = Bench(ONE)
    bench.grow(fake_sequence(1, range(8)), 0, 8)
    lease = bench.alloc.lease(1, 4, 8)
    assert len(lease.pages) == 1
    bench.alloc.release(1, -1)
    assert bench.alloc.stats().free_pages == 7
    bench.alloc.end_lease(lease, -1)
    with pytest.raises(PluginFault, match="KV-02"):
        bench.alloc.end_lease(lease, -1)
    with pytest.raises(PluginFault, match="KV-02"):
        bench.alloc.lease_pages([(0, 3)])
    with pytest.raises(PluginFault, match="KV-02"):
        bench.alloc.lease(1, 0, 4)


def test_invalidated_pages_serve_their_holders_and_nobody_else() -> None:
    bench = Bench(ONE)
    bench.cached(1, range(8), Scope(salt="kept"))
    seq = fake_sequence(2, range(50, 62))
    bench.grow(seq, 0, 12)
    bench.publish(seq, 8)
    assert bench.alloc.invalidate(Scope()) == 2
    assert bench.grow(seq, 11, 12).deltas == ()
    assert bench.lookup(fake_sequence(3, range(50, 62))).tokens == 0
    assert bench.publish(seq, 12) == Published()  # its next page was computed from the forgotten ones
    assert bench.lookup(fake_sequence(4, range(9), Scope(salt="kept"))).tokens == 8
    assert bench.alloc.invalidate(None) == 2
    bench.alloc.audit()


# -- quotes ----------------------------------------------------------------------------------------------------------


def test_a_quote_counts_the_pool_that_decides() -> None:
    bench = Bench(layout(group(0, 2), group(1, 2), main=[16, 4]))
    quote = bench.alloc.quote(fake_sequence(1, range(6)), SlotRequest(write_from=0, stop=6, tokens=10), bench.none)
    assert (quote.new, quote.free, quote.total, quote.needed_ever) == (3, 4, 4, 5)
    assert quote.fits_now
    assert not quote.fits_ever


def lone_run_fits(spec: KVLayout, tokens: int) -> bool:
    """Whether a lone sequence reaches `tokens` one token at a time, each step settled before the next."""
    bench = Bench(spec)
    seq = fake_sequence(1, range(tokens))
    for position in range(tokens):
        if isinstance(bench.try_grow(seq, position, position + 1), NoSpace):
            return False
        bench.publish(seq, position + 1)
        bench.alloc.slide(1, position + 1, position)
        bench.alloc.drain(position)
        bench.alloc.settle(position)
        bench.alloc.audit()
    return True


@pytest.mark.parametrize("seed", range(60))
def test_fits_ever_is_true_exactly_if_a_lone_sequence_can_get_there(seed: int) -> None:
    rng = random.Random(seed)
    size, residual = rng.choice([1, 2, 4]), rng.choice([None, 0, 1, 2, 3])
    window = rng.choice([None, 2, 3, 4, 5, 7])
    spec = layout(
        group(0, size, window=window, residual=residual),
        main=[rng.randint(1, 8)],
        open=[0 if residual is None else rng.randint(1, 5)],
    )
    tokens = rng.randint(1, 20)
    bench = Bench(spec)
    want = SlotRequest(write_from=0, stop=1, tokens=tokens)
    quote = bench.alloc.quote(fake_sequence(1, range(tokens)), want, bench.none)
    assert quote.fits_ever == lone_run_fits(spec, tokens), f"{spec} at {tokens} tokens: {quote}"


def test_audit_names_the_invariant() -> None:
    bench = Bench(ONE)
    bench.grow(fake_sequence(1, range(4)), 0, 4)
    bench.alloc.groups[0].main.refs[bench.alloc.rows[1].tables[0].main[0]] += 1
    with pytest.raises(PluginFault, match="KV-02"):
        bench.alloc.audit()
