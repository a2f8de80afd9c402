"""How the ends of a tier's loads are taken: only what failed is held against a tier, and garbage is never used."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from engine_world import World, compose, greedy, request

from tokloom.sdk import Done, Job, Match

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4, 7, 6, 5, 3, 2]


def warm(**options: Any) -> World:
    """The prompt's pages are in the tier and no longer in the pool."""
    world = World(compose(tiers=["slow"], **options))
    world.run(request("first", PROMPT, max_tokens=2))
    world.core.state.allocator.invalidate(None)
    return world


def tier(world: World) -> Any:
    return world.composition.connectors[0].plugin


def end_loads(world: World, end: Callable[[Job], Done], times: int = 1) -> None:
    """The tier's next loads end like this, with garbage in their pages."""
    plugin = tier(world)
    load, left = plugin.load, times

    def ended(job: Job) -> None:
        nonlocal left
        if not left:
            load(job)
            return
        left -= 1
        pages = world.core.pools
        for block in job.blocks:
            pages.write(block.group, block.page, pages.read(block.group, block.page).fill_(0x55))
        plugin._done.append(end(job))

    plugin.load = ended


def preempted_after(world: World, steps: int) -> World:
    """A request whose pages are lost, in the pool's cache too, once it has run for some steps."""
    world.add(request("a", PROMPT, max_tokens=8))
    while not world.core.state.running:
        world.step()
    for _ in range(steps):
        world.step()
    world.core.state.allocator.invalidate(None)
    (seq,) = world.core.state.running.values()
    world.core.state.preempt(seq)
    world.run()
    assert world.outcomes["a", 0].said == (greedy(PROMPT, 8), "length")
    return world


def loaded(world: World) -> int:
    usage = world.outcomes["a", 0].usage
    assert usage is not None
    return usage.tier_tokens


def test_blocks_of_a_load_that_the_tier_declined_are_loaded_when_the_sequence_starts_again() -> None:
    world = warm()
    end_loads(world, lambda job: Done(job.job_id, "cancelled"))
    assert loaded(preempted_after(world, 3)) >= 16
    assert not world.faults
    world.finish()


def test_blocks_that_failed_are_not_asked_for_again() -> None:
    world = warm()
    end_loads(world, lambda job: Done(job.job_id, "failed"))
    assert loaded(preempted_after(world, 3)) == 0
    world.finish()


def test_a_tier_that_declines_every_load_keeps_nobody_waiting() -> None:
    world = warm()
    end_loads(world, lambda job: Done(job.job_id, "cancelled"), times=1000)
    world.run(request("a", PROMPT, max_tokens=8), limit=100)
    assert world.outcomes["a", 0].said == (greedy(PROMPT, 8), "length")
    assert loaded(world) == 0
    world.finish()


def test_a_load_that_the_core_cancelled_says_nothing_against_its_blocks() -> None:
    world = warm()
    world.add(request("a", PROMPT, max_tokens=8))
    while not world.core.state.loading:
        world.step()
    (seq,) = world.core.state.loading.values()
    world.core.state.preempt(seq)
    world.run()
    assert not seq.bad_blocks
    assert not seq.declined_blocks
    assert world.outcomes["a", 0].said == (greedy(PROMPT, 8), "length")
    assert loaded(world) == 16
    world.finish()


@pytest.mark.parametrize("failed", [(99,), (-1,), ("0",), 7, (0, 99), [0], (None,)])
def test_a_failure_that_names_no_block_of_its_job_is_one_of_all_blocks(failed: Any) -> None:
    world = warm()
    end_loads(world, lambda job: Done(job.job_id, "failed", failed))
    world.run(request("a", PROMPT, max_tokens=8))
    assert world.outcomes["a", 0].said == (greedy(PROMPT, 8), "length")
    assert loaded(world) == 0
    assert "connector.slow" in world.faults
    world.finish()


@pytest.mark.parametrize("status", ["done", None])
def test_an_end_of_unknown_status_is_a_failure(status: Any) -> None:
    world = warm()
    end_loads(world, lambda job: Done(job.job_id, status))
    world.run(request("a", PROMPT, max_tokens=8))
    assert world.outcomes["a", 0].said == (greedy(PROMPT, 8), "length")
    assert "connector.slow" in world.faults
    world.finish()


@pytest.mark.parametrize("pages", [frozenset({"0", 1}), frozenset({None}), frozenset({-1}), frozenset({0.0, 1.5})])
def test_pages_that_are_no_indices_are_not_offered(pages: Any) -> None:
    world = warm()
    tier(world).lookup = lambda seq, keys, start: Match((pages,) * len(keys))
    world.run(request("a", PROMPT, max_tokens=8))
    assert world.outcomes["a", 0].said == (greedy(PROMPT, 8), "length")
    world.finish()


@pytest.mark.parametrize("job_id", [[], None, "1"])
def test_an_end_of_no_job_is_a_fault(job_id: Any) -> None:
    world = warm()
    poll = tier(world).poll

    def lying() -> Sequence[Done]:
        return [*poll(), Done(job_id, "ok")]

    tier(world).poll = lying
    world.run(request("a", PROMPT, max_tokens=8))
    assert loaded(world) == 16
    assert "connector.slow" in world.faults
    world.finish()


def test_tokens_from_tiers_are_those_beyond_the_local_hit() -> None:
    """Steps and sequences count the same."""
    world = World(compose(tiers=["slow"], pages=200))
    world.run(request("first", PROMPT, max_tokens=2))
    world.core.state.allocator.invalidate(None)
    world.run(request("short", PROMPT[:9], max_tokens=2))
    world.core.state.tiers.loaded_tokens = 0
    world.run(request("a", PROMPT, max_tokens=2))
    usage = world.outcomes["a", 0].usage
    assert usage is not None
    assert usage.hit_tokens == 8
    assert usage.tier_tokens == 8
    assert world.core.state.tiers.loaded_tokens == 8
    world.finish()


def test_a_sick_tier_is_asked_for_nothing_and_given_nothing() -> None:
    world = World(compose(tiers=[{"plugin": "slow", "options": {"mode": "sick"}}]))
    world.run(request("first", PROMPT, max_tokens=2))
    world.core.state.allocator.invalidate(None)
    world.run(request("a", PROMPT, max_tokens=8))
    assert world.outcomes["a", 0].said == (greedy(PROMPT, 8), "length")
    assert (tier(world).lookups, tier(world).started) == (0, 0)
    assert not world.faults
    world.finish()
