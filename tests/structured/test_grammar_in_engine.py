"""The plugin in the real engine: over drafts, samples, forks, preemption, prefix hits, aborts and faults."""

import random
import re
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from engine_world import VOCAB, World, compose, parity, request, serial

from tokloom.plugins.logits.llguidance import LLGuidanceOptions, tokloom_logits
from tokloom.sdk import JSON, ChatMessage, GrammarSpec, LogitsCaps, NoOptions, Offer, RequestError, Tool

PATTERN = "(01|2[35]){3}4|5[67]+8(9|0)*"
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
SPECULATORS: list[Any] = [
    None,
    {"plugin": "oracle", "options": {"mode": "trees"}},
    {"plugin": "garbage", "options": {"seed": 3}},
    {"plugin": "on-device"},
    {"plugin": "ngram"},
]


class Digits:
    """Implements `tokloom.sdk.Tokenizer`: token i is the digit i, the last token is special."""

    special_ids = frozenset({10})
    chat_template = ""

    def encode(self, text: str, *, add_special: bool) -> Sequence[int]:
        return [int(digit) for digit in text]

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        return "".join(str(i) for i in ids if i < 10)

    def token_bytes(self, token_id: int) -> bytes:
        return str(token_id).encode() if token_id < 10 else b"<|ten|>"

    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool],
        options: Mapping[str, JSON],
        add_generation_prompt: bool,
    ) -> Sequence[int]:
        raise NotImplementedError


def digits(name: str = "digits", **options: Any) -> Offer[Any, Any]:
    """The plugin's offer, over digits instead of the double's missing tokenizer."""
    (own,) = tokloom_logits()

    def make(_: Any, context: Any) -> Any:
        given: Any = SimpleNamespace(tokenizer=Digits(), model=context.model)
        return own.factory(LLGuidanceOptions(**options), given)

    return Offer(
        kind="logits", name=name, contract="0.1", capabilities=own.capabilities, factory=make, config=NoOptions
    )


def world(**options: Any) -> World:
    return World(compose(logits=["shift", "parity", "digits"], more=[digits()], **options))


def held(name: str, prompt: Sequence[int], text: str = PATTERN, **options: Any) -> Any:
    return request(name, prompt, grammar=GrammarSpec("regex", text), **{"max_tokens": 18, **options})


def mixed(seed: int) -> list[Any]:
    chance = random.Random(seed)
    made = []
    for index in range(8):
        prompt = [*PROMPT[: chance.choice([4, 9, 13])], *(chance.randrange(VOCAB) for _ in range(chance.randrange(4)))]
        options: dict[str, Any] = {"temperature": chance.choice([0.0, 1.0, 3.0]), "seed": chance.randrange(99)}
        if chance.random() < 0.3:
            options["n"] = 3
        made.append(request(str(index), prompt, **options) if index % 4 == 3 else held(str(index), prompt, **options))
    return made


@cache
def alone(seed: int) -> dict[tuple[str, int], Any]:
    """What each request says when nobody else is there and nothing is drafted."""
    return serial(mixed(seed), logits=["digits"], more=[digits()])


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("speculator", SPECULATORS, ids=lambda s: s["plugin"] if s else "none")
def test_output_fits_and_is_that_of_plain_decoding(speculator: Any, depth: int) -> None:
    preempted = accepted = hits = 0
    for seed in range(2):
        requests, wanted = mixed(seed), alone(seed)
        small = world(speculator=speculator, depth=depth, pages=14, sequences=5, batch=16)
        small.run(*requests)
        assert {key: outcome.said for key, outcome in small.outcomes.items()} == wanted, f"seed {seed}"
        for (name, child), outcome in small.outcomes.items():
            if int(name) % 4 == 3:
                continue
            text = Digits().decode(outcome.tokens, skip_special=False)
            fits = re.fullmatch(PATTERN, text) is not None
            assert fits or (outcome.reason == "length" and len(text) == 18), f"seed {seed}: {name}.{child} says {text}"
            hits += small.usage(name).hit_tokens
            accepted += small.usage(name).accepted
        preempted += small.core.state.preempted
        assert "logits.digits" not in small.faults
        small.finish()
        small.core.close()
    assert preempted > 0
    assert hits > 0
    drafts = speculator is not None and speculator["plugin"] in ("oracle", "on-device")
    assert accepted > 0 or not drafts


def test_what_add_compiled_is_not_compiled_again() -> None:
    own = world(sequences=2, pages=8)
    factory: Any = own.composition.grammars["digits"]
    threads: list[int] = []
    inner = factory._compile

    def noted(*given: Any) -> Any:
        threads.append(threading.get_ident())
        return inner(*given)

    factory._compile = noted
    adder = threading.Thread(target=lambda: own.add(*(held(str(i), PROMPT[: 4 + i], n=2) for i in range(5))))
    adder.start()
    adder.join()
    assert len(threads) == 1
    own.run()
    assert len(threads) == 1
    own.finish()


def test_the_least_recently_used_specification_is_forgotten_first() -> None:
    own = World(compose(logits=["digits"], more=[digits(cached=2)]))
    factory: Any = own.composition.grammars["digits"]
    for index, text in enumerate(("1", "2", "1", "3")):
        own.add(held(str(index), PROMPT, text))
    assert [key[1] for key in factory._compiled] == ["1", "3"]


# -- who makes masks --------------------------------------------------------------------------------------------------


def test_masks_are_made_beside_the_forward_pass() -> None:
    """The forward pass does not return before a mask was asked for, on another thread."""
    own = World(compose())
    factory: Any = own.composition.grammars["parity"]
    model: Any = own.core.runner._model
    asked, threads, inside = threading.Event(), set(), factory.start

    def watched(*given: Any) -> Any:
        grammar = inside(*given)
        mask = grammar.mask

        def noted() -> Any:
            threads.add(threading.get_ident())
            asked.set()
            return mask()

        grammar.mask = noted
        return grammar

    forward = model.forward

    def patient(*given: Any) -> Any:
        assert asked.wait(60)
        return forward(*given)

    factory.start = watched
    model.forward = patient
    own.run(request("a", PROMPT[:5], grammar=parity("6"), max_tokens=9))
    assert threads
    assert threading.get_ident() not in threads
    own.finish()
    own.core.close()


def _mask_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("tokloom-masks")]


def test_no_thread_exists_without_a_grammar_or_after_the_engine() -> None:
    before = set(_mask_threads())
    own = World(compose())
    own.run(request("a", PROMPT[:5]))
    assert set(_mask_threads()) == before
    own.run(request("b", PROMPT[:5], grammar=parity("6")))
    assert set(_mask_threads()) > before
    own.core.close()
    assert set(_mask_threads()) == before


def test_the_time_that_masks_take_is_reported() -> None:
    own = World(compose())
    recorder: Any = own.composition.observers[0].plugin
    own.run(request("a", PROMPT[:5]))
    assert {(stats.mask_seconds, stats.mask_wait_seconds) for stats in recorder.steps} == {(0.0, 0.0)}
    seen = len(recorder.steps)
    own.run(request("b", PROMPT[:5], grammar=parity("6")))
    assert any(stats.mask_seconds > 0 for stats in recorder.steps[seen:])
    assert all(stats.mask_wait_seconds >= 0 for stats in recorder.steps[seen:])


@pytest.mark.parametrize("depth", [0, 1])
def test_aborts_and_failing_launches_leave_nothing_behind(depth: int) -> None:
    own = world(depth=depth, lazy=bool(depth), speculator=SPECULATORS[1])
    model: Any = own.core.runner._model
    forward, calls = model.forward, iter(range(10**6))

    def failing(*given: Any) -> Any:
        if next(calls) % 7 == 5:
            raise RuntimeError("out of memory")
        return forward(*given)

    model.forward = failing
    chance = random.Random(5)
    own.add(*mixed(5))
    for _ in range(400):
        if not own.core.busy:
            break
        own.step()
        if chance.random() < 0.1:
            own.core.abort(str(chance.randrange(8)))
    reasons = {outcome.reason for outcome in own.outcomes.values()}
    assert {"error", "abort"} <= reasons
    model.forward = forward
    own.run(held("after", PROMPT))
    assert (
        own.outcomes["after", 0].said == serial([held("after", PROMPT)], logits=["digits"], more=[digits()])["after", 0]
    )
    own.finish()
    assert own.core.runner.sampler._masks._answers == {}
    own.core.close()


def test_a_grammar_that_gives_up_on_the_way_ends_its_request_with_the_reason() -> None:
    own = world()
    factory: Any = own.composition.grammars["digits"]
    inside, count = factory.start, iter(range(99))

    def giving_up(*given: Any) -> Any:
        grammar = inside(*given)
        if next(count):

            def mask() -> Any:
                raise RequestError("the grammar cannot be followed any further")

            grammar.mask = mask
        return grammar

    factory.start = giving_up
    own.run(held("a", PROMPT), request("b", PROMPT[:6]))
    assert isinstance(own.outcomes["a", 0].error, RequestError)
    assert own.outcomes["b", 0].reason == "length"
    own.finish()


# -- which offer ------------------------------------------------------------------------------------------------------


def test_the_first_offer_of_the_profile_that_takes_a_syntax_is_asked() -> None:
    made = compose(logits=["parity", "second", "first"], more=[digits("first"), digits("second")])
    own = World(made)
    own.add(held("a", PROMPT), request("b", PROMPT, grammar=GrammarSpec("regex", "1", "first")))
    named = [item.sampling.grammar.offer for item, _ in own.core._inbox if item.sampling.grammar]
    assert named == ["second", "first"]
    with pytest.raises(
        RequestError, match=r"no grammar that the profile allows takes syntax 'jason'.*json_object, json_schema"
    ):
        own.add(request("c", PROMPT, grammar=GrammarSpec("jason", "1")))
    with pytest.raises(RequestError, match=r"'parity' takes no syntax 'regex'. Allowed: x-tokloom.parity$"):
        own.add(request("d", PROMPT, grammar=GrammarSpec("regex", "1", "parity")))


def test_an_offer_with_an_unknown_syntax_is_broken() -> None:
    odd = Offer(
        kind="logits",
        name="odd",
        contract="0.1",
        capabilities=LogitsCaps(role="grammar", syntaxes=frozenset({"jsonschema"})),  # type: ignore[arg-type]
        factory=lambda options, context: None,
        config=NoOptions,
    )
    with pytest.raises(Exception, match="unknown capability syntaxes = 'jsonschema'; did you mean json_schema"):
        compose(logits=["odd"], more=[odd])
