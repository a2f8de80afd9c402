"""Whatever a request holds, it is refused with its name and the field, or served; the next one is served as ever."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import attrs
import hypothesis.strategies as st
import numpy as np
import pytest
from engine_world import DIGESTS, VOCAB, Outcome, World, compose, greedy, parity, request
from hypothesis import HealthCheck, example, given, settings

from tokloom.api import Engine, GenerateRequest
from tokloom.sdk import GrammarSpec, Objectives, Request, RequestError, SamplingParams, Scope, TokenSegment

GOOD = [3, 1, 4, 1, 5, 9, 2, 6]
LONGEST = 40
HUGE = 10**5000  # Python refuses to write it in decimal


class Sly:
    """Raises when it is looked at, counted or walked."""

    def __repr__(self) -> str:
        raise RuntimeError("no look")

    def __len__(self) -> int:
        raise RuntimeError("no count")

    def __iter__(self) -> Iterator[int]:
        raise RuntimeError("no walk")

    def __contains__(self, item: object) -> bool:
        raise RuntimeError("no search")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    __hash__ = object.__hash__


class SlyMapping(Sly, Mapping[int, float]):
    def __getitem__(self, key: int) -> float:
        raise RuntimeError("no entry")


def objectives(**seconds: Any) -> dict[str, Any]:
    return {"objectives": Objectives(**seconds)}


def scope(**fields: Any) -> dict[str, Any]:
    return {"scope": Scope(**fields)}


#: name -> what is wrong, and the words that name the field
EMBED: dict[str, Any] = {"task": "embed", "max_tokens": 16}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "empty prompt": ({"prompt": []}, "prompt"),
    "no segments": ({"segments": ()}, "prompt"),
    "empty segments": ({"segments": (TokenSegment(()), TokenSegment(()))}, "prompt"),
    "segments of numbers": ({"segments": (1, 2)}, "segments"),
    "segments is one": ({"segments": TokenSegment((1,))}, "segments"),
    "segments is None": ({"segments": None}, "segments"),
    "segments is text": ({"segments": "123"}, "segments"),
    "unknown token": ({"prompt": [1, VOCAB]}, "prompt token 1"),
    "unknown token of the second segment": (
        {"segments": (TokenSegment((1, 2)), TokenSegment((1, VOCAB)))},
        "prompt token 3",
    ),
    "negative token": ({"prompt": [-1]}, "prompt token 0"),
    "float token": ({"prompt": [1, 2, 1.0]}, "prompt token 2"),
    "true as token": ({"prompt": [True]}, "prompt token 0"),
    "text as token": ({"prompt": "1"}, "prompt token 0"),
    "none as token": ({"prompt": [None]}, "prompt token 0"),
    "huge token": ({"prompt": [HUGE]}, "prompt token 0"),
    "array as token": ({"prompt": [np.array([1, 2])]}, "prompt token 0"),
    "too long": ({"prompt": [1] * LONGEST}, f"{LONGEST} tokens and at most {LONGEST - 1}"),
    "too long to score": ({"prompt": [1] * (LONGEST + 1), "task": "score"}, f"at most {LONGEST}"),
    "id is a number": ({"request_id": 7}, "request_id"),
    "id is None": ({"request_id": None}, "request_id"),
    "id is half a character": ({"request_id": "a\ud800"}, "request_id"),
    "id is huge": ({"request_id": HUGE}, "request_id"),
    "sampling is a mapping": ({"sampling": {"max_tokens": 3}}, "sampling"),
    "sampling is None": ({"sampling": None}, "sampling"),
    "max_tokens negative": ({"max_tokens": -1}, "max_tokens"),
    "max_tokens None": ({"max_tokens": None}, "max_tokens"),
    "max_tokens huge": ({"max_tokens": HUGE}, "max_tokens"),
    "min above max": ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
    "temperature NaN": ({"temperature": math.nan}, "temperature"),
    "temperature numpy NaN": ({"temperature": np.float32("nan")}, "temperature"),
    "temperature complex": ({"temperature": 1j}, "temperature"),
    "temperature decimal": ({"temperature": Decimal(1)}, "temperature"),
    "temperature negative": ({"temperature": -1.0}, "temperature"),
    "temperature huge": ({"temperature": HUGE}, "temperature"),
    "temperature is sly": ({"temperature": Sly()}, "temperature"),
    "top_p zero": ({"top_p": 0.0}, "top_p"),
    "top_k negative": ({"top_k": -1}, "top_k"),
    "top_k huge": ({"top_k": 2**70}, "top_k"),
    "top_k float": ({"top_k": np.float64(3.0)}, "top_k"),
    "min_p": ({"min_p": 1.5}, "min_p"),
    "penalty zero": ({"repetition_penalty": 0.0}, "repetition_penalty"),
    "penalty so small that logits overflow": ({"repetition_penalty": 1e-60}, "repetition_penalty"),
    "presence": ({"presence_penalty": [1.0]}, "presence_penalty"),
    "frequency": ({"frequency_penalty": math.inf}, "frequency_penalty"),
    "bias is a list": ({"logit_bias": [(1, 1.0)]}, "logit_bias"),
    "bias is None": ({"logit_bias": None}, "logit_bias"),
    "bias is sly": ({"logit_bias": SlyMapping()}, "logit_bias"),
    "bias outside": ({"logit_bias": {VOCAB: 1.0}}, "logit_bias"),
    "bias by text": ({"logit_bias": {"1": 1.0}}, "logit_bias"),
    "bias by true": ({"logit_bias": {True: 1.0}}, "logit_bias"),
    "bias of text": ({"logit_bias": {1: "1"}}, "logit_bias"),
    "bias infinite": ({"logit_bias": {1: math.inf}}, "logit_bias"),
    "bias huge": ({"logit_bias": {1: HUGE}}, "logit_bias"),
    "bad words None": ({"bad_words": None}, "bad_words"),
    "bad words text": ({"bad_words": "bad"}, "bad_words"),
    "bad words of text": ({"bad_words": ("bad",)}, "bad_words"),
    "bad words flat": ({"bad_words": (1, 2)}, "bad_words"),
    "bad words a mapping": ({"bad_words": {1: 2}}, "bad_words"),
    "bad words sly": ({"bad_words": Sly()}, "bad_words"),
    "bad words endless": ({"bad_words": iter([(1,)])}, "bad_words"),
    "bad words too many": ({"bad_words": range(10**18)}, "bad_words"),
    "empty bad word": ({"bad_words": ((),)}, "bad_words"),
    "stop ids text": ({"stop_token_ids": "12"}, "stop_token_ids"),
    "stop ids bytes": ({"stop_token_ids": b"12"}, "stop_token_ids"),
    "stop ids one": ({"stop_token_ids": 3}, "stop_token_ids"),
    "stop outside": ({"stop_token_ids": (VOCAB,)}, "stop_token_ids"),
    "stop ids square": ({"stop_token_ids": np.ones((2, 2), dtype=int)}, "stop_token_ids"),
    "stop ids beyond counting": ({"stop_token_ids": range(10**30)}, "stop_token_ids"),
    "ignore_eos": ({"ignore_eos": "yes"}, "ignore_eos"),
    "seed text": ({"seed": "x"}, "seed"),
    "seed huge": ({"seed": 2**64}, "seed"),
    "n zero": ({"n": 0}, "n is 0"),
    "n huge": ({"n": 10**9}, "n is 1000000000"),
    "n float": ({"n": 2.0}, "n is 2.0"),
    "score with n": ({"task": "score", "n": 2}, "n is 2"),
    "logprobs": ({"logprobs": 500}, "logprobs"),
    "logprobs true": ({"logprobs": True}, "logprobs"),
    "prompt logprobs": ({"prompt_logprobs": -1}, "prompt_logprobs"),
    "unknown processor": ({"processors": ("nothing",)}, "processors"),
    "processors text": ({"processors": "shift"}, "processors"),
    "processors None": ({"processors": None}, "processors"),
    "unknown grammar": ({"grammar": GrammarSpec("x-tokloom.parity", "1", "nothing")}, "no grammar 'nothing'"),
    "grammar of a processor": ({"grammar": GrammarSpec("x-tokloom.parity", "1", "shift")}, "no grammar 'shift'"),
    "unknown syntax": ({"grammar": GrammarSpec("jason")}, "takes syntax 'jason'"),
    "syntax of nobody": ({"grammar": GrammarSpec("json_schema", "{}")}, "takes syntax 'json_schema'"),
    "syntax of another": ({"grammar": GrammarSpec("regex", "a", "parity")}, "'parity' takes no syntax 'regex'"),
    "bad grammar": ({"grammar": parity("words")}, "grammar"),
    "grammar a pair": ({"grammar": ("parity", "5")}, "grammar"),
    "grammar of a number": ({"grammar": GrammarSpec("x-tokloom.parity", 5)}, "grammar.text"),  # type: ignore[arg-type]
    "grammar in half characters": ({"grammar": GrammarSpec("x-tokloom.parity", "\ud800")}, "grammar.text"),
    "grammar of no syntax": ({"grammar": GrammarSpec(None)}, "grammar.syntax"),  # type: ignore[arg-type]
    "grammar of an odd offer": ({"grammar": GrammarSpec("x-tokloom.parity", "5", ["a"])}, "grammar.offer"),  # type: ignore[arg-type]
    "grammar text": ({"grammar": "parity"}, "grammar"),
    "unknown task": ({"task": "dream"}, "task"),
    "task None": ({"task": None}, "task"),
    "task an array": ({"task": np.array(["generate", "score"])}, "task"),
    "pooling of a generation": ({"pooling": "mean"}, "pooling"),
    "unknown pooling": ({**EMBED, "pooling": "max"}, "pooling is 'max'"),
    "pooling None": ({**EMBED, "pooling": None}, "pooling"),
    "normalize a number": ({**EMBED, "normalize": 1}, "normalize"),
    "embed some tokens": ({**EMBED, "max_tokens": 3}, "max_tokens is 3"),
    "embed hot": ({**EMBED, "temperature": 0.5}, "temperature"),
    "embed several": ({**EMBED, "n": 2}, "n is 2"),
    "embed with logprobs": ({**EMBED, "prompt_logprobs": 1}, "prompt_logprobs"),
    "embed with a grammar": ({**EMBED, "grammar": ("parity", "5")}, "grammar"),
    "too long to embed": ({**EMBED, "prompt": [1] * (LONGEST + 1)}, f"at most {LONGEST}"),
    "priority text": ({"priority": "high"}, "priority"),
    "priority float": ({"priority": 1.5}, "priority"),
    "priority huge": ({"priority": HUGE}, "priority"),
    "tenant None": ({"tenant": None}, "tenant"),
    "tenant half a character": ({"tenant": "\udfff"}, "tenant"),
    "objectives a number": ({"objectives": 3.0}, "objectives"),
    "deadline negative": (objectives(deadline=-1.0), "objectives.deadline"),
    "deadline zero": (objectives(deadline=0), "objectives.deadline"),
    "deadline NaN": (objectives(deadline=math.nan), "objectives.deadline"),
    "deadline text": (objectives(deadline="1"), "objectives.deadline"),
    "deadline infinite": (objectives(deadline=math.inf), "objectives.deadline"),
    "ttft": (objectives(ttft="soon"), "objectives.ttft"),
    "tpot": (objectives(tpot=True), "objectives.tpot"),
    "scope None": ({"scope": None}, "scope"),
    "salt half a character": (scope(salt="\ud800"), "scope.salt"),
    "salt a number": (scope(salt=3), "scope.salt"),
    "trace is a header": ({"trace": "00-1-2-01"}, "trace"),
    "chat is a number": ({"chat": 1}, "chat"),
    "adapter": (scope(adapter=b"digest"), "scope.adapter"),
    "adapter by name": (scope(adapter="red"), "scope.adapter"),
    "media text": (scope(media="digest"), "scope.media"),
    "media of numbers": (scope(media=(1,)), "scope.media"),
}

REQUEST_FIELDS = {field.name for field in attrs.fields(Request)} - {"sampling", "request_id", "segments", "scope"}


def build(name: str, options: Mapping[str, Any]) -> Request:
    """A small request with some fields replaced, of the request or of its sampling."""
    whole = {"sampling", "request_id", "segments", "scope"} & options.keys()
    rest = {key: value for key, value in options.items() if key not in whole and key != "prompt"}
    made = request(name, options.get("prompt", GOOD[:4]), **{"max_tokens": 3, **rest})
    return attrs.evolve(made, **{key: options[key] for key in whole})


def drain(world: World) -> None:
    for _ in range(4000):
        if not world.core.busy:
            return
        world.step()
    raise AssertionError("still busy")


def serves(world: World, tokens: int = 5) -> None:
    """A good request gets its tokens, and nothing is held or remembered afterwards."""
    world.add(request("good", GOOD, max_tokens=tokens))
    drain(world)
    assert world.outcomes.pop(("good", 0)).said == (greedy(GOOD, tokens), "length")
    world.finish()


@pytest.fixture(scope="module")
def world() -> World:
    return World(compose(longest=LONGEST, sequences=6, batch=24))


@pytest.mark.parametrize("case", WRONG)
def test_a_malformed_request_is_refused_by_name_and_the_next_one_served(world: World, case: str) -> None:
    options, words = WRONG[case]
    bad = build("bad", options)
    with pytest.raises(RequestError) as caught:
        world.core.add(bad)
    assert words in caught.value.message
    assert caught.value.subject.startswith("request ")
    assert "request_id" in options or caught.value.subject == "request 'bad'"
    assert caught.value.remedy
    assert len(str(caught.value)) < 400
    assert not world.core.busy, "nothing was kept"
    serves(world)
    assert not world.outcomes


def test_something_else_is_no_request(world: World) -> None:
    for thing in (None, "hello", {"prompt": [1]}, SamplingParams(), Sly()):
        with pytest.raises(RequestError, match="the request is"):
            world.core.add(thing)  # type: ignore[arg-type]
    serves(world)


def test_every_field_of_a_request_and_of_its_sampling_is_wrong_in_some_case() -> None:
    seen = {key for options, _ in WRONG.values() for key in options}
    assert seen - {"prompt"} == {field.name for cls in (Request, SamplingParams) for field in attrs.fields(cls)}


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({"max_tokens": np.int64(4), "n": np.uint8(2), "seed": np.int32(3), "temperature": np.float32(0.5)}, {"n": 2}),
        ({"temperature": Fraction(1, 2), "top_p": Fraction(9, 10), "seed": 5}, {"temperature": 0.5, "top_p": 0.9}),
        ({"prompt": np.array(GOOD)}, {"prompt": GOOD}),
        ({"stop_token_ids": np.array([2, 5])}, {"stop_token_ids": (2, 5)}),
        ({"stop_token_ids": {7}, "bad_words": [[1, 2], [3]]}, {"stop_token_ids": (7,), "bad_words": ((1, 2), (3,))}),
        ({"logit_bias": {np.int64(3): np.float32(1.5)}}, {"logit_bias": {3: 1.5}}),
        ({"processors": ["shift"], "grammar": parity("9")}, {"processors": ("shift",), "grammar": parity("9")}),
        (objectives(ttft=np.float32(2), deadline=Fraction(1, 10**9) + 9), {}),
    ],
    ids=["scalars", "fractions", "prompt", "array", "set and lists", "bias", "names", "objectives"],
)
def test_numbers_and_collections_of_other_libraries_say_what_plain_ones_say(
    world: World, options: dict[str, Any], same: dict[str, Any]
) -> None:
    plain = {key: value.item() if isinstance(value, np.generic) else value for key, value in options.items()}
    said = []
    for given_options in (options, {**plain, **same}):
        world.outcomes.clear()
        world.add(build("a", given_options))
        for seq in world.core._inbox:
            assert all(type(value) in (int, float, str, bool, tuple, dict, type(None)) for value in _values(seq[0]))
        drain(world)
        said.append({key: outcome.said for key, outcome in world.outcomes.items()})
    assert said[0] == said[1]
    world.outcomes.clear()
    serves(world)


def _values(item: Any) -> Iterator[Any]:
    """Every value inside a request."""
    for field in attrs.fields(type(item)):
        value = getattr(item, field.name)
        if attrs.has(type(value)):
            yield from _values(value)
            continue
        yield value
        if isinstance(value, Mapping):
            yield from value.keys()
            yield from value.values()
        elif isinstance(value, tuple):
            yield from (part for part in value if not attrs.has(type(part)))


def test_what_a_caller_changes_after_adding_changes_nothing(world: World) -> None:
    bias: dict[int, float] = {}
    stops: list[int] = []
    world.add(build("a", {"prompt": GOOD, "logit_bias": bias, "stop_token_ids": stops, "max_tokens": 5}))
    bias[10**6] = 3.0
    stops += range(VOCAB)
    drain(world)
    assert world.outcomes.pop(("a", 0)).said == (greedy(GOOD, 5), "length")
    serves(world)


def test_an_id_is_refused_while_it_is_live(world: World) -> None:
    world.add(build("twice", {}))
    with pytest.raises(RequestError, match="is live") as caught:
        world.core.add(build("twice", {"prompt": GOOD}))
    assert caught.value.subject == "request 'twice'"
    drain(world)
    assert world.outcomes.pop(("twice", 0)).reason == "length"
    serves(world)


class Shy(Sly):
    """A sly one that can be printed when a test fails."""

    def __repr__(self) -> str:
        return "Shy()"


# -- fuzz -------------------------------------------------------------------------------------------------------------

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, VOCAB + 3),
    st.integers(),
    st.sampled_from([2**31, 2**53, 2**63, -(2**63), -(2**63) - 1, 2**64, 10**400, 10**4000]),
    st.floats(),
    st.floats(0, 2),
    st.text(st.characters(), max_size=5),
    st.binary(max_size=3),
    st.sampled_from(["generate", "score", "embed", "mean", "shift", "parity", "5"]),
    st.integers(0, VOCAB).map(np.int64),
    st.integers(0, 100).map(np.uint8),
    st.floats(width=32).map(np.float32),
    st.booleans().map(np.bool_),
    st.fractions(),
    st.decimals(),
    st.complex_numbers(),
    st.builds(Shy),
)
KEYS = st.one_of(st.integers(-1, VOCAB), st.text(max_size=2), st.floats(allow_nan=False), st.booleans(), st.none())


def _deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
        st.lists(inner, max_size=3).map(iter),
    )


ANYTHING = st.one_of(
    st.recursive(SCALARS, _deeper, max_leaves=8),
    st.sampled_from([range(3), range(10**30), np.arange(3), np.ones((2, 2)), np.array(1), object, len]),
)
SAMPLING = {field.name: ANYTHING for field in attrs.fields(SamplingParams)}
SECONDS = st.one_of(st.none(), st.floats(0, 1e9, exclude_min=True))
#: values that mostly make sense, so that strange requests are served too
LIKELY: dict[str, st.SearchStrategy[Any]] = {
    "max_tokens": st.integers(2, 9),
    "min_tokens": st.integers(0, 3),
    "temperature": st.one_of(st.floats(0, 100), st.sampled_from([5e-324, 1e-40, 100])),
    "top_k": st.one_of(st.integers(0, VOCAB + 1), st.sampled_from([2**62, 2**63 - 1])),
    "top_p": st.floats(0, 1, exclude_min=True),
    "min_p": st.floats(0, 1),
    "repetition_penalty": st.floats(0.01, 100),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-1e9, 1e9), max_size=VOCAB),
    "bad_words": st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=3), max_size=14),
    "stop_token_ids": st.lists(st.integers(0, VOCAB - 1), max_size=VOCAB),
    "ignore_eos": st.booleans(),
    "seed": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
    "n": st.sampled_from([1, 1, 1, 2, 3]),
    "logprobs": st.one_of(st.none(), st.integers(0, 20)),
    "prompt_logprobs": st.one_of(st.none(), st.integers(0, 20)),
    "processors": st.sampled_from([(), ("shift",), ("shift", "shift")]),
    "grammar": st.sampled_from([None, parity("0"), parity("6")]),
    "prompt": st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=LONGEST - 1),
    "task": st.sampled_from(["generate", "generate", "score", "embed"]),
    "pooling": st.sampled_from(["", "", "", "mean"]),
    "normalize": st.booleans(),
    "priority": st.integers(-(2**63), 2**63 - 1),
    "tenant": st.text(max_size=5),
    "objectives": st.builds(Objectives, ttft=SECONDS, tpot=SECONDS, deadline=SECONDS),
    "scope": st.builds(
        Scope, salt=st.text(), adapter=st.sampled_from(["", *DIGESTS.values()]), media=st.lists(st.text(), max_size=2)
    ),
}
WILD = {
    **SAMPLING,
    **dict.fromkeys(sorted(REQUEST_FIELDS), ANYTHING),
    **dict.fromkeys(("request_id", "sampling", "segments"), ANYTHING),
    "objectives": st.one_of(ANYTHING, st.builds(Objectives, ttft=ANYTHING, tpot=ANYTHING, deadline=ANYTHING)),
    "scope": st.one_of(ANYTHING, st.builds(Scope, salt=ANYTHING, adapter=ANYTHING, media=ANYTHING)),
    "prompt": st.lists(st.one_of(st.integers(0, VOCAB), SCALARS), max_size=5),
}
#: a few fields of any type beside others that make sense
FIELDS = st.builds(
    lambda likely, wild: {**likely, **wild},
    st.fixed_dictionaries({}, optional=LIKELY),
    st.one_of(
        st.just({}),
        st.sampled_from(sorted(WILD)).flatmap(lambda name: st.fixed_dictionaries({name: WILD[name]})),
        st.fixed_dictionaries({}, optional=WILD),
    ),
)


def refused_or_served(options: Mapping[str, Any], add: Callable[[Mapping[str, Any]], object], world: World) -> str:
    """Returns what became of it."""
    refusal = None
    try:
        add(options)
    except RequestError as error:
        refusal = error
    if refusal is not None:
        words = {*options, *(["prompt"] if "segments" in options else ["min_tokens"])}
        assert any(name in refusal.message for name in words), refusal
        assert refusal.subject.startswith("request "), refusal
        assert refusal.remedy, refusal
        assert not world.core.busy
        return "refused"
    drain(world)
    assert world.outcomes, "a served request has events"
    for outcome in world.outcomes.values():
        _ended(outcome)
    world.outcomes.clear()
    return "served"


def _ended(outcome: Outcome) -> None:
    assert outcome.reason is not None
    if outcome.reason == "error":  # its own constraints leave no token
        assert isinstance(outcome.error, RequestError), outcome.error


FUZZ = settings(deadline=None, print_blob=True, database=None, suppress_health_check=list(HealthCheck))


def fuzz(world: World, rules: settings) -> None:
    """Random requests, one after another; some are refused and some are served."""
    became: Counter[str] = Counter()

    @rules
    @given(options=FIELDS)
    @example(options={"n": 128, "temperature": 1.0, "max_tokens": 9})
    @example(options={"n": 3, "max_tokens": 0})
    @example(options={"repetition_penalty": 0.01, "logit_bias": dict.fromkeys(range(VOCAB), 1e9)})
    @example(options={"bad_words": [[token] for token in range(VOCAB)]})
    def program(options: dict[str, Any]) -> None:
        became[refused_or_served(options, lambda fields: world.core.add(build("odd", fields)), world)] += 1
        serves(world, tokens=2)

    program()
    assert min(became["refused"], became["served"]) > 0.2 * became.total(), became


def test_random_requests_that_are_the_same_in_every_run(world: World) -> None:
    fuzz(world, settings(FUZZ, max_examples=300, derandomize=True))


@pytest.mark.slow
def test_random_requests_that_are_new_in_every_run(world: World) -> None:
    fuzz(world, settings(FUZZ, max_examples=1500))


# -- through the embedding API ----------------------------------------------------------------------------------------

API_FIELDS = {field.name for field in attrs.fields(GenerateRequest)}


@settings(FUZZ, max_examples=150, derandomize=True)
@given(
    likely=st.fixed_dictionaries({}, optional={name: LIKELY[name] for name in ("task", "priority", "tenant")}),
    sampling=st.fixed_dictionaries({}, optional={name: LIKELY[name] for name in ("max_tokens", "n", "stop_token_ids")}),
    wild=st.one_of(
        st.just({}), st.dictionaries(st.sampled_from(sorted(API_FIELDS | SAMPLING.keys())), ANYTHING, max_size=2)
    ),
)
def test_random_requests_of_the_embedding_api(
    world: World, likely: dict[str, Any], sampling: dict[str, Any], wild: dict[str, Any]
) -> None:
    fields = {"token_ids": GOOD[:4], **likely, **{name: wild[name] for name in wild.keys() & API_FIELDS}}
    sampling |= {name: wild[name] for name in wild.keys() - API_FIELDS}
    engine = Engine(world.core, None)
    refusal = None
    try:
        results = engine.generate(GenerateRequest(**{"sampling": SamplingParams(**sampling), **fields}))
    except RequestError as error:
        refusal = error
    if refusal is None:
        assert all(result.finish_reason for result in results)
    else:
        assert str(refusal)
        assert len(str(refusal)) < 400
        assert not engine._session._live
    drain(world)
    serves(world)
