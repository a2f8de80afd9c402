"""The engine under random programs of calls."""

from engine_machine import EngineMachine
from hypothesis import HealthCheck, settings

EngineMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)

TestEngine = EngineMachine.TestCase


def test_the_machine_reaches_what_it_is_for() -> None:
    """Runs after `TestEngine` and looks at what its programs did."""
    totals = EngineMachine.totals
    if not totals:
        TestEngine("runTest").runTest()
    wanted = ("hits", "tier", "copies", "seals", "accepted", "launched", "mirrored", "content")
    assert all(totals[name] for name in wanted), totals
