"""Requests that are wrong are refused with the name of what is wrong, before anything is kept."""

from typing import Any

import numpy as np
import pytest
import torch
from fake_core import BOS, ByteTokenizer, FakeCore, spell

from tokloom.api import Engine, GenerateRequest
from tokloom.api.requests import prepare
from tokloom.sdk import ChatMessage, Objectives, PluginFault, RequestError, SamplingParams, Scope

WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "neither prompt, token_ids nor messages"),
    ({"prompt": "a", "token_ids": [1]}, "prompt and token_ids"),
    ({"prompt": "a", "messages": [ChatMessage("user", "a")]}, "prompt and messages"),
    ({"prompt": ""}, "prompt is empty"),
    ({"prompt": "", "raw": True}, "prompt is empty"),
    ({"prompt": 3}, "prompt is int"),
    ({"prompt": b"a"}, "prompt is bytes"),
    ({"prompt": "ab\ud800"}, "character 2"),
    ({"messages": ()}, "messages is empty"),
    ({"messages": [ChatMessage("user", "\udfff")]}, r"messages\[0\].content"),
    ({"messages": [ChatMessage("user", 3)]}, r"messages\[0\].content is int"),  # type: ignore[arg-type]
    ({"token_ids": 5}, "token_ids is int"),
    ({"token_ids": "12"}, "token_ids is str"),
    ({"token_ids": [1, "2"]}, r"token_ids\[1\]"),
    ({"token_ids": [1, 2.0]}, r"token_ids\[1\]"),
    ({"token_ids": [1, None]}, r"token_ids\[1\]"),
    ({"token_ids": [1], "adapter": "green"}, "no adapter is called .green."),
    ({"token_ids": [1], "adapter": None}, "adapter is None"),
    ({"token_ids": [1], "pooling": None}, "pooling is None"),
    ({"token_ids": [1], "normalize": 1}, "normalize is 1"),
    ({"token_ids": [True]}, r"token_ids\[0\]"),
    ({"token_ids": np.array(3)}, "token_ids is ndarray"),
    ({"token_ids": torch.tensor([1, 2]) > 1}, r"token_ids\[0\]"),
    ({"token_ids": [[1, 2]]}, r"token_ids\[0\]"),
    ({"token_ids": []}, "no tokens"),
    ({"prompt": "a", "stop": ("",)}, "stop string"),
    ({"prompt": "a", "stop": ("x", 3)}, "stop string 3"),
    ({"prompt": "a", "raw": 1}, "raw is 1"),
    ({"prompt": "a", "priority": "high"}, "priority is 'high'"),
    ({"prompt": "a", "priority": True}, "priority is True"),
    ({"prompt": "a", "tenant": None}, "tenant is None"),
    ({"prompt": "a", "salt": 3}, "salt is 3"),
    ({"prompt": "a", "request_id": 7}, "request_id is 7"),
    ({"prompt": "a", "task": None}, "task is None"),
    ({"prompt": "a", "sampling": {"max_tokens": 3}}, "sampling is"),
    ({"prompt": "a", "sampling": SamplingParams(logit_bias=[3])}, "logit_bias"),  # type: ignore[arg-type]
    ({"prompt": "a", "sampling": SamplingParams(bad_words=(3,))}, "bad_words"),  # type: ignore[arg-type]
    ({"prompt": "a", "sampling": SamplingParams(temperature=-1.0)}, "temperature is -1.0"),
    ({"prompt": "a", "objectives": 3.0}, "objectives is 3.0"),
    ({"prompt": "a", "objectives": Objectives(deadline="1")}, "objectives.deadline"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("options", "words"), WRONG)
def test_a_wrong_request_names_what_is_wrong_and_leaves_nothing(options: dict[str, Any], words: str) -> None:
    core = FakeCore(spell("fine"))
    engine = Engine(core, ByteTokenizer())  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=words):
        engine.add(GenerateRequest(**options))
    assert not core.busy
    assert not engine._session._live
    assert engine.generate("next", SamplingParams())[0].text == "fine"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"messages": "hello"}, "messages is 'hello'"),
        ({"messages": 3}, "messages is 3"),
        ({"messages": ["hello"]}, "message 0 is str"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "user"}]}, "message 1"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "message 0"),
        ({"prompt": "a", "stop": 3}, "stop is 3"),
        ({"prompt": "a", "stop": b"x"}, "stop is b'x'"),
    ],
)
def test_what_cannot_be_a_request_is_refused_when_it_is_made(options: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        GenerateRequest(**options)


def test_something_else_is_no_request() -> None:
    engine = Engine(FakeCore(spell("fine")), ByteTokenizer())  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="the request is str"):
        engine.add("hello")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="the request is dict"):
        engine.generate([{"prompt": "hello"}])  # type: ignore[list-item]


def test_one_stop_string_is_not_its_characters() -> None:
    assert GenerateRequest(prompt="a", stop="END").stop == ("END",)
    assert GenerateRequest(prompt="a", stop=["a", "b"]).stop == ("a", "b")


@pytest.mark.parametrize("ids", [[1, 2, 3], (1, 2, 3), np.array([1, 2, 3]), torch.tensor([1, 2, 3]), range(1, 4)])
def test_any_sequence_of_integers_is_a_prompt(ids: Any) -> None:
    prepared = prepare(GenerateRequest(token_ids=ids), None)
    assert prepared.prompt_ids == (1, 2, 3)
    assert all(type(token) is int for token in prepared.prompt_ids)


def test_text_takes_the_template_unless_it_is_raw_or_scored_or_there_is_none() -> None:
    def text(request: GenerateRequest, tokenizer: ByteTokenizer) -> str:
        ids = prepare(request, tokenizer).prompt_ids
        assert ids[0] == BOS
        return bytes(ids[1:]).decode()

    plain = ByteTokenizer(template=False)
    chat = "[user]hi[assistant]"
    assert text(GenerateRequest(prompt="hi"), ByteTokenizer()) == chat
    assert text(GenerateRequest(messages=[{"role": "user", "content": "hi"}]), ByteTokenizer()) == chat
    assert text(GenerateRequest(prompt="hi", raw=True), ByteTokenizer()) == "hi"
    assert text(GenerateRequest(prompt="hi", task="score"), ByteTokenizer()) == "hi"
    assert text(GenerateRequest(prompt="hi"), plain) == "hi"
    with pytest.raises(RequestError, match="no chat template"):
        prepare(GenerateRequest(messages=[ChatMessage("user", "hi")]), plain)


def test_without_a_tokenizer_only_ids_are_taken() -> None:
    with pytest.raises(RequestError, match="no tokenizer"):
        prepare(GenerateRequest(prompt="a"), None)
    with pytest.raises(RequestError, match="stop strings need a tokenizer"):
        prepare(GenerateRequest(token_ids=[1], stop=("a",)), None)
    (result,) = Engine(FakeCore(spell("ab")), None).generate(GenerateRequest(token_ids=[1]))  # type: ignore[arg-type]
    assert (result.text, result.token_ids) == ("", tuple(b"ab"))


def test_a_tokenizer_that_raises_ends_its_request_only() -> None:
    tokenizer = ByteTokenizer()
    engine = Engine(FakeCore(spell("fine")), tokenizer)  # type: ignore[arg-type]

    def boom() -> None:
        raise ZeroDivisionError("tables")

    tokenizer.before_encode = boom
    with pytest.raises(PluginFault, match="ZeroDivisionError: tables"):
        engine.add(GenerateRequest(prompt="a"))
    tokenizer.before_encode = lambda: None
    assert engine.generate("a")[0].text == "fine"


def test_fresh_ids_differ() -> None:
    ids = {prepare(GenerateRequest(token_ids=[1]), None).request_id for _ in range(100)}
    assert len(ids) == 100


def test_an_adapter_is_named_by_its_caller_and_known_by_its_digest_to_the_core() -> None:
    adapters = {"red": "11", "blue": "22"}
    request = GenerateRequest(token_ids=[1], adapter="blue", salt="s")
    assert prepare(request, None, adapters).scope == Scope(salt="s", adapter="22")
    assert prepare(GenerateRequest(token_ids=[1]), None, adapters).scope == Scope()
    with pytest.raises(RequestError, match="no adapter is called 'green'") as caught:
        prepare(GenerateRequest(token_ids=[1], adapter="green"), None, adapters)
    assert caught.value.remedy == "Known adapters: blue, red"
    with pytest.raises(RequestError, match="no adapter is called 'red'"):
        prepare(GenerateRequest(token_ids=[1], adapter="red"), None)


def test_embedding_takes_no_stop_strings_and_no_template() -> None:
    tokenizer = ByteTokenizer()
    request = GenerateRequest(prompt="hi", task="embed", pooling="mean", normalize=False)
    prepared = prepare(request, tokenizer)
    assert prepared.prompt_ids == (256, *b"hi")
    assert (prepared.task, prepared.pooling, prepared.normalize) == ("embed", "mean", False)
    with pytest.raises(RequestError, match="stop is set"):
        prepare(GenerateRequest(prompt="hi", task="embed", stop="a"), tokenizer)
