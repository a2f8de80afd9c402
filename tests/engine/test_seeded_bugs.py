"""Random programs have teeth: every seeded bug is caught, and the engine as it is passes the same programs."""

import random

import pytest
import test_adapters as adapters
import test_behaviour as behaviour
import test_embedding as embedding
import test_isolation as isolation
import test_preemption as preemption
import test_speculator_history as history
from engine_bugs import BUGS
from engine_checks import CheckedWorld
from engine_world import World, compose, greedy, random_requests, request, serial
from test_random_programs import run_program

from tokloom.core.device import Handle
from tokloom.core.plan import Span, StepPlan
from tokloom.core.runner import StepResult

SEEDS = range(200, 216)


def scenarios() -> None:
    """Programs with what particular bugs need, then random ones."""
    behaviour.test_different_salts_share_nothing()
    behaviour.test_draft_kv_and_features_are_right_through_hits_and_forks()
    behaviour.test_blocks_that_fail_are_computed_and_not_asked_again()
    behaviour.test_prompt_logprobs_survive_preemption_and_come_once()
    behaviour.test_parallel_samples_fork_and_copy_on_write()
    for depth in (0, 1):
        stored_pages_of_a_sealing_codec(depth)
    isolation.test_pages_of_a_seal_that_raised_are_never_used(0, None, 1)
    isolation.test_a_prompt_that_is_all_cached_and_wants_no_tokens_ends_and_blocks_nobody(4, [])
    embedding.test_the_last_row_takes_hits_and_the_mean_computes_every_row()
    embedding.test_a_mean_that_was_begun_before_a_preemption_begins_again(2)
    adapters.test_prefixes_are_shared_by_content_never_between_adapters_and_the_base()
    preemption.test_a_prompt_that_was_scored_in_part_is_scored_again_from_its_beginning(2)
    for seed in range(4):
        preemption.test_sequences_that_are_preempted_at_random_say_what_they_say_alone(1, None, seed)
    history.test_nothing_is_proposed_while_a_prompt_chunk_is_in_flight()
    history.test_the_last_rows_of_a_sequence_that_ends_at_once_are_ingested(9)
    draft_kv_of_a_changed_continuation()
    features_of_tree_rows()
    drafts_under_seals()
    for speculator in (None, {"plugin": "featured"}):
        assert sum(busy(seed, speculator) for seed in range(1, 6)) > 0
    for after in (2, 4):
        behaviour.test_an_abort_at_any_step_leaves_nothing(1, after, None)
    for seed in SEEDS:
        run_program(seed)


def draft_kv_of_a_changed_continuation() -> None:
    """Two prompts that differ in the token right after a full page: draft KV of that page must differ."""
    world = World(compose(speculator={"plugin": "featured", "options": {"seed": 1}}))
    first = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    world.run(request("a", first, max_tokens=4))
    world.run(request("b", [*first[:8], 2, 3], max_tokens=6))
    assert "speculator.featured" not in world.faults, world.faults


def features_of_tree_rows() -> None:
    """A speculator that drafts trees and wants features gets those of accepted nodes."""
    world = World(compose(speculator={"plugin": "featured", "options": {"mode": "trees", "seed": 3}}))
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    world.run(request("a", prompt, max_tokens=60))
    assert world.outcomes["a", 0].said == (greedy(prompt, 60), "length")
    assert world.usage("a").accepted > 0
    assert not world.faults


def drafts_under_seals() -> None:
    """Right drafts over many pages of a sealing codec: a draft never runs past where a plain decode would seal."""
    section = {"plugin": "oracle", "options": {"seed": 2}}
    for residual in (0, 3):
        codec = {"plugin": "sealing", "options": {"residual": residual}}
        world = CheckedWorld(compose(speculator=section, codec=codec))
        spans = planned(world)
        world.run(request("a", [1, 2, 3], max_tokens=60))
        drafted = [span for span in spans if span.k]
        assert drafted
        for span in drafted:
            assert max(0, span.start - residual) // 4 == max(0, span.stop - 1 - residual) // 4, span


def stored_pages_of_a_sealing_codec(depth: int) -> None:
    """A page is stored after the operation that seals it: what a tier gives back is what was sealed."""
    codec = {"plugin": "sealing", "options": {"residual": 3}}
    tier = {"plugin": "host", "options": {"capacity": "1MiB"}}
    world = CheckedWorld(compose(codec=codec, tiers=[tier], depth=depth, pages=24, sequences=1))
    prompt = [*behaviour.LONG[:40]]
    world.run(request("a", prompt, max_tokens=2))
    for i in range(4):  # push its pages out of the pool
        world.run(request(f"x{i}", [i, *prompt[:39]], max_tokens=2))
    world.run(request("b", prompt, max_tokens=8))
    assert world.usage("b").tier_tokens > 0
    assert world.outcomes["b", 0].said == (greedy(prompt, 8), "length")
    world.finish()


def planned(world: World) -> list[Span]:
    """The spans of every plan from now on."""
    spans: list[Span] = []
    launch = world.core.runner.launch

    def record(plan: StepPlan) -> Handle[StepResult]:
        spans.extend(plan.spans)
        return launch(plan)

    world.core.runner.launch = record  # type: ignore[method-assign]
    return spans


def busy(seed: int, speculator: object) -> int:
    """Many sequences in a small pool at depth 1; returns how often one was preempted."""
    requests = random_requests(random.Random(seed), 8)
    wanted = serial(requests)
    world = CheckedWorld(compose(pages=20, depth=1, lazy=True, sequences=6, batch=16, speculator=speculator))
    world.run(*requests)
    assert {key: outcome.said for key, outcome in world.outcomes.items()} == wanted
    world.finish()
    return world.core.state.preempted


@pytest.mark.slow
def test_the_engine_as_it_is_passes() -> None:
    scenarios()


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_a_seeded_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    what, apply = BUGS[name]
    apply(monkeypatch)
    with pytest.raises(Exception) as caught:  # noqa: PT011  an assertion, a fault, or a key that is gone
        scenarios()
    assert caught.value is not None, what
