"""The random programs notice every mistake in `bugs.py`, by an invariant the mistake names."""

import pytest
from allocator_driver import Broken
from allocator_machine import AllocatorMachine
from bugs import BUGS, Bug
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tokloom.sdk import PluginFault

#: the programs stop at the first failure; the correct allocator survives all of them
PROGRAMS = settings(
    max_examples=1200,
    stateful_step_count=40,
    deadline=None,
    database=None,
    print_blob=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def invariant_of(error: BaseException) -> str:
    return error.invariant if isinstance(error, Broken) else str(error).split(": ")[1]


def random_programs() -> None:
    run_state_machine_as_test(AllocatorMachine, settings=PROGRAMS)


def test_the_correct_allocator_passes() -> None:
    AllocatorMachine.totals.clear()
    random_programs()
    did = AllocatorMachine.totals
    assert min(did["hit_tokens"], did["evictions"], did["copies"], did["seals"]) > 0, f"the programs were idle: {did}"
    for scenario in {bug.scenario for bug in BUGS if bug.scenario is not None}:
        scenario()


def test_there_are_bugs_of_many_kinds() -> None:
    assert len(BUGS) >= 16
    assert len({bug.name for bug in BUGS}) == len(BUGS)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_bug_is_noticed(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bug.target, bug.attribute, bug.replacement)
    with pytest.raises((Broken, PluginFault)) as caught:
        (bug.scenario or random_programs)()
    assert invariant_of(caught.value) in bug.caught_by
