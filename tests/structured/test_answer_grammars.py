"""Grammars of tool calls: what must be a call is one, in every format, with markers that are tokens or text."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest
from answers_in_formats import ONE, PLACE, TOOLS, TWO
from structured_rig import END, factory

from tokloom.api import GenerateRequest
from tokloom.api.formats import TOOL_FORMATS, AnswerFormat, ToolUse
from tokloom.sdk import JSON, ChatMessage, Grammar, GrammarSpec, RequestError, SamplingParams, Tool

VOCAB: Final = 300
WEATHER, NOW = TOOLS
MESSAGES: Final = (ChatMessage("user", "hi"),)


class Marked:
    """Implements `tokloom.sdk.Tokenizer`: a token per byte, and one for each of `marks`, special."""

    def __init__(self, template: str, marks: Sequence[str], prompt: str = "") -> None:
        self.chat_template = template
        self._marks = {mark: END + 1 + index for index, mark in enumerate(marks)}
        self._prompt = prompt
        self.special_ids = frozenset({END, *self._marks.values()})

    def encode(self, text: str, *, add_special: bool) -> Sequence[int]:
        if not self._marks:
            return list(text.encode())
        parts = re.split("(" + "|".join(map(re.escape, self._marks)) + ")", text)
        return [i for part in parts for i in ([self._marks[part]] if part in self._marks else part.encode())]

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        return b"".join(self.token_bytes(i) for i in ids).decode()

    def token_bytes(self, token_id: int) -> bytes:
        named = {END: b"<end>", **{value: key.encode() for key, value in self._marks.items()}}
        return bytes([token_id]) if token_id < END else named.get(token_id, b"")

    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool],
        options: Mapping[str, JSON],
        add_generation_prompt: bool,
    ) -> Sequence[int]:
        return self.encode("hi" + self._prompt, add_special=False)


def compact(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)


def keywords(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={compact(value)}" for key, value in arguments.items())


def tags(name: str, arguments: Mapping[str, Any]) -> str:
    values = {key: value if isinstance(value, str) else compact(value) for key, value in arguments.items()}
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def written(format: str, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Calls as models are taught to write them."""
    if format == "qwen3_coder":
        return "\n".join(tags(name, arguments) for name, arguments in calls)
    if format in ("pythonic", "lfm2"):
        listed = ", ".join(f"{name}({keywords(arguments)})" for name, arguments in calls)
        return f"[{listed}]" if format == "pythonic" else f"<|tool_call_start|>[{listed}]<|tool_call_end|>"
    if format == "mistral":
        return "".join(f"[TOOL_CALLS]{name}[ARGS]{compact(arguments)}" for name, arguments in calls)
    key = "parameters" if format == "llama3_json" else "arguments"
    made = [f'{{"name": "{name}", "{key}": {compact(arguments)}}}' for name, arguments in calls]
    if format == "hermes":
        return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in made)
    if format == "llama3_json":
        return "; ".join(made)
    begin, end = {
        "mistral_list": ("[TOOL_CALLS]", ""),
        "granite": ("<|tool_call|>", ""),
        "phi4": ("<|tool_call|>", "<|/tool_call|>"),
    }[format]
    return f"{begin}[{', '.join(made)}]{end}"


def of(format: str, special: bool, reasoning: str = "none", prompt: str = "") -> tuple[Marked, AnswerFormat]:
    found = TOOL_FORMATS[format]
    marks = [*filter(None, found.markers()), "<think>", "</think>"] if special else []
    tokenizer = Marked(" ".join(found.signs) + " tools </think>", marks, prompt)
    return tokenizer, AnswerFormat(tokenizer, tools=format, reasoning=reasoning)


def grammar(
    tokenizer: Marked, answers: AnswerFormat, use: ToolUse, wanted: GrammarSpec | None = None, tools: Any = TOOLS
) -> Grammar | None:
    request = GenerateRequest(messages=MESSAGES, tools=tools, sampling=SamplingParams(grammar=wanted))
    prepared, _ = answers.prepare(request, use)
    spec = prepared.sampling.grammar
    return None if spec is None else factory(tokenizer).start(spec, VOCAB, (END,))


def takes(tokenizer: Marked, found: Grammar | None, text: str) -> bool:
    """Whether the whole text is output that may end here."""
    assert found is not None
    taken = 0
    try:
        for token in tokenizer.encode(text, add_special=False):
            if not found.advance(token):
                return False
            taken += 1
        return found.terminated or bool(found.mask()[END])
    finally:
        found.rollback(taken)


both = pytest.mark.parametrize("special", [False, True], ids=["text", "tokens"])
every = pytest.mark.parametrize("format", TOOL_FORMATS)
WRONG: Final = ({"city": "x"}, {"days": 3}, {"city": "x", "days": 99}, {"city": "x", "days": 3, "units": "K"})


@both
@every
def test_a_required_call_is_one(format: str, special: bool) -> None:
    tokenizer, answers = of(format, special)
    found = grammar(tokenizer, answers, ToolUse(choice="required"))
    several: list[tuple[str, dict[str, Any]]] = [("weather", ONE), ("weather", TWO), ("now", {})]
    for calls in (several[:1], several[2:], several):
        assert takes(tokenizer, found, written(format, calls)), calls
    assert not takes(tokenizer, found, "")
    assert not takes(tokenizer, found, "It rains.")
    assert not takes(tokenizer, found, "It rains. " + written(format, [("now", {})]))
    assert not takes(tokenizer, found, written(format, [("then", {})]))
    for arguments in WRONG:
        assert not takes(tokenizer, found, written(format, [("weather", arguments)])), arguments


@both
@every
def test_a_named_tool_is_called_once(format: str, special: bool) -> None:
    tokenizer, answers = of(format, special)
    found = grammar(tokenizer, answers, ToolUse(choice="required", only="now"))
    assert takes(tokenizer, found, written(format, [("now", {})]))
    assert not takes(tokenizer, found, written(format, [("now", {}), ("now", {})]))
    assert not takes(tokenizer, found, written(format, [("weather", ONE)]))


@both
@every
def test_where_the_model_decides_calls_are_strict_and_text_is_free(format: str, special: bool) -> None:
    tokenizer, answers = of(format, special)
    found = grammar(tokenizer, answers, ToolUse(strict=True))
    call, marker = written(format, [("weather", ONE)]), TOOL_FORMATS[format].opening == ""
    for text in ("It rains.", "Zwölf < 13 & so on\n\n", call):
        assert takes(tokenizer, found, text), text
    assert takes(tokenizer, found, "It rains.\n" + call) or not marker
    for arguments in WRONG:
        assert not takes(tokenizer, found, written(format, [("weather", arguments)])), arguments


@both
@every
def test_one_call_at_most_where_they_may_not_be_parallel(format: str, special: bool) -> None:
    tokenizer, answers = of(format, special)
    found = grammar(tokenizer, answers, ToolUse(several=False))
    assert takes(tokenizer, found, written(format, [("weather", ONE)]))
    assert not takes(tokenizer, found, written(format, [("weather", ONE), ("now", {})]))
    assert takes(tokenizer, found, "None at all.")


@both
@every
def test_an_answer_in_a_form_or_a_call(format: str, special: bool) -> None:
    tokenizer, answers = of(format, special)
    forms = (
        (
            GrammarSpec("json_schema", json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}})),
            '{"a":3}',
        ),
        (GrammarSpec("json_object"), '{"b":[1,null]}'),
        (GrammarSpec("choice", '["yes","no"]'), "no"),
        (GrammarSpec("regex", "[0-9]+/[a-c]"), "12/b"),
    )
    for wanted, text in forms:
        found = grammar(tokenizer, answers, ToolUse(), wanted)
        assert takes(tokenizer, found, text)
        call = written(format, [("weather", ONE)])
        if format == "llama3_json":  # written like the form that it stands beside
            call = compact(json.loads(call))
        assert takes(tokenizer, found, call)
        assert not takes(tokenizer, found, "words")
    with pytest.raises(RequestError, match="lark"):
        grammar(tokenizer, answers, ToolUse(), GrammarSpec("lark", 'start: "a"'))


@both
@every
@pytest.mark.parametrize("begun", [False, True])
def test_reasoning_is_free_in_front_of_all_forms(format: str, special: bool, begun: bool) -> None:
    tokenizer, answers = of(format, special, "think", "<think>\n" if begun else "")
    call = written(format, [("weather", ONE)])
    front = ("" if begun else "<think>") + "\nI <t {think}[\n</think>\n\n"
    for use, wanted, text in (
        (ToolUse(choice="required"), None, call),
        (ToolUse(strict=True), None, call),
        (ToolUse(strict=True), None, "Words"),
        (ToolUse(), GrammarSpec("choice", '["yes"]'), "yes"),
        (ToolUse(choice="none"), GrammarSpec("choice", '["yes"]'), "yes"),
    ):
        found = grammar(tokenizer, answers, use, wanted)
        assert takes(tokenizer, found, front + text), (use, wanted)
        if use.choice == "required" or wanted is not None:
            assert takes(tokenizer, found, text) is not begun
            assert not takes(tokenizer, found, front + "words")


def test_no_grammar_where_anything_may_come() -> None:
    tokenizer, answers = of("hermes", False)
    assert grammar(tokenizer, answers, ToolUse()) is None
    assert grammar(tokenizer, answers, ToolUse(choice="none")) is None
    wanted = GrammarSpec("choice", '["yes"]')
    request = GenerateRequest(messages=MESSAGES, sampling=SamplingParams(grammar=wanted))
    assert answers.prepare(request, ToolUse())[0].sampling.grammar is wanted


def test_what_cannot_be_done_is_said() -> None:
    tokenizer, answers = of("hermes", False)
    for use, tools, words in (
        (ToolUse(choice="required", only="then"), TOOLS, "'then'.*weather, now"),
        (ToolUse(choice="required"), (), "no tools"),
    ):
        with pytest.raises(RequestError, match=words):
            grammar(tokenizer, answers, use, tools=tools)
    with pytest.raises(RequestError, match="exclude each other"):
        grammar(tokenizer, answers, ToolUse(choice="required"), GrammarSpec("json_object"))
    unknown = AnswerFormat(Marked("{{ messages }} {{ tools }}", ()))
    with pytest.raises(RequestError, match=r"no known format.*hermes"):
        grammar(tokenizer, unknown, ToolUse())
    blind = AnswerFormat(Marked("{{ messages }}", ()), tools="hermes")
    with pytest.raises(RequestError, match="would not show"):
        grammar(tokenizer, blind, ToolUse())
    _, python = of("pythonic", False)
    odd = (Tool("f", "", {"type": "array"}),)
    with pytest.raises(RequestError, match="no object with properties"):
        grammar(tokenizer, python, ToolUse(choice="required"), tools=odd)
    odd = (Tool("f", "", {**PLACE, "required": ["town"]}),)
    with pytest.raises(RequestError, match="'town'"):
        grammar(tokenizer, python, ToolUse(choice="required"), tools=odd)


def test_optional_arguments_may_be_left_out_of_python_calls() -> None:
    tokenizer, answers = of("pythonic", False)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {key: {"type": "integer"} for key in "abc"},
        "required": ["b"],
    }
    found = grammar(tokenizer, answers, ToolUse(choice="required"), tools=(Tool("f", "", schema),))
    for text in ("b=1", "a=1, b=2", "b=2, c=3", "a=1, b=2, c=3"):
        assert takes(tokenizer, found, f"[f({text})]"), text
    for text in ("", "a=1", "c=1", "b=1, a=2", "b=1, ", ", b=1", "a=1b=2"):
        assert not takes(tokenizer, found, f"[f({text})]"), text
