"""The engine under random programs of calls."""

import pytest
from engine_machine import EngineMachine
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

COMMON = settings(
    stateful_step_count=25, deadline=None, print_blob=True, database=None, suppress_health_check=list(HealthCheck)
)
REACHED = ("hits", "evictions", "copies", "seals", "accepted", "launched", "mirrored", "content")


def reached(before: dict[str, int]) -> dict[str, int]:
    return {name: EngineMachine.totals[name] - before.get(name, 0) for name in EngineMachine.totals}


def test_programs_that_are_the_same_in_every_run() -> None:
    before = dict(EngineMachine.totals)
    run_state_machine_as_test(EngineMachine, settings=settings(COMMON, max_examples=60, derandomize=True))
    found = reached(before)
    assert all(found.get(name) for name in REACHED), found


@pytest.mark.slow
def test_programs_that_are_new_in_every_run() -> None:
    before = dict(EngineMachine.totals)
    run_state_machine_as_test(EngineMachine, settings=settings(COMMON, max_examples=400))
    found = reached(before)
    assert all(found.get(name) for name in (*REACHED, "tier", "preemptions")), found
