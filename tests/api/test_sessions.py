"""Engine over a core without a model: text, stop strings, batches, faults."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from fake_core import ByteTokenizer, FakeCore, Recorder, spell
from hypothesis import given
from hypothesis import strategies as st
from test_text import cut, reference

from tokloom.api import Engine, GenerateRequest
from tokloom.sdk import CapacityError, PluginFault, Request, RequestError, SamplingParams

MANY = SamplingParams(max_tokens=1000)


def open_engine(core: FakeCore, tokenizer: ByteTokenizer | None = None) -> Engine:
    return Engine(core, tokenizer or ByteTokenizer())  # type: ignore[arg-type]


@given(
    st.text("abé🙂", max_size=20),
    st.lists(st.text("abé🙂", min_size=1, max_size=3), max_size=3),
    st.integers(1, 24),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_a_stop_string_ends_text_and_tokens_however_they_are_cut_and_drawn(
    text: str, stops: list[str], limit: int, include: bool, rng: random.Random
) -> None:
    pieces = cut(text.encode(), rng)
    ids = [258 + number for number in range(len(pieces))]
    core = FakeCore(lambda request, child: ids, burst=lambda: rng.randint(1, 4))
    engine = open_engine(core, ByteTokenizer(pieces))
    request = GenerateRequest(
        prompt="go", stop=tuple(stops), include_stop=include, sampling=SamplingParams(max_tokens=limit, logprobs=0)
    )
    (result,) = engine.generate(request)

    drawn = b"".join(pieces[:limit]).decode(errors="replace")
    wanted, matched = reference(drawn, stops)
    assert result.text == wanted + (matched or "" if include else "")
    used = limit
    if matched is not None:
        used = next(
            n
            for n in range(len(pieces) + 1)
            if reference(b"".join(pieces[:n]).decode(errors="ignore"), stops)[1] is not None
        )
    assert list(result.token_ids) == ids[:limit][:used]
    assert [entry.token for entry in result.logprobs] == list(result.token_ids)
    assert result.usage is not None
    assert result.usage.output_tokens == len(result.token_ids)
    assert result.finish_reason == ("stop" if matched is not None or limit >= len(ids) else "length")
    assert not core.held
    assert not core.known
    assert not engine._session._live


def test_nothing_is_computed_after_a_stop_string() -> None:
    core = FakeCore(spell("one END " + "x" * 500))
    open_engine(core).generate(GenerateRequest(prompt="go", stop=("END",), sampling=MANY))
    assert core.drawn == len("one END")


def test_stop_strings_before_min_tokens_do_not_count() -> None:
    core = FakeCore(spell("a. b. c. d."))
    sampling = SamplingParams(max_tokens=100, min_tokens=5)
    (result,) = open_engine(core).generate(GenerateRequest(prompt="go", stop=(".",), sampling=sampling))
    assert result.text == "a. b"


def test_each_sample_has_a_text_of_its_own_and_stops_alone() -> None:
    texts = ["one. more", "two! more", "three. more"]
    core = FakeCore(lambda request, child: list(texts[child].encode()))
    sampling = SamplingParams(max_tokens=100, n=3)
    results = open_engine(core).generate(GenerateRequest(prompt="go", stop=(".",), sampling=sampling))
    assert [(result.index, result.text) for result in results] == [(0, "one"), (1, "two! more"), (2, "three")]
    assert [result.finish_reason for result in results] == ["stop"] * 3


def test_results_come_in_the_order_given_whatever_ends_first() -> None:
    rng = random.Random(3)
    answers = [str(number) * rng.randint(1, 30) for number in range(40)]
    core = FakeCore(lambda request, child: list(answers[int(bytes(request.prompt_ids[1:]))].encode()), limit=7)
    prompts = [GenerateRequest(prompt=str(number), raw=True, sampling=MANY) for number in range(40)]
    results = open_engine(core).generate(iter(prompts))
    assert [result.text for result in results] == answers
    assert not core.busy


def test_more_requests_than_the_queue_takes_wait_for_their_turn() -> None:
    core = FakeCore(spell("abc"), limit=2)
    assert [result.text for result in open_engine(core).generate(["x"] * 25)] == ["abc"] * 25


def test_a_full_queue_refuses_add_and_keeps_nothing() -> None:
    core = FakeCore(spell("abc"), limit=1)
    engine = open_engine(core)
    first = engine.add(GenerateRequest(prompt="a"))
    with pytest.raises(CapacityError, match="full"):
        engine.add(GenerateRequest(prompt="b"))
    assert list(engine._session._live) == [first]


def test_generate_keeps_what_it_meets_of_other_requests() -> None:
    core = FakeCore(spell("abcdef"))
    engine = open_engine(core)
    other = engine.add(GenerateRequest(prompt="first"))
    seen = Recorder()
    seen.take(engine.step())
    assert engine.generate("second")[0].text == "abcdef"
    assert engine.busy
    while engine.busy:
        seen.take(engine.step())
    assert seen.texts == {(other, 0): "abcdef"}
    assert seen.reasons == {(other, 0): "stop"}


def test_a_request_that_is_refused_in_a_batch_ends_the_others() -> None:
    core = FakeCore(spell("x" * 100))
    engine = open_engine(core)
    with pytest.raises(RequestError, match="prompt is empty"):
        engine.generate(["fine", ""])
    while engine.busy:
        engine.step()
    assert not core.held


def test_an_interrupt_ends_a_batch() -> None:
    core = FakeCore(spell("x" * 100))
    engine = open_engine(core)

    def interrupt(events: Sequence[Any]) -> None:
        if core.steps == 5:
            raise KeyboardInterrupt

    core.before_return = interrupt
    with pytest.raises(KeyboardInterrupt):
        engine.generate(["a", "b"])
    while engine.busy:
        engine.step()
    assert not core.held


def test_a_tokenizer_that_breaks_ends_its_sequence_with_an_error_and_no_other() -> None:
    class Fragile(ByteTokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            if token_id == ord("!"):
                raise KeyError("piece 33")
            return super().token_bytes(token_id)

    core = FakeCore(lambda request, child: list(b"bad! more" if child else b"good text"))
    engine = open_engine(core, Fragile())
    seen = Recorder()
    request_id = engine.add(GenerateRequest(prompt="a", sampling=SamplingParams(max_tokens=100, n=2)))
    errors = []
    while engine.busy:
        events = engine.step()
        seen.take(events)
        errors += [event.error for event in events if event.error is not None]
    assert seen.texts == {(request_id, 0): "good text", (request_id, 1): "bad"}
    assert seen.reasons == {(request_id, 0): "stop", (request_id, 1): "error"}
    assert [type(error) for error in errors] == [PluginFault]
    assert "piece 33" in str(errors[0])


def test_an_abort_keeps_the_text_so_far() -> None:
    core = FakeCore(spell("abcdef"))
    engine = open_engine(core)
    seen = Recorder()
    request_id = engine.add(GenerateRequest(prompt="a"))
    seen.take(engine.step())
    seen.take(engine.step())
    assert engine.abort(request_id)
    while engine.busy:
        seen.take(engine.step())
    assert seen.texts == {(request_id, 0): "ab"}
    assert seen.reasons == {(request_id, 0): "abort"}
    assert not engine.abort(request_id)


def test_what_is_held_back_is_shown_at_the_end() -> None:
    core = FakeCore(lambda request, child: list(b"wait EN" + "é".encode()[:1]))
    (result,) = open_engine(core).generate(GenerateRequest(prompt="a", stop=("END",)))
    assert result.text == "wait EN\ufffd"


def test_a_chat_answer_begins_without_the_space_of_sentencepiece_and_a_continuation_keeps_it() -> None:
    core = FakeCore(lambda request, child: [258, 259])
    engine = open_engine(core, ByteTokenizer([b" big", b" city"], strips=True))
    texts = [
        engine.generate(GenerateRequest(prompt="a"))[0].text,
        engine.generate(GenerateRequest(messages=[{"role": "user", "content": "a"}]))[0].text,
        engine.generate(GenerateRequest(prompt="a", raw=True))[0].text,
        engine.generate(GenerateRequest(token_ids=[1]))[0].text,
    ]
    assert texts == ["big city", "big city", " big city", " big city"]


def test_a_closed_engine_refuses() -> None:
    def answer(request: Request, child: int) -> list[int]:
        return [65]

    engine = open_engine(FakeCore(answer))
    with engine:
        engine.generate("a")
    with pytest.raises(CapacityError, match="closed"):
        engine.generate("a")
