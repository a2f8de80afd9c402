"""Whatever a plugin does to one step or one request, others say what they would have said."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from engine_checks import CheckedWorld
from engine_world import Clock, World, compose, greedy, parity, random_requests, request, serial

from tokloom.sdk import Defer, Pending, PluginFault, Reject

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4, 7, 6, 5, 3, 2]


def raising_at(function: Callable[..., Any], call: int) -> Callable[..., Any]:
    """The function, except that one of its calls raises."""
    calls = 0

    def wrapped(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise RuntimeError("this call fails")
        return function(*args)

    return wrapped


# -- launches that fail ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("tier", [None, "slow"])
@pytest.mark.parametrize("call", range(1, 9))
def test_pages_of_a_seal_that_raised_are_never_used(depth: int, tier: str | None, call: int) -> None:
    """They were findable before the seal ran, by sequences that have no part in the failed step."""
    tiers = [tier] if tier else []
    codec = {"plugin": "sealing", "options": {"residual": 0}}
    world = World(compose(codec=codec, batch=8, tiers=tiers, depth=depth, lazy=True), check=False)
    plugin: Any = world.composition.codec.plugin
    plugin.seal = raising_at(plugin.seal, call)
    prompts = {"a": PROMPT[:9], "b": PROMPT[3:12], "c": PROMPT[:12], "d": PROMPT[3:15], "e": PROMPT}
    world.add(request("a", prompts["a"], max_tokens=6))
    world.step()
    world.step()
    world.run(request("b", prompts["b"], max_tokens=6))
    world.run(*(request(name, prompts[name], max_tokens=6) for name in "cde"))
    assert world.core.state.faults.count("runner") == 1
    failed = [name for name, _ in world.outcomes if world.outcomes[name, 0].reason == "error"]
    assert len(failed) < len(prompts)
    for name in prompts.keys() - failed:
        assert world.outcomes[name, 0].said == (greedy(prompts[name], 6), "length"), name
    world.finish()


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("call", range(1, 12, 2))
def test_a_forward_that_raises_ends_only_its_own_sequences(depth: int, call: int) -> None:
    world = CheckedWorld(compose(batch=6, pages=40, depth=depth, lazy=True, speculator={"plugin": "on-device"}))
    model = world.core.runner._model
    model.forward = raising_at(model.forward, call)  # type: ignore[method-assign]
    requests = random_requests(random.Random(call), 6)
    wanted = serial(requests)
    world.run(*requests)
    ended = [key for key, outcome in world.outcomes.items() if outcome.reason == "error"]
    assert 0 < len(ended) < len(wanted)
    for key in wanted.keys() - ended:
        assert world.outcomes[key].said == wanted[key]
    world.finish()


def test_a_seal_that_raises_when_nobody_is_left_is_counted() -> None:
    """The last operations of a sequence run after it ended."""
    world = World(compose(codec={"plugin": "sealing", "options": {"residual": 0}}))
    plugin: Any = world.composition.codec.plugin
    seal = plugin.seal
    plugin.seal = raising_at(seal, 1)
    world.run(request("a", PROMPT[:8], max_tokens=1))
    assert world.outcomes["a", 0].said == (greedy(PROMPT[:8], 1), "length")
    assert world.core.state.faults.count("runner") == 1
    world.run(request("b", PROMPT[:12], max_tokens=5))
    assert world.outcomes["b", 0].said == (greedy(PROMPT[:12], 5), "length")
    world.finish()


# -- grammars ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"prompt_logprobs": 1}, {"n": 3, "temperature": 1.0}])
@pytest.mark.parametrize("method", ["start", "advance", "mask"])
def test_a_grammar_that_breaks_ends_its_request_alone(method: str, options: dict[str, Any]) -> None:
    world = World(compose())
    factory: Any = world.composition.grammars["parity"]
    if method == "start":
        factory.start = raising_at(factory.start, 2)  # the first call validates
    else:
        start = factory.start

        def broken(*args: Any) -> Any:
            grammar = start(*args)
            setattr(grammar, method, raising_at(getattr(grammar, method), 1))
            return grammar

        factory.start = broken
    world.run(request("g", PROMPT[:9], grammar=parity("5"), **options), request("b", PROMPT[:5], max_tokens=6))
    assert "error" in {outcome.reason for (name, _), outcome in world.outcomes.items() if name == "g"}
    assert world.outcomes["b", 0].said == (greedy(PROMPT[:5], 6), "length")
    world.finish()


# -- policies and tiers -----------------------------------------------------------------------------------------------


def test_a_policy_that_waits_long_for_a_tier_is_not_blamed() -> None:
    clock = Clock()
    world = World(compose(tiers=[{"plugin": "slow", "options": {"mode": "pending"}}], clock=clock))
    world.composition.connectors[0].plugin.lookup = lambda *_: Pending()  # type: ignore[method-assign]
    world.composition.scheduler.plugin.wait_for_tier = lambda seq, waited: waited < 4.0  # type: ignore[method-assign]

    def wait(timeout: float) -> bool:
        clock.time += 0.005
        return False

    world.core._context.wait = wait  # type: ignore[method-assign]
    world.run(request("a", PROMPT[:9], max_tokens=4))
    assert world.outcomes["a", 0].said == (greedy(PROMPT[:9], 4), "length")
    assert clock.time > 104
    assert not world.faults


@pytest.mark.parametrize("verdict", [Defer(), Reject("busy", 2.0)])
def test_admission_is_asked_before_a_tier_loads(verdict: Any) -> None:
    world = World(compose(tiers=["slow"], pages=24))
    world.run(request("a", PROMPT, max_tokens=2))
    world.core.state.allocator.invalidate(None)
    plugin = world.composition.scheduler.plugin
    admit, asked = plugin.admit, []

    def first_refuses(seq: Any, quote: Any, budget: Any) -> Any:
        asked.append(seq.seq_id)
        return verdict if len(asked) == 1 else admit(seq, quote, budget)

    plugin.admit = first_refuses  # type: ignore[method-assign]
    world.add(request("b", PROMPT, max_tokens=2))
    world.step()
    assert asked
    assert not world.core.state.loading
    world.run()
    if isinstance(verdict, Reject):
        assert "busy" in str(world.outcomes["b", 0].error)
    else:
        assert world.outcomes["b", 0].said == (greedy(PROMPT, 2), "length")
        assert world.usage("b").tier_tokens > 0
    world.finish()


def test_an_abort_that_comes_too_late_does_not_meet_the_next_request_of_that_name() -> None:
    world = World(compose(observers=["recorder"]))
    recorder = world.composition.observers[0].plugin
    on_request = recorder.on_request

    def late(stats: Any) -> None:
        assert world.core.abort(stats.request_id)  # its last event has not been returned yet
        on_request(stats)

    recorder.on_request = late  # type: ignore[method-assign]
    world.run(request("a", PROMPT[:5], max_tokens=2))
    recorder.on_request = on_request  # type: ignore[method-assign]
    world.outcomes.clear()
    world.run(request("a", PROMPT[:7], max_tokens=3))
    assert world.outcomes["a", 0].said == (greedy(PROMPT[:7], 3), "length")


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("tiers", [[], ["slow"]])
def test_a_prompt_that_is_all_cached_and_wants_no_tokens_ends_and_blocks_nobody(page: int, tiers: list[str]) -> None:
    world = World(compose(page=page, tiers=tiers))
    for name in "ab":
        world.run(request(name, PROMPT[:8], max_tokens=0), limit=50)
        assert world.outcomes[name, 0].said == ((), "length")
    assert world.usage("b").hit_tokens > 0
    assert not world.faults
    world.finish()


def test_an_allocator_that_raises_anything_stops_the_engine_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who owns which page is not known any more; serving on could mix sequences."""
    world = World(compose())
    world.run(request("a", [1, 2, 3], max_tokens=2))

    def broken(*args: object, **kwargs: object) -> None:
        raise KeyError("page 7")

    monkeypatch.setattr(world.core.state.allocator, "allocate", broken)
    world.core.add(request("b", [1, 2, 3], max_tokens=2))
    for _ in range(2):
        with pytest.raises(PluginFault, match=r"KeyError.*page 7") as caught:
            world.core.step()
        assert caught.value.subject == world.composition.allocator.id
    world.core.close()
