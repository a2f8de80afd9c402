"""Engine and AsyncEngine over a tiny real model."""

import asyncio
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_chat import SETS

from tokloom import AsyncEngine, CapacityError, ChatMessage, Engine, GenerateRequest, RequestError, SamplingParams
from tokloom.api.inspecting import explain_profile
from tokloom.api.profiles import read_profile
from tokloom.api.types import Event
from tokloom.core.engine import EngineCore
from tokloom.sdk import CheckpointError, PluginFault, ProfileError

GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    with Engine.from_profile("builtin:cpu", model=model, sets=SETS) as engine:
        yield engine


def idle(core: Any) -> None:
    """Run what is left and check that nothing is held."""
    for _ in range(200):
        if not core.busy:
            break
        core.step()
    assert core.state.allocator.stats().held_pages == 0
    assert not core._known


# -- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "neither prompt"),
        ({"prompt": "a", "token_ids": [1]}, "prompt and token_ids"),
        ({"messages": ()}, "messages is empty"),
        ({"token_ids": []}, "no tokens"),
        ({"token_ids": [999]}, "999"),
    ],
)
def test_a_wrong_request_names_what_is_wrong(engine: Engine, options: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        engine.add(GenerateRequest(**options))
    idle(engine.core)


def test_a_message_needs_role_and_content() -> None:
    with pytest.raises(RequestError, match="message 1"):
        GenerateRequest(messages=[{"role": "user", "content": "a"}, {"role": "user"}])


def test_plain_prompts_go_through_the_template_and_raw_ones_do_not(engine: Engine) -> None:
    chat = engine.generate(GenerateRequest(prompt="hi", sampling=GREEDY))[0]
    same = engine.generate(GenerateRequest(messages=[ChatMessage("user", "hi")], sampling=GREEDY))[0]
    raw = engine.generate(GenerateRequest(prompt="hi", raw=True, sampling=GREEDY))[0]
    assert chat.prompt_token_ids == same.prompt_token_ids
    assert chat.text == same.text
    assert bytes(_byte(engine, token) for token in raw.prompt_token_ids) == b"hi"


def _byte(engine: Engine, token: int) -> int:
    assert engine.tokenizer is not None
    (byte,) = engine.tokenizer.token_bytes(token)
    return byte


# -- Engine -----------------------------------------------------------------------------------------------------------


def test_results_come_in_order_with_their_texts(engine: Engine) -> None:
    prompts = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff"]
    together = engine.generate(prompts, GREEDY)
    alone = [engine.generate(prompt, GREEDY)[0] for prompt in prompts]
    assert [r.text for r in together] == [r.text for r in alone]
    assert all(len(r.token_ids) == 12 and r.finish_reason == "length" for r in together)
    assert all(r.usage is not None and r.usage.output_tokens == 12 for r in together)
    idle(engine.core)


def test_samples_have_indices_of_their_own(engine: Engine) -> None:
    sampling = SamplingParams(max_tokens=8, temperature=1.0, n=3, seed=5, ignore_eos=True)
    results = engine.generate(GenerateRequest(prompt="x", sampling=sampling))
    assert [result.index for result in results] == [0, 1, 2]
    assert len({result.token_ids for result in results}) > 1


def test_scoring_reports_each_prompt_token(engine: Engine) -> None:
    request = GenerateRequest(prompt="score me", task="score", sampling=SamplingParams(prompt_logprobs=1))
    (result,) = engine.generate(request)
    assert result.finish_reason == "scored"
    assert [entry.token for entry in result.prompt_logprobs] == list(result.prompt_token_ids)
    assert result.token_ids == ()


def test_a_stop_string_ends_text_and_tokens(engine: Engine) -> None:
    sampling = SamplingParams(
        max_tokens=40, temperature=0.0, ignore_eos=True, logit_bias=dict.fromkeys(range(65, 90), 30.0)
    )
    whole = engine.generate(GenerateRequest(prompt="go", sampling=sampling))[0]
    stop = whole.text[10:13]
    first = whole.text.index(stop)
    cut = engine.generate(GenerateRequest(prompt="go", sampling=sampling, stop=(stop,)))[0]
    assert cut.text == whole.text[:first]
    assert cut.finish_reason == "stop"
    assert cut.token_ids == whole.token_ids[: first + len(stop)]
    kept = engine.generate(GenerateRequest(prompt="go", sampling=sampling, stop=(stop,), include_stop=True))[0]
    assert kept.text == whole.text[: first + len(stop)]
    idle(engine.core)


def test_two_engines_in_one_process(model: Path, engine: Engine) -> None:
    with Engine.from_profile("builtin:cpu-int8", model=model, sets=SETS) as other:
        assert other.generate("a", GREEDY)[0].finish_reason == "length"
        assert engine.generate("a", GREEDY)[0].finish_reason == "length"
        other.close()


def test_overrides_are_sections_of_the_profile(model: Path) -> None:
    engine = Engine.from_profile("builtin:cpu", model=model, sets=SETS, engine={"max_sequences": 2}, scheduler="fcfs")
    assert engine.core.composition.settings.max_sequences == 4, "--set is stronger"
    engine.close()


def test_overrides_say_everything_a_profile_can(model: Path, tmp_path: Path) -> None:
    named = tmp_path / 'a "model" \\ 🙂'
    shutil.copytree(model, named)
    sets = [text for text in SETS if not text.startswith("engine.max_sequences")]
    tiers = [{"plugin": "host", "options": {"capacity": "1MiB"}}]
    options: dict[str, Any] = {"kv": {"tiers": tiers}, "engine.max_sequences": 3}
    with Engine.from_profile(
        "builtin:cpu", model={"path": named, "dtype": "bfloat16"}, sets=sets[1:], **options
    ) as engine:
        composition = engine.core.composition
        assert composition.settings.max_sequences == 3
        assert composition.model.spec.dtype == "bfloat16"
        assert [part.name for part in composition.connectors] == ["host"]


def test_an_override_that_no_profile_can_hold_is_named() -> None:
    with pytest.raises(ProfileError, match=r"engine\.threads.*NoneType"):
        Engine.from_profile("builtin:cpu", engine={"threads": None})


def test_a_composition_can_be_started_by_hand(model: Path) -> None:
    _, composition = explain_profile(read_profile("builtin:cpu", model=model, sets=SETS))
    with Engine.from_composition(composition) as engine:
        assert len(engine.generate("a", GREEDY)[0].token_ids) == 12


def test_a_load_that_fails_closes_the_plugins_that_were_made(model: Path, tmp_path: Path) -> None:
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    sets = [*SETS, 'kv.tiers=[{plugin="host",options={capacity="1MiB"}}]']
    _, composition = explain_profile(read_profile("builtin:cpu", model=tmp_path, sets=sets))
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    before = {thread for thread in threading.enumerate() if thread.is_alive()}
    scratch = composition.context.scratch
    with pytest.raises(CheckpointError):
        Engine.from_composition(composition)
    assert not scratch.exists()
    assert set(threading.enumerate()) <= before


def test_a_caller_that_is_cancelled_while_loading_leaves_no_engine(model: Path) -> None:
    entered, let_go = threading.Event(), threading.Event()
    closed: list[bool] = []

    def progress(done: int, total: int, what: str) -> None:
        entered.set()
        assert let_go.wait(10)

    async def main() -> None:
        opening = asyncio.create_task(_open(model, progress=progress))
        while not entered.is_set():
            await asyncio.sleep(0.01)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        let_go.set()

    real = EngineCore.close

    def close(core: EngineCore) -> None:
        closed.append(True)
        real(core)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineCore, "close", close)
        asyncio.run(main())
    assert closed == [True]


# -- AsyncEngine ------------------------------------------------------------------------------------------------------


async def _open(model: Path, **options: Any) -> AsyncEngine:
    return await AsyncEngine.from_profile("builtin:cpu", model=model, sets=SETS, **options)


async def _text(engine: AsyncEngine, prompt: str, sampling: SamplingParams = GREEDY) -> str:
    return "".join([event.text async for event in engine.generate(GenerateRequest(prompt=prompt, sampling=sampling))])


async def _settle(engine: AsyncEngine) -> None:
    for _ in range(400):
        if not engine.core.busy and not engine._loop._boxes:
            break
        await asyncio.sleep(0.01)
    assert engine.core.state.allocator.stats().held_pages == 0
    assert not engine._loop._boxes


def test_concurrent_streams_say_what_they_say_alone(model: Path, engine: Engine) -> None:
    prompts = [f"prompt {i}" for i in range(12)]
    wanted = [result.text for result in engine.generate(prompts, GREEDY)]

    async def main() -> list[str]:
        async with await _open(model) as running:
            texts = await asyncio.gather(*(_text(running, prompt) for prompt in prompts))
            await _settle(running)
            return list(texts)

    assert asyncio.run(main()) == wanted


LONG = SamplingParams(max_tokens=150, temperature=0.0, ignore_eos=True)


@pytest.mark.parametrize("how", ["break", "aclose", "cancel", "timeout"])
def test_leaving_a_stream_cancels_it_and_returns_its_pages(model: Path, how: str) -> None:
    async def read(engine: AsyncEngine, limit: int) -> None:
        stream = engine.generate(GenerateRequest(prompt="long", sampling=LONG))
        count = 0
        async for _ in stream:
            count += 1
            if count >= limit:
                break
        if how == "aclose":
            await stream.aclose()

    async def main() -> None:
        async with await _open(model) as engine:
            if how in ("break", "aclose"):
                await read(engine, 2)
            elif how == "cancel":
                task = asyncio.create_task(read(engine, 10_000))
                await asyncio.sleep(0.05)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(read(engine, 10_000), 0.05)
            await _settle(engine)
            assert await _text(engine, "next")

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(3))
def test_readers_that_leave_at_random_leave_no_pages(model: Path, seed: int) -> None:
    rng = random.Random(seed)

    async def reader(engine: AsyncEngine, number: int, limit: int) -> None:
        sampling = SamplingParams(max_tokens=60, temperature=1.0, n=rng.choice([1, 1, 2]), seed=number, ignore_eos=True)
        prompt = f"{'shared ' * rng.randint(0, 12)}{number}"
        async for _ in engine.generate(GenerateRequest(prompt=prompt, sampling=sampling)):
            limit -= 1
            if not limit:
                break

    async def main() -> None:
        async with await _open(model) as engine:
            tasks = [asyncio.create_task(reader(engine, n, rng.choice([1, 2, 9, 1000]))) for n in range(40)]
            for task in rng.sample(tasks, 20):
                await asyncio.sleep(rng.random() * 0.02)
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} <= {type(None), asyncio.CancelledError}
            await _settle(engine)
            engine.core.state.allocator.audit()
            assert await _text(engine, "next")

    asyncio.run(main())


def test_a_slow_reader_gets_joined_events_and_delays_nobody(model: Path) -> None:
    async def main() -> tuple[list[Event], str]:
        async with await _open(model) as engine:
            slow = engine.generate(GenerateRequest(prompt="slow", sampling=LONG))
            first = await anext(slow)
            other = await _text(engine, "other", LONG)
            rest = [event async for event in slow]
            return [first, *rest], other

    events, other = asyncio.run(main())
    assert sum(len(event.token_ids) for event in events) == 150
    assert len(events) < 150
    assert other


def test_two_event_loops_share_an_engine(model: Path) -> None:
    engine = asyncio.run(_open(model))
    texts: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda i=i: texts.update({i: asyncio.run(_text(engine, "same"))})) for i in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(set(texts.values())) == 1
    assert len(texts) == 3
    asyncio.run(engine.aclose())
    asyncio.run(engine.aclose())


def test_refused_requests_raise_before_the_first_event(model: Path) -> None:
    async def main() -> None:
        async with await _open(model) as engine:
            with pytest.raises(RequestError, match="temperature"):
                await _text(engine, "a", SamplingParams(temperature=-1.0))
            stream = engine.generate(GenerateRequest(prompt="a", sampling=LONG, request_id="one"))
            await anext(stream)
            with pytest.raises(RequestError, match="is live"):
                async for _ in engine.generate(GenerateRequest(prompt="b", sampling=LONG, request_id="one")):
                    pass
            assert len([event async for event in stream]) > 0
            await _settle(engine)

    asyncio.run(main())


def test_a_broken_engine_fails_live_and_later_requests(model: Path) -> None:
    async def main() -> None:
        engine = await _open(model)
        stream = engine.generate(GenerateRequest(prompt="a", sampling=LONG))
        await anext(stream)

        def boom() -> list[Any]:
            raise RuntimeError("lost pages")

        engine.core.step = boom  # type: ignore[method-assign]
        with pytest.raises(PluginFault, match="lost pages"):
            async for _ in stream:
                pass
        with pytest.raises(PluginFault, match="lost pages"):
            await _text(engine, "b")
        await engine.aclose()

    asyncio.run(main())


def test_closing_ends_streams_with_an_error(model: Path) -> None:
    async def main() -> None:
        engine = await _open(model)
        stream = engine.generate(GenerateRequest(prompt="a", sampling=LONG))
        await anext(stream)
        await engine.aclose()
        with pytest.raises(CapacityError, match="closed"):
            async for _ in stream:
                pass
        with pytest.raises(CapacityError, match="closed"):
            await _text(engine, "b")

    asyncio.run(main())


def test_an_embedded_engine_is_silent(model: Path) -> None:
    code = f"""
import logging, signal
before = (logging.root.handlers[:], signal.getsignal(signal.SIGINT))
from tokloom import Engine, SamplingParams
with Engine.from_profile("builtin:cpu", model={str(model)!r}, sets={SETS!r}) as engine:
    engine.generate("hi", SamplingParams(max_tokens=3))
assert before == (logging.root.handlers[:], signal.getsignal(signal.SIGINT))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert done.stderr == ""


def test_the_package_has_few_names_and_loads_them_late() -> None:
    code = """
import sys, tokloom
assert not {"torch", "numpy"} & set(sys.modules)
assert len(tokloom.__all__) <= 15
assert set(tokloom.__all__) <= set(dir(tokloom))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
