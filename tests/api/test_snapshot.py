"""Snapshots against counts made from what callers gave and got."""

import asyncio
import itertools
import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from tiny_chat import SETS

from tokloom import AsyncEngine, Engine, GenerateRequest, SamplingParams
from tokloom.api import Snapshot
from tokloom.api.inspecting import explain_profile
from tokloom.api.profiles import read_profile

PAGE = 32


def ask(ids: Sequence[int], count: int = 12, request_id: str = "") -> GenerateRequest:
    sampling = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)
    return GenerateRequest(token_ids=ids, sampling=sampling, request_id=request_id)


def open_engine(model: Path, *sets: str) -> Engine:
    return Engine.from_profile("builtin:cpu", model=model, sets=(*SETS, *sets))


def counters(found: Snapshot) -> tuple[int, ...]:
    return (found.steps, found.prefill_tokens, found.hit_tokens, found.generated_tokens, found.drafted, found.accepted)


def test_a_fresh_engine_has_counted_nothing_and_all_its_pages_are_free(model: Path) -> None:
    with open_engine(model) as engine:
        found = engine.snapshot()
    assert counters(found) == (0, 0, 0, 0, 0, 0)
    assert (found.running, found.waiting, found.preemptions, found.evictions, found.faults) == (0, 0, 0, 0, {})
    (group,) = found.groups
    layout = engine.core.composition.layout
    assert (group.total, group.free, group.held, group.cached) == (layout.main_pages[0], layout.main_pages[0], 0, 0)
    assert (group.page_tokens, group.owner, group.window) == (PAGE, "model", None)
    assert (found.page_tokens, found.max_sequences, found.max_model_tokens) == (PAGE, 4, 256)


def test_tokens_and_pages_are_those_of_the_requests(model: Path) -> None:
    rng = random.Random(5)
    prompts = [[rng.randrange(256) for _ in range(length)] for length in (5, 32, 33, 100)]
    with open_engine(model) as engine:
        prefill = hits = generated = 0
        for ids in (*prompts, *prompts):
            (result,) = engine.generate(ask(ids))
            assert result.usage is not None
            prefill += len(ids) - result.usage.hit_tokens
            hits += result.usage.hit_tokens
            generated += len(result.token_ids)
            found = engine.snapshot()
            assert (found.prefill_tokens, found.hit_tokens, found.generated_tokens) == (prefill, hits, generated)
            assert (found.running, found.groups[0].held) == (0, 0)
        # the second time, all full pages but the last token's come from the cache
        assert hits == sum((len(ids) - 1) // PAGE * PAGE for ids in prompts)
        # every full page of prompt and answer, less the last token, which was never computed
        assert found.groups[0].cached == sum((len(ids) + 11) // PAGE for ids in prompts)
        assert found.groups[0].free + found.groups[0].cached == found.groups[0].total


def test_a_running_sequence_holds_the_pages_of_its_tokens(model: Path) -> None:
    with open_engine(model) as engine:
        engine.add(ask([7] * 60, 20, "r"))
        assert engine.snapshot().running == 0
        for step in range(1, 19):
            engine.step()
            found = engine.snapshot()
            assert (found.running, found.steps, found.generated_tokens) == (1, step, step)
            assert found.groups[0].held == -(-(59 + step) // PAGE)
        engine.abort("r")
        engine.step()
        found = engine.snapshot()
        assert (found.running, found.groups[0].held, found.steps) == (0, 0, 18)


def test_sequences_beyond_those_that_may_run_wait(model: Path) -> None:
    with open_engine(model) as engine:
        for index in range(7):
            engine.add(ask([index + 1] * 10, 5))
        for _ in range(2):  # some of them may wait a step for one with the same beginning
            engine.step()
        found = engine.snapshot()
        assert (found.running, found.waiting, found.max_sequences) == (4, 3, 4)


def test_drafts_and_preemptions_are_the_sum_of_those_of_the_requests(model: Path) -> None:
    sets = ("speculation.plugin=ngram", "engine.max_draft_tokens=4", "engine.kv_memory=80KiB", "engine.page_tokens=16")
    with open_engine(model, *sets) as engine:
        prompts = [[*range(start, start + 12)] * 4 for start in (3, 40, 90, 140)]
        results = engine.generate([ask(ids, 60) for ids in prompts])
        found = engine.snapshot()
    usages = [result.usage for result in results]
    assert found.drafted == sum(usage.drafted for usage in usages if usage) > 0
    assert found.accepted == sum(usage.accepted for usage in usages if usage)
    assert found.preemptions == sum(usage.preemptions for usage in usages if usage)
    assert found.generated_tokens == 4 * 60


@pytest.mark.parametrize("profile", ["builtin:cpu", "builtin:cpu-int8", "builtin:serve"])
def test_plugins_are_those_of_the_composition_with_their_origin(model: Path, profile: str) -> None:
    composer, composition = explain_profile(read_profile(profile, model=model, sets=SETS, overrides={}))
    wanted = {
        (choice.section, choice.kind, choice.plugin, choice.distribution, choice.version)
        for choice in composer.explanation.choices
    }
    with Engine.from_composition(composition) as engine:
        found = engine.snapshot()
    assert {(use.section, use.kind, use.plugin, use.distribution, use.version) for use in found.plugins} == wanted
    assert {"model", "kv.allocator", "kv.codec", "scheduler"} <= {use.section for use in found.plugins}
    for group, layout in zip(found.groups, composition.layout.groups, strict=True):
        assert (group.format, group.layers) == (layout.main.id, len(layout.layers))


def test_metrics_say_the_same(model: Path) -> None:
    pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")

    async def main() -> tuple[Snapshot, str]:
        async with await AsyncEngine.from_profile("builtin:serve", model=model, sets=SETS) as engine:
            for _ in range(2):
                async for _ in engine.generate(ask([9] * 70, 20)):
                    pass
            shown = engine.exposition()
            assert shown is not None
            return engine.snapshot(), shown[1].decode()

    found, metrics = asyncio.run(main())
    for name, value in {
        "tokloom_prefill_tokens_total": found.prefill_tokens,
        "tokloom_prefix_hit_tokens_total": found.hit_tokens,
        "tokloom_generated_tokens_total": found.generated_tokens,
        "tokloom_steps_total": found.steps,
        'tokloom_kv_pages_cached{group="0"}': found.groups[0].cached,
    }.items():
        assert f"{name} {float(value)}\n" in metrics, name
        assert value > 0, name


def test_any_thread_may_ask_while_the_engine_works_and_counters_only_grow(model: Path) -> None:
    async def main() -> list[Snapshot]:
        seen: list[Snapshot] = []
        over = threading.Event()

        async with await AsyncEngine.from_profile("builtin:cpu", model=model, sets=SETS) as engine:

            def watch() -> None:
                while not over.is_set():
                    seen.append(engine.snapshot())

            async def one(index: int) -> None:
                async for _ in engine.generate(ask([index + 1] * 40, 60)):
                    pass

            thread = threading.Thread(target=watch)
            thread.start()
            try:
                await asyncio.gather(*(one(index) for index in range(8)))
            finally:
                over.set()
                await asyncio.to_thread(thread.join)
            seen.append(engine.snapshot())
        seen.append(engine.snapshot())
        return seen

    seen = asyncio.run(main())
    for before, after in itertools.pairwise(seen):
        assert before.uptime < after.uptime
        assert all(old <= new for old, new in zip(counters(before), counters(after), strict=True))
        assert after.groups[0].held + after.groups[0].cached + after.groups[0].free <= after.groups[0].total
    assert max(found.running for found in seen) == 4
    assert (seen[-1].generated_tokens, seen[-1].running, seen[-1].groups[0].held) == (8 * 60, 0, 0)


def test_an_abort_of_the_only_request_shows_at_once(model: Path) -> None:
    async def main() -> None:
        async with await AsyncEngine.from_profile("builtin:cpu", model=model, sets=SETS) as engine:
            events = engine.generate(ask([3] * 40, 200))
            await anext(events)
            assert engine.snapshot().running == 1
            await events.aclose()
            for _ in range(4000):
                if engine.snapshot().running == 0:
                    break
                await asyncio.sleep(0.005)
            assert (engine.snapshot().running, engine.snapshot().groups[0].held) == (0, 0)

    asyncio.run(main())
