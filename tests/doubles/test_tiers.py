"""Tiers of the doubles: every job ends once, blocks come back as they were, and each misbehaviour is the one named."""

import threading
import time
from collections import Counter
from typing import Any

import pytest
import torch
from doubles_rig import build, context
from torch import Tensor

from tokloom.conformance.doubles.connectors import Slow
from tokloom.conformance.doubles.offers import Seeded
from tokloom.conformance.doubles.threaded import Threaded
from tokloom.core.context import EngineContext
from tokloom.sdk import Block, Done, Evicted, Job, Match, Pending


class Memory:
    """Implements `PageAccess` over a dictionary."""

    def __init__(self) -> None:
        self.pages: dict[tuple[int, int], Tensor] = {}

    def read(self, group: int, page: int) -> Tensor:
        return self.pages.setdefault((group, page), torch.full((2, 16), page, dtype=torch.uint8)).clone()

    def write(self, group: int, page: int, data: Tensor) -> None:
        self.pages[group, page] = data.clone()

    def nbytes(self, group: int) -> int:
        return 32


class View:
    """As much of a SequenceView as tiers look at."""

    seq_id = 7


def tier(name: str, mode: str = "", seed: int = 0) -> tuple[Any, Memory, EngineContext]:
    memory, bound = Memory(), context()
    bound.bind_pages(memory)
    kind = {"slow": Slow, "threaded": Threaded}[name]
    return kind(Seeded(seed=seed, mode=mode), bound), memory, bound


def key(index: int) -> bytes:
    return bytes([index])


def job(number: int, *pages: int, key_of: int = 0) -> Job:
    return Job(number, 7, tuple(Block(0, key(key_of + i), page) for i, page in enumerate(pages)))


def drain(connector: Any, count: int) -> list[Done]:
    """Poll until so many jobs ended."""
    done: list[Done] = []
    end = time.monotonic() + 20
    while len(done) < count and time.monotonic() < end:
        done += connector.poll()
        threading.Event().wait(0.001)
    return done


@pytest.mark.parametrize("name", ["slow", "threaded"])
def test_blocks_come_back_as_they_were(name: str) -> None:
    connector, memory, _ = tier(name)
    connector.store(job(1, 3, 4))
    assert [end.status for end in drain(connector, 1)] == ["ok"]
    connector.load(job(2, 8, 9))
    assert drain(connector, 1) == [Done(2, "ok")]
    assert memory.pages[0, 8].unique().tolist() == [3]
    assert memory.pages[0, 9].unique().tolist() == [4]
    stats = connector.stats()
    assert stats == {"blocks": 2, "bytes": 64, "stored": 2, "loaded": 2, "failed": 0, "evicted": 0}
    connector.close()


@pytest.mark.parametrize("name", ["slow", "threaded"])
@pytest.mark.parametrize("seed", range(3))
def test_every_job_ends_exactly_once_whatever_happens(name: str, seed: int) -> None:
    connector, _, _ = tier(name, seed=seed)
    for number in range(1, 13):
        (connector.store if number % 3 else connector.load)(job(number, number))
        if number % 4 == 0:
            connector.cancel(number)
    connector.cancel(999)
    early = list(connector.poll())
    connector.close()
    connector.close()
    ends = Counter(end.job_id for end in [*early, *connector.poll(), *connector.poll()])
    assert ends == Counter(range(1, 13))
    assert connector.started == connector.ended == 12


def test_a_slow_tier_takes_one_to_four_polls() -> None:
    taken = set()
    for seed in range(30):
        connector, _, _ = tier("slow", seed=seed)
        connector.store(job(1, 3))
        polls = 1
        while not connector.poll():
            polls += 1
        taken.add(polls)
    assert taken == {1, 2, 3, 4}


def test_matches_name_held_pages_from_the_start_page_on() -> None:
    connector, _, _ = tier("slow")
    connector.store(job(1, 3, 4, 5))
    drain(connector, 1)
    keys = [[key(0), key(1), key(9), key(2)], [key(0)]]
    assert connector.lookup(View(), keys, 1) == Match((frozenset({1, 3}), frozenset()))
    assert connector.lookup(View(), keys, 0) == connector.lookup(View(), keys, 0)


def test_a_pending_tier_answers_after_three_lookups() -> None:
    connector, _, _ = tier("slow", "pending")
    answers = [connector.lookup(View(), [[key(0)]], 0) for _ in range(5)]
    assert answers == [Pending()] * 3 + [Match((frozenset(),))] * 2


def test_events_are_numbered_without_gaps_and_told_once() -> None:
    connector, _, _ = tier("slow")
    connector.store(job(1, 3, 4))
    connector.store(job(2, 5, key_of=1))
    drain(connector, 2)
    first = connector.events()
    connector.store(job(3, 6, key_of=5))
    drain(connector, 1)
    events = [*first, *connector.events()]
    assert [event.seq for event in events] == [1, 2, 3]
    assert {event.keys for event in events} == {(key(0),), (key(1),), (key(5),)}
    assert connector.events() == []


def test_a_failing_tier_fails_some_blocks_names_them_and_leaves_garbage() -> None:
    failed = 0
    for seed in range(10):
        connector, memory, _ = tier("slow", "failing", seed)
        connector.store(job(1, 3, 4, 5))
        drain(connector, 1)
        connector.load(job(2, 7, 8, 9))
        (end,) = drain(connector, 1)
        for index in range(3):
            right = index not in end.failed
            assert memory.pages[0, 7 + index].unique().tolist() == [3 + index if right else 0x55]
        assert (end.status == "failed") == bool(end.failed)
        failed += len(end.failed)
    assert 0 < failed < 30


def test_a_boasting_tier_claims_what_it_lacks_and_fails_it() -> None:
    connector, _, _ = tier("slow", "boasting")
    assert connector.lookup(View(), [[key(0), key(1)]], 0) == Match((frozenset({0, 1}),))
    connector.load(job(1, 3, 4))
    assert drain(connector, 1) == [Done(1, "failed", (0, 1))]


def test_a_short_tier_fails_whole_jobs_without_saying_which_blocks() -> None:
    ends = []
    for seed in range(12):
        connector, _, _ = tier("slow", "short", seed)
        connector.store(job(1, 3))
        drain(connector, 1)
        connector.load(job(2, 5))
        ends += drain(connector, 1)
    assert {(end.status, end.failed) for end in ends} == {("ok", ()), ("failed", ())}


def test_a_lying_tier_ends_jobs_twice_and_unknown_ones() -> None:
    connector, _, _ = tier("slow", "lying")
    connector.store(job(1, 3))
    assert [end.job_id for end in drain(connector, 4) if end.job_id != 999_999] == [1, 1]
    assert 999_999 in [end.job_id for end in connector.poll()]


def test_sick_raising_and_nonsense_are_what_they_say() -> None:
    assert not tier("slow", "sick")[0].health().ok
    raising = tier("slow", "raising")[0]
    for call in (
        raising.health,
        raising.poll,
        lambda: raising.lookup(View(), [[key(0)]], 0),
        lambda: raising.load(job(1, 2)),
        lambda: raising.store(job(1, 2)),
        lambda: raising.on_evict([Evicted(0, key(1), 2)]),
        lambda: raising.on_preempt(7),
        lambda: raising.on_finish(7),
    ):
        with pytest.raises(RuntimeError):
            call()
    nonsense = tier("slow", "nonsense")[0]
    answers = [nonsense.lookup(View(), [[key(0)]], 0) for _ in range(5)]
    assert sum(not isinstance(answer, Match) or len(answer.pages) != 1 for answer in answers) >= 3
    assert "done" in nonsense.poll()


def test_the_threaded_tier_moves_bytes_elsewhere_and_wakes_the_loop() -> None:
    connector, _, bound = tier("threaded")
    assert not bound.wait(0)
    connector.store(job(1, 3))
    assert bound.wait(20)
    assert connector.poll() == [Done(1, "ok")]
    assert connector.threads == {ident for ident in connector.threads if ident != threading.get_ident()} != set()
    connector.close()
    assert not any(thread.name == "tokloom-double" for thread in threading.enumerate())


def test_the_layered_tier_hears_of_layers_in_order() -> None:
    connector = build("connector", "layered")
    connector.before_layer(3, 0)
    connector.after_layer(3, 0)
    assert connector.layers == [("before", 3, 0), ("after", 3, 0)]
