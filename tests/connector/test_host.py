"""The tier in main memory: what it keeps, what it gives back, and what it never does."""

import threading
from collections.abc import Iterator
from random import Random
from typing import cast

import pluggy
import pytest
import torch
from connector_rig import PAGES, SHAPES, FakeContext, Gate, Rig, key_of, random_delays

from tokloom.core.hooks import Hooks
from tokloom.plugins.kvcache.connectors import host as plugin
from tokloom.plugins.kvcache.connectors.host import HostOptions
from tokloom.plugins.kvcache.connectors.host.sizes import parse_size
from tokloom.sdk import CompositionError, ConnectorCaps, Context, Done, Match, SequenceView, TierEvent

NOBODY = cast(SequenceView, None)
GROUP0_BYTES = SHAPES[0][0] * SHAPES[0][1]


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.tier.close()


@pytest.fixture
def back() -> Iterator[Rig]:
    made = Rig(write_policy="back")
    yield made
    made.tier.close()


def small(blocks: int, **options: object) -> Rig:
    """A tier with room for so many blocks of group 0."""
    return Rig(capacity=str(blocks * GROUP0_BYTES), **options)


def test_the_offer_passes_the_hook_specification() -> None:
    manager = pluggy.PluginManager("tokloom")
    manager.add_hookspecs(Hooks)
    manager.register(plugin)
    manager.check_pending()
    ((offer,),) = manager.hook.tokloom_connector()
    assert (offer.kind, offer.name, str(offer.contract)) == ("connector", "host", "0.1")
    assert offer.capabilities == ConnectorCaps(stores=True, layerwise=False, persistent=False)


@pytest.mark.parametrize("group", [0, 1])
def test_a_stored_page_comes_back_bit_for_bit_in_another_page(rig: Rig, group: int) -> None:
    assert rig.save(group, 5, page=3).status == "ok"
    (done,) = rig.wait(rig.load((group, 5, 9)))
    assert done == Done(done.job_id, "ok")
    assert rig.holds(group, 9, 5)
    assert rig.is_poison(group, 3)


def test_groups_do_not_share_blocks_even_under_equal_keys(rig: Rig) -> None:
    rig.save(0, 5)
    assert rig.held(1, [5]) == set()
    (done,) = rig.wait(rig.load((1, 5, 2)))
    assert (done.status, done.failed) == ("failed", (0,))
    rig.save(1, 5)
    rig.wait(rig.load((0, 5, 1), (1, 5, 1)))
    assert rig.holds(0, 1, 5)
    assert rig.holds(1, 1, 5)


def test_an_overwritten_device_page_does_not_change_the_block_stored_from_it(rig: Rig) -> None:
    rig.save(0, 1, page=0)
    rig.save(0, 2, page=0)
    rig.wait(rig.load((0, 1, 4), (0, 2, 5)))
    assert rig.holds(0, 4, 1)
    assert rig.holds(0, 5, 2)


def test_lookup_names_the_held_pages_from_the_start_page_on(rig: Rig) -> None:
    for number in (0, 1, 3):
        rig.save(0, number)
    keys = [[key_of(n) for n in range(5)], [key_of(n) for n in range(5)]]
    assert rig.tier.lookup(NOBODY, keys, 0) == Match((frozenset({0, 1, 3}), frozenset()))
    assert rig.tier.lookup(NOBODY, keys, 1) == Match((frozenset({1, 3}), frozenset()))
    assert rig.tier.lookup(NOBODY, keys, 9) == Match((frozenset(), frozenset()))


def test_a_longer_prefix_never_matches_less(rig: Rig) -> None:
    for number in Random(3).sample(range(8), 5):
        rig.save(0, number)
    found: set[int] = set()
    for length in range(9):
        longer = rig.held(0, list(range(length)))
        assert found <= longer
        found = longer


@pytest.mark.parametrize("times", [0, 1, 5])
def test_looking_up_changes_nothing_not_even_who_leaves_next(times: int) -> None:
    rig = small(2)
    rig.save(0, 1)
    rig.save(0, 2)
    rig.tier.events()
    before = rig.tier.stats()
    for _ in range(times):
        assert rig.held(0, [1]) == {1}
    assert rig.tier.stats() == before
    assert rig.tier.events() == []
    rig.save(0, 3)
    assert rig.held(0, [1, 2, 3]) == {2, 3}
    rig.tier.close()


def test_the_least_recently_loaded_block_leaves_first() -> None:
    rig = small(2)
    rig.save(0, 1)
    rig.save(0, 2)
    rig.wait(rig.load((0, 1, 4)))
    rig.save(0, 3)
    assert rig.held(0, [1, 2, 3]) == {1, 3}
    assert rig.tier.stats()["evicted"] == 1
    rig.tier.close()


def test_a_chain_that_does_not_fit_keeps_its_head() -> None:
    rig = small(3)
    for page in range(5):
        rig.fill(0, page, page)
    (done,) = rig.wait(rig.store(*[(0, n, n) for n in range(5)]))
    assert (done.status, done.failed) == ("failed", (3, 4))
    assert rig.held(0, list(range(5))) == {0, 1, 2}
    rig.save(0, 9)
    assert rig.held(0, list(range(5))) == {0, 1}, "the tail of a chain leaves before its head"
    rig.tier.close()


def test_bytes_never_exceed_the_capacity() -> None:
    rig = small(3)
    rng = Random(1)
    for number in range(30):
        rig.save(rng.randrange(2), number)
        assert rig.tier.stats()["bytes"] <= 3 * GROUP0_BYTES
    assert rig.tier.stats()["evicted"] > 0
    rig.tier.close()


@pytest.mark.parametrize("policy", ["through", "back"])
def test_storing_what_is_held_copies_nothing(policy: str) -> None:
    rig = Rig(write_policy=policy)
    rig.fill(0, 0, 1)
    if policy == "back":
        rig.evict((0, 1, 0))
    else:
        rig.wait(rig.store((0, 1, 0)))
    rig.pages.handed.clear()
    if policy == "back":
        rig.evict((0, 1, 0))
    else:
        rig.wait(rig.store((0, 1, 0)))
    assert rig.pages.handed == {}
    assert rig.tier.stats()["stored"] == 1
    rig.tier.close()


# ---- damage


@pytest.mark.parametrize("policy", ["through", "back"])
def test_a_flipped_byte_is_a_failed_block_and_never_reaches_a_page(policy: str) -> None:
    rig = Rig(write_policy=policy)
    for number in range(3):
        rig.fill(0, number, number)
    if policy == "back":
        rig.evict(*[(0, n, n) for n in range(3)])
    else:
        rig.wait(rig.store(*[(0, n, n) for n in range(3)]))
    rig.pages.handed[0, 1][1, 17] ^= 0x20
    (done,) = rig.wait(rig.load((0, 0, 6), (0, 1, 7), (0, 2, 8)))
    assert (done.status, done.failed) == ("failed", (1,))
    assert rig.holds(0, 6, 0)
    assert rig.is_poison(0, 7)
    assert rig.holds(0, 8, 2)
    assert rig.held(0, [0, 1, 2]) == {0, 2}, "a damaged block is forgotten"
    assert rig.tier.stats()["failed"] == 1
    rig.tier.close()


def test_without_verification_damage_goes_unnoticed() -> None:
    rig = Rig(verify=False)
    rig.save(0, 1)
    rig.pages.handed[0, 0][0, 0] ^= 1
    (done,) = rig.wait(rig.load((0, 1, 2)))
    assert done.status == "ok"
    assert not rig.holds(0, 2, 1)
    rig.tier.close()


def test_a_block_that_is_stored_again_after_damage_is_good_again(rig: Rig) -> None:
    rig.save(0, 1)
    rig.pages.handed[0, 0][0, 0] ^= 1
    rig.wait(rig.load((0, 1, 2)))
    rig.save(0, 1)
    (done,) = rig.wait(rig.load((0, 1, 2)))
    assert done.status == "ok"
    assert rig.holds(0, 2, 1)


def test_a_block_that_left_after_the_lookup_is_a_failed_block(rig: Rig) -> None:
    rig.save(0, 1)
    (done,) = rig.wait(rig.load((0, 1, 2), (0, 99, 3)))
    assert (done.status, done.failed) == ("failed", (1,))
    assert rig.holds(0, 2, 1)
    assert rig.is_poison(0, 3)


def test_a_short_page_is_not_stored(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.pages, "read", lambda group, page: torch.zeros(1, 3, dtype=torch.uint8))
    (done,) = rig.wait(rig.store((0, 1, 0)))
    assert (done.status, done.failed) == ("failed", (0,))
    assert rig.held(0, [1]) == set()


@pytest.mark.parametrize("what", ["read", "write"])
def test_an_error_in_a_copy_fails_its_block_and_the_thread_goes_on(rig: Rig, what: str) -> None:
    rig.save(0, 1)

    def before(does: str, group: int, page: int) -> None:
        if does == what and page == 5:
            raise OSError("the device is gone")

    rig.pages.before = before
    jobs = [rig.store((0, 2, 5), (0, 3, 6))] if what == "read" else [rig.load((0, 1, 5), (0, 1, 6))]
    (done,) = rig.wait(*jobs)
    assert (done.status, done.failed) == ("failed", (0,))
    assert rig.save(0, 4).status == "ok"


# ---- the ends of jobs


@pytest.mark.parametrize("seed", range(12))
def test_every_job_ends_once_and_no_page_is_touched_without_a_lease(seed: int) -> None:
    rng = Random(seed)
    rig = small(6, max_jobs=rng.choice((1, 3, 64)))
    random_delays(rig, seed)
    jobs: list[int] = []
    for _ in range(40):
        pages = rng.sample(range(PAGES), 3)
        free = [p for p in pages if not rig.pages.leases[0, p]]
        if not free:
            rig.poll()
            continue
        if rng.random() < 0.5:
            numbers = [rng.randrange(10) for _ in free]
            for number, page in zip(numbers, free, strict=True):
                rig.fill(0, page, number)
            jobs.append(rig.store(*[(0, n, p) for n, p in zip(numbers, free, strict=True)]))
        else:
            jobs.append(rig.load(*[(0, rng.randrange(10), p) for p in free]))
        if rng.random() < 0.3:
            rig.tier.cancel(rng.choice(jobs))
        if rng.random() < 0.3:
            rig.poll()
    targets = {j: rig.live[j] for j in jobs if j in rig.live}
    rig.wait(*jobs)
    assert set(rig.done) == set(jobs), f"seed {seed}"
    for job_id, job in targets.items():
        done = rig.done[job_id]
        assert done.status == "failed" or not done.failed
        assert all(0 <= index < len(job.blocks) for index in done.failed)
    rig.tier.close()
    rig.poll()
    assert not rig.live


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_loaded_under_a_key_is_the_content_of_that_key(seed: int) -> None:
    """A preemption storm: pages are stored, overwritten and loaded into while the tier's thread lags behind."""
    rng = Random(seed)
    rig = small(5)
    random_delays(rig, seed)
    loads: dict[int, list[tuple[int, int, int]]] = {}
    arrived = 0

    def check_ended_loads() -> int:
        good = 0
        for job_id in [j for j in loads if j in rig.done]:
            for index, (_, number, page) in enumerate(loads.pop(job_id)):
                if index in rig.done[job_id].failed:
                    assert rig.is_poison(0, page), f"seed {seed}: a failed block was written"
                else:
                    assert rig.holds(0, page, number), f"seed {seed}: page {page} has foreign bytes"
                    good += 1
                rig.poison(0, page)
        return good

    for _ in range(60):
        free = [p for p in range(PAGES) if not rig.pages.leases[0, p]]
        rng.shuffle(free)
        blocks = [(0, rng.randrange(8), p) for p in free[: rng.randrange(1, 4)]]
        if blocks and rng.random() < 0.5:
            for _, number, page in blocks:
                rig.fill(0, page, number)
            rig.store(*blocks)
        elif blocks:
            for _, _, page in blocks:
                rig.poison(0, page)
            loads[rig.load(*blocks)] = blocks
        if rng.random() < 0.2:
            rig.wait(*rig.live)
        rig.poll()
        arrived += check_ended_loads()
    rig.wait(*rig.live)
    arrived += check_ended_loads()
    rig.tier.close()
    assert arrived == rig.tier.stats()["loaded"] > 0
    assert rig.tier.stats()["evicted"] > 0


def test_a_waiting_job_that_is_cancelled_ends_without_touching_a_page(rig: Rig) -> None:
    gate = Gate(rig)
    running = rig.store((0, 1, 0))
    gate.await_thread()
    waiting = rig.store((0, 2, 1))
    rig.tier.cancel(waiting)
    (done,) = rig.wait(waiting)
    assert done == Done(waiting, "cancelled")
    gate.open.set()
    rig.wait(running)
    assert (0, 1) not in rig.pages.handed


def test_a_running_job_that_is_cancelled_ends_after_its_block_and_touches_no_further_page(rig: Rig) -> None:
    gate = Gate(rig)
    running = rig.store((0, 1, 0), (0, 2, 1), (0, 3, 2))
    gate.await_thread()
    rig.tier.cancel(running)
    rig.poll()
    assert running in rig.live, "its pages stay leased while a copy runs"
    gate.open.set()
    (done,) = rig.wait(running)
    assert done.status == "cancelled"
    assert set(rig.pages.handed) == {(0, 0)}


def test_cancelling_twice_late_or_for_an_unknown_job_is_ignored(rig: Rig) -> None:
    job = rig.store((0, 1, 0))
    rig.wait(job)
    for _ in range(2):
        rig.tier.cancel(job)
    rig.tier.cancel(4711)
    rig.poll()
    assert set(rig.done) == {job}


def test_closing_ends_running_and_waiting_jobs_and_leaves_no_thread(rig: Rig) -> None:
    gate = Gate(rig)
    jobs = [rig.store((0, 1, 0), (0, 2, 1))]
    gate.await_thread()
    jobs += [rig.store((0, 3, 2)), rig.load((0, 1, 3))]
    closer = threading.Thread(target=rig.tier.close)
    closer.start()
    gate.open.set()
    closer.join(20)
    assert not closer.is_alive()
    ends = rig.wait(*jobs)
    assert [end.status for end in ends] == ["cancelled"] * 3
    for job_id in jobs:
        rig.tier.cancel(job_id)
    rig.poll()
    assert not rig.runs_a_thread()
    assert rig.tier.stats()["bytes"] == 0
    rig.tier.close()


def test_a_closed_tier_matches_nothing_and_still_ends_its_jobs(rig: Rig) -> None:
    rig.save(0, 1)
    rig.tier.close()
    assert not rig.tier.health().ok
    assert rig.held(0, [1]) == set()
    late = [rig.store((0, 2, 0)), rig.load((0, 1, 1))]
    assert [done.status for done in rig.wait(*late)] == ["cancelled", "cancelled"]
    rig.evict((0, 3, 2))
    assert rig.tier.stats()["blocks"] == 0


def test_no_thread_runs_before_the_first_job(rig: Rig) -> None:
    rig.held(0, [1])
    rig.tier.poll()
    assert not rig.runs_a_thread()


def test_a_thread_that_cannot_start_makes_the_tier_unhealthy_and_fails_jobs(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    assert rig.tier.health().ok
    monkeypatch.setattr(threading.Thread, "start", refuse)
    (done,) = rig.wait(rig.load((0, 1, 2)))
    assert done.status == "cancelled"
    assert "thread" in rig.tier.health().reason


# ---- bounded queues


def test_a_full_queue_drops_stores_and_a_load_takes_the_place_of_one() -> None:
    rig = Rig(max_jobs=2)
    rig.save(0, 9)
    gate = Gate(rig)
    running = rig.store((0, 1, 0))
    gate.await_thread()
    first, second, third = (rig.store((0, n, n)) for n in (2, 3, 4))
    rig.poll()
    assert set(rig.live) == {running, first, second}
    assert rig.done[third].status == "cancelled"
    load = rig.load((0, 9, 8))
    rig.poll()
    assert rig.done[second].status == "cancelled"
    gate.open.set()
    ends = rig.wait(running, first, load)
    assert [end.status for end in ends] == ["ok", "ok", "ok"]
    assert list(rig.done)[-2:] == [load, first], "somebody waits for a load"
    assert rig.tier.stats()["dropped"] == 2
    rig.tier.close()


def test_loads_beyond_the_queue_fail_at_once() -> None:
    rig = Rig(max_jobs=1)
    rig.save(0, 9)
    gate = Gate(rig)
    running = rig.load((0, 9, 0))
    gate.await_thread()
    waiting, refused = rig.load((0, 9, 1)), rig.load((0, 9, 2))
    rig.poll()
    assert rig.done[refused].status == "cancelled"
    gate.open.set()
    rig.wait(running, waiting)
    assert rig.is_poison(0, 2)
    rig.tier.close()


# ---- write back


def test_write_back_copies_on_eviction_and_not_on_store(back: Rig) -> None:
    back.fill(0, 0, 1)
    (done,) = back.wait(back.store((0, 1, 0)))
    assert done.status == "cancelled"
    assert back.held(0, [1]) == set()
    back.evict((0, 1, 0))
    assert back.held(0, [1]) == {1}
    (done,) = back.wait(back.load((0, 1, 4)))
    assert done.status == "ok"
    assert back.holds(0, 4, 1)


def test_write_back_reads_pages_inside_the_call_only(back: Rig) -> None:
    for page in range(4):
        back.fill(0, page, page)
    back.evict(*[(0, n, n) for n in range(4)])
    assert not back.pages.offences
    back.wait(back.load(*[(0, n, 8 - n) for n in range(4)]))
    assert all(back.holds(0, 8 - n, n) for n in range(4))


def test_write_through_does_nothing_on_eviction(rig: Rig) -> None:
    rig.fill(0, 0, 1)
    rig.evict((0, 1, 0))
    assert rig.pages.handed == {}
    assert rig.held(0, [1]) == set()


# ---- events


def replay(held: set[bytes], last: int, events: list[TierEvent]) -> int:
    for event in events:
        assert event.seq == last + 1, "a gap"
        last = event.seq
        if event.kind == "cleared":
            held.clear()
        elif event.kind == "stored":
            assert not held & set(event.keys), "stored twice"
            held |= set(event.keys)
        else:
            assert set(event.keys) <= held, "removed before it was stored"
            held -= set(event.keys)
    return last


@pytest.mark.parametrize("read_every", [1, 7, 1000])
def test_replaying_events_gives_what_the_tier_holds(read_every: int) -> None:
    rig, rng = small(4), Random(read_every)
    index: set[bytes] = set()
    last = 0
    for step in range(60):
        rig.save(rng.randrange(2), rng.randrange(9))
        if step % read_every == 0:
            last = replay(index, last, list(rig.tier.events()))
    last = replay(index, last, list(rig.tier.events()))
    numbers = list(range(9))
    assert index == {key_of(n) for n in rig.held(0, numbers) | rig.held(1, numbers)}
    assert rig.tier.stats()["evicted"] > 0
    rig.tier.close()
    replay(index, last, list(rig.tier.events()))
    assert index == set()


def test_events_that_nobody_reads_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokloom.plugins.kvcache.connectors.host.blocks.MAX_EVENTS", 10)
    rig = small(3)
    index: set[bytes] = set()
    rig.save(0, 0)
    last = replay(index, 0, list(rig.tier.events()))
    for number in range(1, 40):
        rig.save(0, number)
    backlog = list(rig.tier.events())
    assert sum(len(event.keys) for event in backlog) <= 10 + 3 + 1
    replay(index, last, backlog)
    assert index == {key_of(n) for n in (37, 38, 39)}
    rig.tier.close()


# ---- options


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("1B", 1),
        ("2kb", 2000),
        ("2KiB", 2048),
        ("1.5MiB", 3 << 19),
        ("500 MB", 500_000_000),
        ("4GiB", 4 << 30),
        (" 1TiB ", 1 << 40),
    ],
)
def test_sizes_are_written_with_decimal_and_binary_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "1.GiB", "4 gigs", "0", "0.1B", "1GiB 2", "٣GiB", "nan"])
def test_other_sizes_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size(text)
    with pytest.raises(ValueError, match="size"):
        HostOptions(capacity=text)


def test_a_capacity_may_be_a_number() -> None:
    assert parse_size(HostOptions(capacity=4096).capacity) == 4096


@pytest.mark.parametrize("options", [{"write_policy": "around"}, {"max_jobs": 0}, {"capacity": "lots"}])
def test_impossible_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # each validator has its own words
        HostOptions(**options)  # type: ignore[arg-type]


def test_a_capacity_below_one_page_of_each_group_is_refused_with_both_numbers() -> None:
    (offer,) = plugin.tokloom_connector()
    with pytest.raises(CompositionError, match=r"175 bytes.*176 bytes"):
        offer.factory(HostOptions(capacity="175"), cast(Context, FakeContext()))


def test_two_tiers_share_nothing(rig: Rig) -> None:
    other = Rig()
    rig.save(0, 1)
    assert other.held(0, [1]) == set()
    assert other.tier.stats()["stored"] == 0
    other.tier.close()
