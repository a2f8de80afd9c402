"""Policies, observers and logits of the doubles do what they say."""

import random
from typing import Any

import attrs
import pytest
import torch
from doubles_rig import build, parity, request

from tokloom.core.composition import Part
from tokloom.core.faults import Faults
from tokloom.core.policy import GuardedPolicy
from tokloom.sdk import (
    Admit,
    Budget,
    Candidate,
    Defer,
    DraftStats,
    LogitsRow,
    Quote,
    Reject,
    RequestError,
    SchedEvent,
    SchedulerCaps,
    fcfs,
)

QUOTE = Quote(2, 0, 9, 10, 4, True, True)
BUDGET = Budget(rows=7, max_rows=16, sequences=3, decoding=2, now=5.0)


@attrs.frozen
class View:
    """As much of a SequenceView as policies look at."""

    seq_id: int
    arrival: float
    request: Any


def views(seed: int, count: int) -> list[Any]:
    rng = random.Random(seed)
    ids = rng.sample(range(100), count)
    return [View(i, rng.random(), attrs.evolve(request(str(i), [1, 2, 3]), priority=rng.randint(0, 2))) for i in ids]


def decide(policy: Any, seed: int) -> list[Any]:
    """One answer of every kind."""
    waiting, running = views(seed, 4), views(seed + 1000, 5)
    candidates = [Candidate(view, number % 3) for number, view in enumerate(running[1:])]
    return [
        policy.order(waiting, running, 5.0),
        policy.draft_k(running[0], DraftStats(), 3, 4),
        policy.admit(waiting[0], QUOTE, BUDGET),
        policy.chunk(waiting[0], 9, BUDGET),
        policy.victim(candidates, 2, running[0]),
        policy.wait_for_tier(waiting[0], 0.02),
    ]


def guarded(name: str, **options: Any) -> tuple[GuardedPolicy, Any, Faults]:
    plugin, faults = build("scheduler", name, **options), Faults()
    return GuardedPolicy(Part("scheduler", name, "", "", plugin, SchedulerCaps()), faults), plugin, faults


def test_the_plain_policy_is_first_come_first_served() -> None:
    for seed in range(20):
        assert decide(build("scheduler", "plain"), seed) == decide(fcfs, seed)


def test_chaos_is_valid_and_pure_and_takes_every_branch() -> None:
    answers = []
    for seed in range(60):
        policy, _, faults = guarded("chaos", seed=seed)
        answers.append(decide(policy, seed))
        assert answers[-1] == decide(policy, seed), "equal views give equal decisions"
        assert faults.total == 0
    orders, ks, admissions, chunks, victims, _ = (list(column) for column in zip(*answers, strict=True))
    assert {len(order.running) for order in orders} > {4, 5}
    assert set(ks) == {0, 1, 2, 3, 4}
    assert set(admissions) == {Admit(), Defer()}
    assert set(chunks) == set(range(8))
    assert len(set(victims)) > 10


def test_chaos_moves_on_with_steps() -> None:
    policy = build("scheduler", "chaos", seed=1)
    before = [decide(policy, seed) for seed in range(5)]
    policy.observe(SchedEvent(kind="step", at=1.0))
    assert before != [decide(policy, seed) for seed in range(5)]


@pytest.mark.parametrize("mode", ["nonsense", "raise"])
def test_every_answer_of_a_broken_policy_is_a_fault(mode: str) -> None:
    policy, plugin, faults = guarded("broken", mode=mode)
    for seed in range(30):
        assert decide(policy, seed) == decide(fcfs, seed)
    assert faults.total == 30 * 6
    assert plugin.asked == (30 * 6 if mode == "nonsense" else 0)
    policy.observe(SchedEvent(kind="step", at=1.0))
    assert faults.total == 30 * 6 + 1


def test_a_starving_policy_serves_nobody_with_valid_answers() -> None:
    policy, _, faults = guarded("broken", mode="starve")
    order = policy.order(views(1, 3), views(2, 3), 1.0)
    assert (order.waiting, order.running) == ((), ())
    assert faults.total == 0


def test_the_refusing_policy_refuses_its_tenant_only() -> None:
    policy = build("scheduler", "refusing")
    banned = View(4, 0.0, request("x", [1], tenant="banned"))
    assert policy.admit(banned, QUOTE, BUDGET) == Reject("this tenant is banned", retry_after=2.5)
    assert policy.admit(views(1, 1)[0], QUOTE, BUDGET) == Admit()
    assert policy.refused == [4]


def test_a_raising_observer_remembers_before_it_raises() -> None:
    observer = build("observer", "raising")
    for call in (observer.on_step, observer.on_request):
        with pytest.raises(RuntimeError):
            call("stats")
    assert (observer.steps, observer.requests) == (["stats"], ["stats"])


def test_shift_depends_on_the_whole_prefix_and_on_nothing_else() -> None:
    shift = build("logits", "shift")
    item = request("a", [1, 2])

    def row(*prefix: int) -> LogitsRow:
        return LogitsRow(item, 0, 2, prefix)

    rows = [row(1, 2, 3), row(2, 1, 3), row(1, 2), row(1, 2, 4)]
    together = shift.apply(rows, torch.zeros(4, 11))
    assert all((line == 3).sum() == 1 for line in together)
    assert len({int(line.argmax()) for line in together}) == 4
    alone = torch.cat([shift.apply([one], torch.zeros(1, 11)) for one in rows])
    assert torch.equal(together, alone)
    assert shift.rows == 8


def test_parity_alternates_ends_and_rolls_back() -> None:
    factory = build("logits", "parity")
    grammar = factory.start(parity("3"), 6, ())
    assert grammar.mask().tolist() == [True, False] * 3
    assert not grammar.advance(1)
    assert grammar.advance(4)
    assert grammar.mask().tolist() == [False, True] * 3
    assert grammar.advance(3)
    assert grammar.advance(0)
    assert grammar.terminated
    assert not grammar.mask().any()
    grammar.rollback(2)
    assert not grammar.terminated
    assert not grammar.advance(4)
    assert grammar.advance(5)
    assert (factory.started, factory.advanced, factory.undone) == (1, 4, 2)
    with pytest.raises(AssertionError):
        grammar.rollback(9)
    with pytest.raises(RequestError):
        factory.start(parity("many"), 6, ())
