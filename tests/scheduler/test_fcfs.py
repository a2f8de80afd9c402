"""First come, first served: who goes first, who is preempted, how much of a prompt is computed."""

from random import Random

import pluggy
import pytest
from scheduler_views import View, make_view, random_views

from tokloom.core.hooks import Hooks
from tokloom.plugins.sched import fcfs as plugin
from tokloom.sdk import (
    Admit,
    Budget,
    Candidate,
    Context,
    DraftStats,
    NoOptions,
    Offer,
    Quote,
    SchedEvent,
    SchedulerCaps,
    SchedulerPolicy,
)

SEEDS = range(30)


@pytest.fixture
def policy() -> SchedulerPolicy:
    return offer().factory(NoOptions(), NoContext)


def offer() -> Offer[NoOptions, SchedulerPolicy]:
    (only,) = plugin.tokloom_scheduler()
    return only


NoContext: Context = None  # type: ignore[assignment]  # the policy is not to look at it


def budget(rows: int, max_rows: int = 64) -> Budget:
    return Budget(rows=rows, max_rows=max_rows, sequences=4, decoding=0, now=0.0)


def before(a: View, b: View) -> bool:
    """Whether a is served before b, written out as the rule is told."""
    if a.request.priority != b.request.priority:
        return a.request.priority > b.request.priority
    if a.arrival != b.arrival:
        return a.arrival < b.arrival
    return a.seq_id < b.seq_id


def test_the_offer_passes_the_hook_specification() -> None:
    manager = pluggy.PluginManager("tokloom")
    manager.add_hookspecs(Hooks)
    manager.register(plugin)
    manager.check_pending()
    ((found,),) = manager.hook.tokloom_scheduler()
    assert (found.kind, found.name, str(found.contract)) == ("scheduler", "fcfs", "0.1")
    assert isinstance(found.capabilities, SchedulerCaps)
    assert found.capabilities.head_of_line == "strict"


@pytest.mark.parametrize("seed", SEEDS)
def test_order_serves_everybody_once_and_puts_nobody_behind_somebody_of_lower_rank(
    policy: SchedulerPolicy, seed: int
) -> None:
    rng = Random(seed)
    waiting, running = random_views(rng, rng.randrange(8)), random_views(rng, rng.randrange(8))
    order = policy.order(waiting, running, now=9.0)
    for views, ids in ((waiting, order.waiting), (running, order.running)):
        assert sorted(ids) == sorted(v.seq_id for v in views)
        by_id = {v.seq_id: v for v in views}
        ranked = [by_id[i] for i in ids]
        assert all(before(a, b) for i, a in enumerate(ranked) for b in ranked[i + 1 :])


@pytest.mark.parametrize("seed", SEEDS)
def test_order_does_not_depend_on_the_order_of_its_input(policy: SchedulerPolicy, seed: int) -> None:
    rng = Random(seed)
    views = random_views(rng, 9)
    expected = policy.order(views, [], now=0.0)
    assert policy.order(rng.sample(views, len(views)), [], now=5.0) == expected


def test_a_preempted_sequence_keeps_its_place(policy: SchedulerPolicy) -> None:
    preempted, later = make_view(1, arrival=1.0, preemptions=3), make_view(2, arrival=2.0)
    assert policy.order([later, preempted], [], now=9.0).waiting == (1, 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_victim_ranks_after_the_requester_frees_something_and_nobody_ranks_after_it(
    policy: SchedulerPolicy, seed: int
) -> None:
    rng = Random(seed)
    requester, *others = random_views(rng, 6)
    candidates = [Candidate(v, rng.randrange(3)) for v in others]
    chosen = policy.victim(candidates, need=1, requester=requester)
    eligible = [c.view for c in candidates if c.reclaimable and before(requester, c.view)]  # type: ignore[arg-type]
    if not eligible:
        assert chosen == -1
    else:
        (victim,) = [v for v in eligible if v.seq_id == chosen]
        assert not any(before(victim, v) for v in eligible)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", SEEDS)
def test_two_sequences_never_preempt_each_other(policy: SchedulerPolicy, seed: int) -> None:
    a, b = random_views(Random(seed), 2)
    a_takes_b = policy.victim([Candidate(b, 1)], need=1, requester=a) == b.seq_id
    b_takes_a = policy.victim([Candidate(a, 1)], need=1, requester=b) == a.seq_id
    assert a_takes_b != b_takes_a


def test_nobody_is_the_victim_of_itself(policy: SchedulerPolicy) -> None:
    only = make_view(1)
    assert policy.victim([Candidate(only, 5)], need=1, requester=only) == -1


@pytest.mark.parametrize(("remaining", "rows", "expected"), [(10, 64, 10), (100, 64, 64), (5, 0, 0), (0, 8, 0)])
def test_a_chunk_takes_all_that_remains_and_all_that_is_left_of_the_budget(
    policy: SchedulerPolicy, remaining: int, rows: int, expected: int
) -> None:
    assert policy.chunk(make_view(1), remaining, budget(rows)) == expected


def test_a_waiting_sequence_whose_pages_fit_is_admitted(policy: SchedulerPolicy) -> None:
    quote = Quote(new=1, pinned=0, free=4, total=4, needed_ever=2, fits_now=True, fits_ever=True)
    assert policy.admit(make_view(1), quote, budget(8)) == Admit()


@pytest.mark.parametrize("max_k", [0, 1, 7])
def test_a_draft_is_never_longer_than_allowed(policy: SchedulerPolicy, max_k: int) -> None:
    assert policy.draft_k(make_view(1), DraftStats(), decoding=3, max_k=max_k) == max_k


def test_the_wait_for_a_tier_ends_and_does_not_begin_again(policy: SchedulerPolicy) -> None:
    answers = [policy.wait_for_tier(make_view(1), waited / 1000) for waited in range(0, 200, 5)]
    assert answers[0] is True
    assert answers[-1] is False
    assert answers == sorted(answers, reverse=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_events_of_the_past_change_no_decision(policy: SchedulerPolicy, seed: int) -> None:
    rng = Random(seed)
    views = random_views(rng, 5)
    candidates = [Candidate(v, 1) for v in views[1:]]
    before_events = (policy.order(views, [], 0.0), policy.victim(candidates, 1, views[0]))
    for kind in ("arrived", "scheduled", "first_token", "preempted", "finished", "step"):
        policy.observe(SchedEvent(kind=kind, at=1.0, seq_id=views[0].seq_id))
    assert (policy.order(views, [], 0.0), policy.victim(candidates, 1, views[0])) == before_events
