"""What the engine promises, one behaviour at a time."""

import random
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from engine_world import VOCAB, Clock, Outcome, World, compose, greedy, parity, random_requests, request, serial

from tokloom.core.engine import EngineCore
from tokloom.sdk import CapacityError, Objectives, TokenSegment

RNG = random.Random(20)
LONG = [RNG.randrange(VOCAB) for _ in range(60)]


def said(world: World, name: str, child: int = 0) -> tuple[int, ...]:
    return tuple(world.outcomes[name, child].tokens)


def recorder(world: World) -> Any:
    return world.composition.observers[0].plugin


def tier_of(world: World) -> Any:
    return world.composition.connectors[0].plugin


# -- batching ---------------------------------------------------------------------------------------------------------


def test_prompt_chunks_run_beside_decodes_which_come_first() -> None:
    world = World(compose(batch=8, prefix_wait=0))
    world.add(request("a", LONG[:5], max_tokens=30))
    for _ in range(3):
        world.step()
    world.add(request("b", LONG, max_tokens=4))
    world.run()
    mixed = [s for s in recorder(world).steps if s.sequences == 2 and s.prefill_rows == 7]
    assert len(mixed) >= 7, "a decode row and seven prompt rows share the budget of eight"
    assert said(world, "a") == greedy(LONG[:5], 30)
    assert said(world, "b") == greedy(LONG, 4)


def test_no_step_exceeds_its_budget() -> None:
    world = World(compose(batch=7, sequences=5, speculator={"plugin": "oracle"}))
    world.run(*random_requests(random.Random(1), 8, plain=True))
    assert max(step.rows for step in recorder(world).steps) <= 7


def test_a_prompt_that_was_computed_is_not_computed_again() -> None:
    world = World(compose())
    world.run(request("a", LONG, max_tokens=2))
    world.run(request("b", LONG, max_tokens=2))
    assert world.usage("b").hit_tokens == 56
    assert said(world, "b") == greedy(LONG, 2)


def test_sixteen_equal_prefixes_that_arrive_together_are_computed_once() -> None:
    world = World(compose(batch=16, sequences=16))
    prompts = [[*LONG[:40], i % VOCAB, i // VOCAB] for i in range(16)]
    world.run(*(request(str(i), p, max_tokens=3) for i, p in enumerate(prompts)))
    rows = sum(step.prefill_rows for step in recorder(world).steps)
    assert rows <= 42 + 15 * 2
    assert all(said(world, str(i)) == greedy(p, 3) for i, p in enumerate(prompts))


def test_different_salts_share_nothing() -> None:
    world = World(compose())
    world.run(request("a", LONG, salt="one", max_tokens=2))
    world.run(request("b", LONG, salt="two", max_tokens=2))
    assert world.usage("b").hit_tokens == 0


def test_preempted_sequences_say_the_same() -> None:
    world = World(compose(pages=20, sequences=6))
    requests = [request(str(i), LONG[i : i + 12], max_tokens=16) for i in range(6)]
    world.run(*requests)
    assert world.core.state.preempted > 0
    assert all(said(world, r.request_id) == greedy(r.prompt_ids, 16) for r in requests)
    assert sum(world.usage(*key).preemptions for key in world.outcomes) == world.core.state.preempted
    world.finish()


def test_parallel_samples_fork_and_copy_on_write() -> None:
    world = World(compose())
    item = request("a", LONG[:18], n=4, temperature=1.0, seed=3, max_tokens=10)
    world.run(item)
    assert world.core.state.allocator.stats().copies > 0
    texts = {said(world, "a", child) for child in range(4)}
    assert len(texts) > 1
    wanted = serial([item])
    assert {key: o.said for key, o in world.outcomes.items()} == wanted
    assert sum(step.prefill_rows for step in recorder(world).steps) == 18
    world.finish()


def test_more_samples_than_rows_wait_their_turn() -> None:
    world = World(compose(sequences=2))
    item = request("a", LONG[:10], n=7, temperature=1.0, seed=5, max_tokens=6)
    world.run(item)
    assert {key: o.said for key, o in world.outcomes.items()} == serial([item])


@pytest.mark.parametrize("example", [{"allocator": "exclusive"}, {"scheduler": "shortest"}, {"attention": "naive"}])
def test_the_example_plugins_give_the_same_answers(example: dict[str, Any]) -> None:
    world = World(compose(pages=60, **example))
    requests = random_requests(random.Random(4), 6)
    world.run(*requests)
    assert {key: o.said for key, o in world.outcomes.items()} == serial(requests)
    world.finish()


# -- scoring ----------------------------------------------------------------------------------------------------------


def test_scoring_gives_each_prompt_token_and_draws_none() -> None:
    import math

    from tokloom.conformance.doubles import oracle

    world = World(compose(batch=9))
    world.run(request("s", LONG, task="score", prompt_logprobs=2))
    outcome = world.outcomes["s", 0]
    assert outcome.said == ((), "scored")
    assert [entry.token for entry in outcome.prompt_logprobs] == LONG
    assert math.isnan(outcome.prompt_logprobs[0].logprob)
    seen = oracle.hidden(LONG, world.windows)
    for position, entry in enumerate(outcome.prompt_logprobs[1:]):
        logits = [oracle.logit(seen[position], token) for token in range(VOCAB)]
        total = math.log(sum(map(math.exp, logits)))
        assert entry.logprob == pytest.approx(logits[entry.token] - total, abs=1e-5)
        best = sorted(range(VOCAB), key=lambda token: -logits[token])[:2]
        assert [token for token, _ in entry.top] == best


def test_prompt_logprobs_survive_preemption_and_come_once() -> None:
    world = World(compose(pages=24, sequences=5))
    requests = [request(str(i), LONG[i : i + 20], prompt_logprobs=0, max_tokens=12) for i in range(5)]
    world.run(*requests)
    assert world.core.state.preempted > 0
    for item in requests:
        tokens = [entry.token for entry in world.outcomes[item.request_id, 0].prompt_logprobs]
        assert tokens == list(item.prompt_ids)


def test_no_tokens_asked_is_a_prompt_computed() -> None:
    world = World(compose())
    world.run(request("a", LONG, max_tokens=0))
    assert world.outcomes["a", 0].said == ((), "length")


# -- ends -------------------------------------------------------------------------------------------------------------


def state_of(core: EngineCore, name: str) -> str:
    """Where a request is."""
    (seq,) = core.state.requests[name].values()
    places = {"waiting": core.state.waiting, "loading": core.state.loading, "running": core.state.running}
    return next(place for place, members in places.items() if seq.seq_id in members)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("after", range(9))
@pytest.mark.parametrize("speculator", [None, {"plugin": "featured"}, {"plugin": "on-device"}])
def test_an_abort_at_any_step_leaves_nothing(depth: int, after: int, speculator: Any) -> None:
    world = World(compose(depth=depth, lazy=True, batch=8, speculator=speculator))
    world.add(request("a", LONG[:30], max_tokens=9, n=2, temperature=1.0), request("b", LONG[:20], max_tokens=9))
    for _ in range(after):
        world.step()
    assert world.core.abort("a")
    world.core.abort("a")
    assert not world.core.abort("unknown")
    world.run()
    ended = {world.outcomes["a", child].reason for child in range(2)}
    assert ended == {"abort"} or after > 6
    assert said(world, "b") == greedy(LONG[:20], 9)
    world.finish()


def test_an_abort_while_a_tier_loads_waits_for_the_job() -> None:
    world = World(compose(tiers=["slow"], pages=24))
    world.run(request("a", LONG[:40], max_tokens=2))
    world.core.state.allocator.invalidate(None)
    world.add(request("b", LONG[:40], max_tokens=2))
    while "b" not in world.core.state.requests or state_of(world.core, "b") != "loading":
        world.step()
    world.core.abort("b")
    world.run()
    assert world.outcomes["b", 0].reason == "abort"
    world.finish()


def test_a_deadline_ends_a_request() -> None:
    clock = Clock()
    world = World(compose(clock=clock))
    world.add(request("a", LONG, max_tokens=40, objectives=Objectives(deadline=5.0)))
    for _ in range(4):
        world.step()
    clock.time += 10
    world.run()
    outcome = world.outcomes["a", 0]
    assert outcome.reason == "deadline"
    assert tuple(outcome.tokens) == greedy(LONG, 40)[: len(outcome.tokens)]
    world.finish()


def test_stop_ids_end_and_stand() -> None:
    tokens = greedy(LONG[:9], 20)
    stop = tokens[5]
    world = World(compose())
    world.run(request("a", LONG[:9], max_tokens=20, stop_token_ids=(stop,)))
    first = tokens.index(stop)
    assert world.outcomes["a", 0].said == (tokens[: first + 1], "stop")


def test_end_tokens_end_unless_they_are_ignored() -> None:
    tokens = greedy(LONG[:9], 40, "tagged-eos")
    assert 3 in tokens
    for ignore in (False, True):
        world = World(compose(model="tagged-eos"))
        world.run(request("a", LONG[:9], max_tokens=40, ignore_eos=ignore))
        wanted = (tokens, "length") if ignore else (tokens[: tokens.index(3) + 1], "stop")
        assert world.outcomes["a", 0].said == wanted


def test_the_context_ends_a_sequence() -> None:
    world = World(compose(longest=40, speculator={"plugin": "oracle"}))
    world.run(request("a", LONG[:35], max_tokens=100))
    assert world.outcomes["a", 0].said == (greedy(LONG[:35], 5), "length")


# -- limits and faults ------------------------------------------------------------------------------------------------


def test_a_request_that_can_never_fit_is_told_both_numbers_at_once() -> None:
    world = World(compose(pages=8))
    world.run(request("big", LONG[:20], max_tokens=60), request("small", LONG[:8], max_tokens=4))
    outcome = world.outcomes["big", 0]
    assert isinstance(outcome.error, CapacityError)
    assert "8" in str(outcome.error)
    assert "20" in str(outcome.error)
    assert said(world, "small") == greedy(LONG[:8], 4)


def test_a_full_queue_refuses_and_keeps_nothing() -> None:
    world = World(compose(max_waiting=3))
    world.add(*(request(str(i), LONG[:8]) for i in range(3)))
    with pytest.raises(CapacityError, match="limit is 3"):
        world.core.add(request("late", LONG[:8]))
    world.run()
    assert len(world.outcomes) == 3
    world.core.add(request("late", LONG[:8]))


@pytest.mark.parametrize("mode", ["raise", "nonsense"])
def test_a_broken_policy_means_first_come_first_served(mode: str) -> None:
    world = World(compose(scheduler={"plugin": "broken", "options": {"mode": mode}}, pages=20))
    requests = random_requests(random.Random(6), 5)
    world.run(*requests)
    assert {key: o.said for key, o in world.outcomes.items()} == serial(requests)
    assert "scheduler.broken" in world.faults


def test_a_policy_that_serves_nobody_is_overruled() -> None:
    world = World(compose(scheduler={"plugin": "broken", "options": {"mode": "starve"}}), check=False)
    world.run(request("a", LONG[:6], max_tokens=3), limit=40_000)
    assert said(world, "a") == greedy(LONG[:6], 3)
    assert world.core.state.faults.count("scheduler.broken") > 0


@pytest.mark.parametrize("mode", ["ids", "cycle", "many", "twins", "count", "type", "raise", "ingest", "begin"])
def test_a_broken_speculator_means_plain_decoding(mode: str) -> None:
    world = World(compose(speculator={"plugin": "garbage", "options": {"mode": mode}}))
    world.run(request("a", LONG[:9], max_tokens=30), request("b", LONG[:7], max_tokens=30))
    assert said(world, "a") == greedy(LONG[:9], 30)
    assert world.core.state.faults.total > 0 or mode == "many"
    world.finish()


def test_a_raising_observer_is_counted_and_ignored() -> None:
    world = World(compose(observers=["recorder", "raising"]))
    world.run(request("a", LONG[:9], max_tokens=4))
    assert said(world, "a") == greedy(LONG[:9], 4)
    assert "observer.raising" in world.faults
    assert [stats.finish_reason for stats in recorder(world).requests] == ["length"]
    world.core.close()
    world.core.close()
    assert recorder(world).closed == 1


def test_a_launch_that_raises_ends_only_its_own_sequences() -> None:
    world = World(compose(batch=4))
    model = world.core.runner._model
    world.add(request("a", LONG[:12], max_tokens=5))
    world.step()

    def boom(*args: Any) -> Any:
        world.core.runner._model = model
        raise RuntimeError("kernel died")

    world.core.runner._model = SimpleNamespace(forward=boom, logits=model.logits)
    world.add(request("b", LONG[:6], max_tokens=5))
    world.run()
    assert world.outcomes["a", 0].reason == "error"
    assert "kernel died" in str(world.outcomes["a", 0].error)
    assert said(world, "b") == greedy(LONG[:6], 5)
    world.finish()


def test_two_engines_do_not_know_each_other() -> None:
    first, second = World(compose()), World(compose(page=8, pages=30))
    first.add(request("a", LONG[:20]))
    second.add(request("a", LONG[:10]))
    while first.core.busy or second.core.busy:
        first.step()
        second.step()
    assert said(first, "a") == greedy(LONG[:20], 8)
    assert said(second, "a") == greedy(LONG[:10], 8)


def test_an_idle_engine_audits() -> None:
    world = World(compose(), check=False)
    world.run(request("a", LONG[:9]))
    calls = []
    world.core.state.allocator.audit = lambda: calls.append(1)  # type: ignore[method-assign]
    world.core._audited, world.core._audit_after = False, 0.0
    world.core.step()
    assert calls == [1]


def test_closing_ends_everything() -> None:
    world = World(compose(tiers=["slow"]))
    world.run(request("a", LONG, max_tokens=2))
    world.add(request("b", LONG, max_tokens=50))
    for _ in range(3):
        world.step()
    world.core.close()
    world.core.close()
    assert tier_of(world).closed
    with pytest.raises(CapacityError, match="closed"):
        world.core.add(request("c", LONG))


# -- features ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", ["slow", {"plugin": "host", "options": {"capacity": "1MiB"}}])
def test_observers_can_follow_what_tiers_hold(tier: Any) -> None:
    world = World(compose(tiers=[tier], pages=24, sequences=1))
    for i in range(4):
        world.run(request(f"x{i}", [i, *LONG[:39]], max_tokens=2))
    steps = world.composition.observers[0].plugin.steps  # type: ignore[attr-defined]
    reports = [step.tiers[0] for step in steps]
    events = [event for report in reports for event in report.events]
    assert {report.name for report in reports} == {world.composition.connectors[0].id}
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    held: set[bytes] = set()
    for event in events:
        held = {"stored": held | set(event.keys), "removed": held - set(event.keys), "cleared": set()}[event.kind]
    assert reports[-1].counters["blocks"] == len(held) > 10


def test_a_tier_that_cannot_report_is_counted_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(compose(tiers=["slow"], pages=24, sequences=1))
    monkeypatch.setattr(tier_of(world), "stats", lambda: 1 // 0)
    world.run(request("a", LONG[:40], max_tokens=2))
    assert "ZeroDivisionError" in world.faults[world.composition.connectors[0].id]
    assert said(world, "a") == greedy(LONG[:40], 2)


@pytest.mark.parametrize("tier", ["slow", {"plugin": "host", "options": {"capacity": "1MiB"}}])
@pytest.mark.parametrize("model", ["tagged", "tagged-window"])
def test_pages_come_back_from_a_tier(tier: Any, model: str) -> None:
    world = World(compose(tiers=[tier], pages=24, model=model, sequences=1))
    world.run(request("a", LONG[:40], max_tokens=2))
    for i in range(4):  # push its pages out of the pool
        world.run(request(f"x{i}", [i, *LONG[:39]], max_tokens=2))
    world.run(request("b", LONG[:40], max_tokens=8))
    assert world.usage("b").tier_tokens > 0
    assert said(world, "b") == greedy(LONG[:40], 8, model)
    assert world.core.state.allocator.stats().evictions > 0
    world.finish()


def test_blocks_that_fail_are_computed_and_not_asked_again() -> None:
    tier = {"plugin": "slow", "options": {"mode": "failing"}}
    world = World(compose(tiers=[tier], pages=24, sequences=1))
    world.run(request("a", LONG[:40], max_tokens=2))
    for i in range(4):
        world.run(request(f"x{i}", [i, *LONG[:39]], max_tokens=2))
    for i in range(6):
        world.core.state.allocator.invalidate(None)
        world.run(request(f"b{i}", LONG[:40], max_tokens=4))
        assert said(world, f"b{i}") == greedy(LONG[:40], 4)
    assert tier_of(world).failed > 0
    world.finish()


def test_a_layerwise_connector_hears_of_every_layer() -> None:
    world = World(compose(tiers=["layered"]))
    world.run(request("a", LONG[:5], max_tokens=2))
    plugin = tier_of(world)
    assert plugin.layers[:4] == [("before", 1, 0), ("after", 1, 0), ("before", 1, 1), ("after", 1, 1)]
    assert plugin.finished


@pytest.mark.parametrize("residual", [0, 2, 5])
def test_sealing_codecs_seal_and_attend_over_both_pools(residual: int) -> None:
    world = World(compose(codec={"plugin": "sealing", "options": {"residual": residual}}, attention="tags"))
    world.run(request("a", LONG[:30], max_tokens=12), request("b", LONG[:22], n=2, temperature=1.0, max_tokens=6))
    assert said(world, "a") == greedy(LONG[:30], 12)
    assert world.core.state.allocator.stats().seals > 0
    world.run(request("c", LONG[:30], max_tokens=3))
    assert world.usage("c").hit_tokens > 0
    assert said(world, "c") == greedy(LONG[:30], 3)
    world.finish()


def test_transforms_are_applied_around_attention() -> None:
    world = World(compose(codec="scaled"))
    world.run(request("a", LONG[:30], max_tokens=8))
    assert said(world, "a") == greedy(LONG[:30], 8)
    codec: Any = world.composition.codec.plugin
    assert codec.transforms > 0


def test_a_kernel_may_write_keys_itself() -> None:
    world = World(compose(attention="writer", codec="dense"))
    assert world.composition.writer
    world.run(request("a", LONG[:30], max_tokens=8))
    assert said(world, "a") == greedy(LONG[:30], 8)
    kernel: Any = world.composition.decode.plugin
    assert kernel.writes > 0


def test_decode_and_prefill_kernels_may_differ() -> None:
    world = World(compose(attention={"decode": "tags", "prefill": "torch"}, speculator={"plugin": "oracle"}, batch=9))
    requests = [request(str(i), LONG[i : i + 20], max_tokens=8) for i in range(3)]
    world.run(*requests)
    assert all(said(world, r.request_id) == greedy(r.prompt_ids, 8) for r in requests)


@pytest.mark.parametrize(
    ("speculator", "kernel"), [({"plugin": "oracle", "options": {"mode": "trees"}}, "torch"), ("ngram", "cpu")]
)
def test_trees_are_verified_by_the_kernel_that_takes_trees(speculator: Any, kernel: str) -> None:
    world = World(compose(attention={"decode": "cpu", "prefill": "torch"}, speculator=speculator, batch=9))
    assert world.composition.verify.name == kernel
    requests = [request(str(i), LONG[i : i + 20], max_tokens=8) for i in range(3)]
    world.run(*requests)
    assert sum(world.outcomes[r.request_id, 0].usage.drafted for r in requests) > 0  # type: ignore[union-attr,misc]
    assert all(said(world, r.request_id) == greedy(r.prompt_ids, 8) for r in requests)


def test_decode_steps_are_replayed_from_recordings() -> None:
    world = World(compose(attention="tags", graphs="on", model="tagged-window", sequences=3))
    requests = [request(str(i), LONG[i : i + 10], max_tokens=4 + 4 * i) for i in range(3)]
    world.run(*requests)
    assert world.core.runner.graphs.replays > 8
    kernel: Any = world.composition.decode.plugin
    assert kernel.replans > 0
    assert all(
        said(world, r.request_id) == greedy(r.prompt_ids, len(said(world, r.request_id)), "tagged-window")
        for r in requests
    )


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("mode", ["", "trees"])
def test_device_speculators_draft_inside_the_launch(depth: int, mode: str) -> None:
    section = {"plugin": "on-device", "options": {"mode": mode, "seed": 5}}
    world = World(compose(speculator=section, depth=depth, lazy=True, longest=100))
    world.run(request("a", LONG[:20], max_tokens=60))
    assert said(world, "a") == greedy(LONG[:20], 60)
    assert world.usage("a").accepted > 0
    world.finish()


def test_draft_kv_and_features_are_right_through_hits_and_forks() -> None:
    world = World(compose(speculator={"plugin": "featured", "options": {"seed": 2}}))
    world.run(request("a", LONG[:30], max_tokens=12))
    world.run(request("b", LONG[:30], max_tokens=12), request("c", LONG[:21], n=3, temperature=1.0, max_tokens=9))
    assert world.composition.speculator is not None
    plugin: Any = world.composition.speculator.plugin
    assert plugin.checked > 100
    assert world.usage("b").hit_tokens > 0
    assert said(world, "b") == greedy(LONG[:30], 12)
    assert "speculator.featured" not in world.faults
    world.finish()


def test_processors_and_grammars_hold_for_drafts_samples_and_preemption() -> None:
    requests = [
        request("p", LONG[:10], processors=("shift",), max_tokens=14),
        request("g", LONG[:12], grammar=parity("9"), max_tokens=20),
        request("n", LONG[:14], grammar=parity("6"), n=3, temperature=1.0, seed=1, max_tokens=20),
    ]
    wanted = serial(requests)
    world = World(compose(speculator={"plugin": "oracle", "options": {"mode": "trees"}}, pages=12, sequences=5))
    world.run(*requests)
    assert {key: o.said for key, o in world.outcomes.items()} == wanted
    assert world.core.state.preempted > 0
    outcome: Outcome = world.outcomes["g", 0]
    assert outcome.reason == "stop"
    assert [token % 2 for token in outcome.tokens] == [i % 2 for i in range(9)]


def test_rejection_sampling_keeps_the_law() -> None:
    """First two tokens of many seeds, with drafts from a foreign law, against the enumerated law."""
    import math

    from tokloom.conformance.doubles import oracle

    prompt = LONG[:5]
    world = World(
        compose(speculator={"plugin": "sampled"}, verification="rejection", sequences=32, batch=128, prefix_wait=0),
        check=False,
    )
    count = 1500
    requests = [request(str(i), prompt, temperature=1.0, seed=i, max_tokens=3) for i in range(count)]
    for first in range(0, count, 250):
        world.run(*requests[first : first + 250])
    pairs: dict[tuple[int, int], int] = {}
    for outcome in world.outcomes.values():
        pair = (outcome.tokens[1], outcome.tokens[2])
        pairs[pair] = pairs.get(pair, 0) + 1
    assert sum(o.usage.drafted for o in world.outcomes.values() if o.usage) > count // 2

    def law(tokens: list[int]) -> list[float]:
        seen = oracle.hidden(tokens, world.windows)[-1]
        weights = [math.exp(oracle.logit(seen, token)) for token in range(VOCAB)]
        return [weight / sum(weights) for weight in weights]

    expected: dict[tuple[int, int], float] = {}
    for a, pa in enumerate(law(prompt)):
        for b, pb in enumerate(law([*prompt, a])):
            for c, pc in enumerate(law([*prompt, a, b])):
                expected[b, c] = expected.get((b, c), 0.0) + pa * pb * pc
    cells = [(pairs.get(pair, 0), count * p) for pair, p in expected.items() if count * p >= 5]
    rest = (count - sum(seen for seen, _ in cells), count - sum(wanted for _, wanted in cells))
    chi = sum((seen - wanted) ** 2 / wanted for seen, wanted in [*cells, rest] if wanted > 0)
    freedom = len(cells)
    assert chi < freedom + 4.5 * math.sqrt(2 * freedom), (chi, freedom)


def test_segments_of_a_prompt_are_joined() -> None:
    item = attrs.evolve(
        request("a", LONG[:4], max_tokens=4), segments=(TokenSegment(LONG[:4]), TokenSegment(LONG[4:9]))
    )
    world = World(compose())
    world.run(item)
    assert said(world, "a") == greedy(LONG[:9], 4)
