"""AsyncEngine over a core without a model: who gets what, who frees what, who waits for whom."""

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from fake_core import ByteTokenizer, FakeCore, Forever, spell

from tokloom.api import AsyncEngine, Event, GenerateRequest
from tokloom.core.events import OutputEvent
from tokloom.sdk import CapacityError, PluginFault, RequestError, SamplingParams

ENDLESS = SamplingParams(max_tokens=10**15)


def request(prompt: str = "go", sampling: SamplingParams = ENDLESS, **options: object) -> GenerateRequest:
    return GenerateRequest(prompt=prompt, sampling=sampling, **options)  # type: ignore[arg-type]


@asynccontextmanager
async def running(core: FakeCore, tokenizer: ByteTokenizer | None = None) -> AsyncIterator[AsyncEngine]:
    engine = AsyncEngine(core, tokenizer or ByteTokenizer())  # type: ignore[arg-type]
    try:
        yield engine
    finally:
        core.gate.set()
        await engine.aclose()


async def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("never happened")


async def freed(engine: AsyncEngine, core: FakeCore) -> None:
    await eventually(lambda: not core.held and not core.known and not core.busy)
    await eventually(lambda: not engine._loop._boxes and not engine._loop._session._live)


async def read(engine: AsyncEngine, item: GenerateRequest) -> str:
    return "".join([event.text async for event in engine.generate(item)])


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(main(), 30)

    asyncio.run(limited())


class Endless(FakeCore):
    """Answers until it is told to stop."""

    def __init__(self, limit: int = 64) -> None:
        super().__init__(lambda request, child: Forever(), limit=limit)


# -- leaving ----------------------------------------------------------------------------------------------------------


async def leave_by_break(engine: AsyncEngine) -> None:
    async for _ in engine.generate(request()):
        break


async def leave_by_aclose(engine: AsyncEngine) -> None:
    async with aclosing(engine.generate(request())) as stream:
        await anext(stream)


async def leave_by_error(engine: AsyncEngine) -> None:
    async def fails() -> None:
        async for _ in engine.generate(request()):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fails()


async def leave_by_cancel(engine: AsyncEngine) -> None:
    task = asyncio.create_task(read(engine, request()))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def leave_by_timeout(engine: AsyncEngine) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(read(engine, request()), 0.02)


async def leave_by_forgetting(engine: AsyncEngine) -> None:
    stream = engine.generate(request())
    await anext(stream)
    del stream
    gc.collect()


@pytest.mark.parametrize(
    "leave",
    [leave_by_break, leave_by_aclose, leave_by_error, leave_by_cancel, leave_by_timeout, leave_by_forgetting],
)
def test_leaving_a_stream_ends_its_request(leave: Callable[[AsyncEngine], Awaitable[None]]) -> None:
    async def main() -> None:
        core = Endless()
        async with running(core) as engine:
            await leave(engine)
            await freed(engine, core)
            core._answer = spell("next")
            assert await read(engine, request()) == "next"

    run(main)


def test_leaving_while_the_prompt_is_tokenised_ends_the_request_that_is_added_later() -> None:
    async def main() -> None:
        core, tokenizer = Endless(), ByteTokenizer()
        entered, let_go = threading.Event(), threading.Event()

        def slow() -> None:
            entered.set()
            assert let_go.wait(10)

        tokenizer.before_encode = slow
        async with running(core, tokenizer) as engine:
            task = asyncio.create_task(read(engine, request(request_id="slow")))
            await eventually(entered.is_set)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            added: list[str] = []
            core.before_return = lambda events: added.extend(event.request_id for event in events)
            let_go.set()
            await eventually(lambda: "slow" in added)
            await freed(engine, core)

    run(main)


def test_a_stream_that_nobody_began_adds_nothing() -> None:
    async def main() -> None:
        core = Endless()
        async with running(core) as engine:
            stream = engine.generate(request())
            await stream.aclose()
            assert not core.known

    run(main)


def test_abort_ends_a_stream_with_that_reason() -> None:
    async def main() -> None:
        core = Endless()
        async with running(core) as engine:
            events: list[Event] = []
            async for event in engine.generate(request(request_id="one")):
                events.append(event)
                if len(events) == 1:
                    assert engine.abort("one")
            assert events[-1].finish_reason == "abort"
            assert not engine.abort("one")
            await freed(engine, core)

    run(main)


def test_a_used_id_is_free_again_only_when_its_last_event_was_delivered() -> None:
    """Between the core's last event and its delivery a new request of that id must not get it."""

    async def main() -> None:
        core = FakeCore(spell("ab"))
        inside, go_on = threading.Event(), threading.Event()

        def hold(events: list[OutputEvent]) -> None:
            if any(event.finish_reason for event in events) and not inside.is_set():
                inside.set()
                assert go_on.wait(10)

        core.before_return = hold
        async with running(core) as engine:
            first = asyncio.create_task(read(engine, request(request_id="one")))
            await eventually(inside.is_set)
            assert "one" not in core.known
            with pytest.raises(RequestError, match="is live"):
                await read(engine, request(request_id="one"))
            go_on.set()
            assert await first == "ab"
            assert await read(engine, request(request_id="one")) == "ab"

    run(main)


def test_a_second_request_of_a_live_id_is_refused_and_harms_nothing() -> None:
    async def main() -> None:
        core = FakeCore(spell("abcdef"))
        core.gate.clear()
        async with running(core) as engine:
            first = asyncio.create_task(read(engine, request(request_id="one")))
            await eventually(lambda: "one" in core.known)
            with pytest.raises(RequestError, match="is live"):
                await read(engine, request(request_id="one"))
            core.gate.set()
            assert await first == "abcdef"

    run(main)


# -- who waits for whom -----------------------------------------------------------------------------------------------


def test_a_reader_that_sleeps_delays_nobody_and_gets_everything_joined() -> None:
    text = "".join(chr(97 + i % 26) for i in range(5000))

    async def main() -> None:
        core = FakeCore(spell(text))
        async with running(core) as engine:
            slow = engine.generate(request())
            events = [await anext(slow)]
            assert await read(engine, request()) == text
            await freed(engine, core)
            boxes = [box for box in gc.get_objects() if type(box).__name__ == "Mailbox" and box._pending]
            assert len(boxes) == 1
            assert sum(len(waiting) for waiting in boxes[0]._pending.values()) <= 65
            events += [event async for event in slow]
            assert len(events) <= 3
            assert "".join(event.text for event in events) == text
            assert [token for event in events for token in event.token_ids] == list(text.encode())
            assert events[-1].finish_reason == "stop"

    run(main)


def test_samples_of_one_request_do_not_wait_for_each_other() -> None:
    async def main() -> None:
        core = FakeCore(lambda request, child: list(f"sample {child}".encode()))
        async with running(core) as engine:
            texts: dict[int, str] = {}
            async for event in engine.generate(request(sampling=SamplingParams(max_tokens=50, n=5))):
                texts[event.index] = texts.get(event.index, "") + event.text
            assert texts == {child: f"sample {child}" for child in range(5)}

    run(main)


def test_prompts_are_not_tokenised_on_the_callers_loop() -> None:
    async def main() -> None:
        tokenizer = ByteTokenizer()
        async with running(FakeCore(spell("a")), tokenizer) as engine:
            await read(engine, request())
        assert tokenizer.threads
        assert threading.current_thread().name not in tokenizer.threads
        assert "tokloom-engine" not in tokenizer.threads

    run(main)


def test_an_idle_engine_does_nothing() -> None:
    async def main() -> None:
        core = FakeCore(spell("a"))
        waits = 0
        wait = core.wait

        def counted(timeout: float) -> None:
            nonlocal waits
            waits += 1
            wait(timeout)

        core.wait = counted  # type: ignore[method-assign]
        async with running(core) as engine:
            await read(engine, request())
            await freed(engine, core)
            await asyncio.sleep(0.05)
            before = (core.steps, waits)
            await asyncio.sleep(1.2)
            assert (core.steps, waits) == before
            assert await read(engine, request()) == "a"

    run(main)


def test_loops_and_engines_share_nothing_but_the_process() -> None:
    engines = {
        name: AsyncEngine(FakeCore(spell(name)), ByteTokenizer())  # type: ignore[arg-type]
        for name in ("left", "right")
    }
    got: list[tuple[str, str]] = []

    async def several(name: str) -> None:
        for text in await asyncio.gather(*(read(engines[name], request(str(i))) for i in range(10))):
            got.append((name, text))

    threads = [threading.Thread(target=lambda n=name: asyncio.run(several(n))) for name in ("left", "right") * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(got) == [("left", "left")] * 20 + [("right", "right")] * 20
    for engine in engines.values():
        asyncio.run(engine.aclose())


def test_a_reader_whose_loop_is_gone_harms_nobody() -> None:
    core = Endless()
    engine = AsyncEngine(core, ByteTokenizer())  # type: ignore[arg-type]
    loop = asyncio.new_event_loop()
    stream = engine.generate(request())
    loop.run_until_complete(anext(stream))
    loop.close()

    async def main() -> None:
        core._answer = spell("fine")
        assert await read(engine, request()) == "fine"
        await engine.aclose()

    run(main)
    assert not core.held


# -- refusals and faults ----------------------------------------------------------------------------------------------


def test_a_full_queue_is_the_callers_to_know() -> None:
    async def main() -> None:
        core = Endless(limit=1)
        async with running(core) as engine:
            stream = engine.generate(request())
            await anext(stream)
            with pytest.raises(CapacityError, match="queue is full"):
                await read(engine, request())
            await stream.aclose()
            await freed(engine, core)
            core._answer = spell("now")
            assert await read(engine, request()) == "now"

    run(main)


def test_a_broken_engine_fails_live_and_later_requests_with_the_reason() -> None:
    async def main() -> None:
        core = Endless()
        async with running(core) as engine:
            streams = [engine.generate(request()) for _ in range(3)]
            for stream in streams:
                await anext(stream)
            assert engine.failure is None
            core.broken = RuntimeError("lost pages")
            for stream in streams:
                with pytest.raises(PluginFault, match="RuntimeError: lost pages") as caught:
                    async for _ in stream:
                        pass
                assert isinstance(caught.value.__cause__, PluginFault)
                assert caught.value.__cause__.__cause__ is core.broken
            depths = set()
            for _ in range(3):
                with pytest.raises(PluginFault, match="lost pages") as caught:
                    await read(engine, request())
                depths.add(len(caught.traceback))
            assert len(depths) == 1, "each caller gets an error of its own"
            assert isinstance(engine.failure, PluginFault)
            await eventually(lambda: core.closed == 1)

    run(main)


def test_a_fault_of_a_plugin_comes_through_as_it_is() -> None:
    async def main() -> None:
        core = Endless()
        core.broken = PluginFault("lost pages", subject="allocator.x", remedy="Do this")
        async with running(core) as engine:
            with pytest.raises(PluginFault) as caught:
                await read(engine, request())
            assert (caught.value.subject, caught.value.remedy) == ("allocator.x", "Do this")

    run(main)


def test_a_tokenizer_that_breaks_ends_its_stream_only() -> None:
    class Fragile(ByteTokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            if token_id == ord("!"):
                raise KeyError("piece 33")
            return super().token_bytes(token_id)

    async def main() -> None:
        core = FakeCore(spell("ab!cd"))
        async with running(core, Fragile()) as engine:
            events: list[Event] = []

            async def gather() -> None:
                async for event in engine.generate(request()):
                    events.append(event)

            with pytest.raises(PluginFault, match="piece 33"):
                await gather()
            assert "".join(event.text for event in events) == "ab"
            assert events[-1].finish_reason == "error"
            core._answer = spell("fine")
            assert await read(engine, request()) == "fine"
            await freed(engine, core)

    run(main)


# -- closing ----------------------------------------------------------------------------------------------------------


def test_closing_ends_streams_after_what_was_there() -> None:
    async def main() -> None:
        core = Endless()
        async with running(core) as engine:
            stream = engine.generate(request())
            await anext(stream)
            await engine.aclose()
            with pytest.raises(CapacityError, match="closed"):
                async for _ in stream:
                    pass
            with pytest.raises(CapacityError, match="closed"):
                await read(engine, request())
            await engine.aclose()
            assert core.closed == 1
            assert not engine._loop._thread.is_alive()

    run(main)


def test_draining_lets_live_requests_end_and_refuses_new_ones() -> None:
    async def main() -> None:
        core = FakeCore(spell("abc"))
        core.gate.clear()
        async with running(core) as engine:
            reading = asyncio.create_task(read(engine, request(request_id="one")))
            await eventually(lambda: "one" in core.known)
            closing = asyncio.create_task(engine.aclose(drain=20))
            await eventually(lambda: engine._loop._refusing)
            with pytest.raises(CapacityError, match="closed"):
                await read(engine, request())
            core.gate.set()
            assert await reading == "abc"
            await closing
            assert core.closed == 1

    run(main)


def test_draining_has_an_end() -> None:
    async def main() -> None:
        core = Endless()
        async with running(core) as engine:
            stream = engine.generate(request())
            await anext(stream)
            await engine.aclose(drain=0.05)
            with pytest.raises(CapacityError, match="closed"):
                async for _ in stream:
                    pass

    run(main)


def test_closing_while_a_prompt_is_tokenised_refuses_it() -> None:
    async def main() -> None:
        core, tokenizer = Endless(), ByteTokenizer()
        entered, let_go = threading.Event(), threading.Event()

        def slow() -> None:
            entered.set()
            assert let_go.wait(10)

        tokenizer.before_encode = slow
        async with running(core, tokenizer) as engine:
            task = asyncio.create_task(read(engine, request()))
            await eventually(entered.is_set)
            await engine.aclose()
            let_go.set()
            with pytest.raises(CapacityError, match="closed"):
                await task

    run(main)


def test_a_process_may_end_while_its_engine_works() -> None:
    """Without being stopped, a thread inside torch ends the process with `terminate called`."""
    code = f"""
import asyncio, sys
sys.path[:0] = [{str(Path(__file__).parent)!r}]
import torch
from fake_core import ByteTokenizer, FakeCore, Forever
from tokloom.api import AsyncEngine, GenerateRequest
from tokloom.sdk import SamplingParams

class Busy(FakeCore):
    def step(self):
        for _ in range(50):
            torch.randn(300, 300) @ torch.randn(300, 300)
        return super().step()

    def close(self):
        super().close()
        print("closed", flush=True)

core = Busy(lambda request, child: Forever())
engine = AsyncEngine(core, ByteTokenizer())
loop = asyncio.new_event_loop()
stream = engine.generate(GenerateRequest(prompt="a", sampling=SamplingParams(max_tokens=10**15)))
loop.run_until_complete(anext(stream))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr
