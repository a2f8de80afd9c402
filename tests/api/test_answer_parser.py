"""Answers are taken apart into reasoning, text and calls, the same however they were cut."""

import random
from collections.abc import Iterator

import pytest
from answers_in_formats import CASES, NO_CALLS, TOOLS, Case

from tokloom.api.formats import REASONING_FORMATS, TOOL_FORMATS, AnswerParser, Piece
from tokloom.sdk import ToolCall

NAMED = {tool.name: tool for tool in TOOLS}
THINK = REASONING_FORMATS["think"]


def parser(format: str | None, *, reasons: bool = False, inside: bool = False) -> AnswerParser:
    found = None if format is None else TOOL_FORMATS[format]
    return AnswerParser(THINK if reasons else None, inside=inside, format=found, tools=NAMED if format else {})


def pieces(rng: random.Random, text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        size = rng.choice([1, 1, 2, 3, 7, 40])
        yield text[at : at + size]
        at += size


def parsed(taken: AnswerParser, cut: Iterator[str]) -> Piece:
    found = [taken.push(piece) for piece in cut]
    found.append(taken.finish())
    return Piece(
        "".join(one.reasoning for one in found),
        "".join(one.text for one in found),
        tuple(call for one in found for call in one.calls),
    )


def cuts(text: str) -> Iterator[Iterator[str]]:
    yield iter([text])
    yield iter(text)
    for seed in range(8):
        yield pieces(random.Random(f"cut {seed}"), text)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.format}-{len(case.text)}")
def test_calls_are_found_however_the_answer_is_cut(case: Case) -> None:
    wanted = Piece("", case.before, tuple(ToolCall(name, arguments) for name, arguments in case.calls))
    for cut in cuts(case.text):
        assert parsed(parser(case.format), cut) == wanted


@pytest.mark.parametrize(("format", "text"), NO_CALLS)
def test_text_that_holds_no_call_comes_out_as_it_is(format: str, text: str) -> None:
    for cut in cuts(text):
        assert parsed(parser(format), cut) == Piece("", text, ())


@pytest.mark.parametrize("format", [*TOOL_FORMATS, None])
def test_random_text_is_neither_lost_nor_changed(format: str | None) -> None:
    signs = [
        sign for found in TOOL_FORMATS.values() for sign in (found.marker, found.opening, *found.markers()) if sign
    ]
    rng = random.Random(f"text {format}")
    for _ in range(300):
        words = [
            rng.choice([*signs, " ", "\n", "weather", "{", '"name":', "}", "(", "é", ";", "[ARGS]"]) for _ in range(9)
        ]
        text = "".join(words)
        whole = parsed(parser(format), iter([text]))
        assert parsed(parser(format), pieces(rng, text)) == whole, text
        if not whole.calls:
            assert whole.text == text


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.format}-{len(case.text)}")
def test_reasoning_comes_before_calls(case: Case) -> None:
    thought = "I <tool_call> think,\n\n{so} [I am]"
    calls = tuple(ToolCall(name, arguments) for name, arguments in case.calls)
    for begun in (False, True):
        text = ("" if begun else "<think>") + f"\n{thought}\n</think>\n\n{case.text}"
        for cut in cuts(text):
            found = parsed(parser(case.format, reasons=True, inside=begun), cut)
            assert found == Piece(thought, case.before, calls)


def test_an_answer_without_reasoning_is_an_answer() -> None:
    for text in ("Hi <think>not now</think>", "<thin ice", " <", ""):
        for cut in cuts(text):
            assert parsed(parser(None, reasons=True), cut) == Piece("", text, ())


def test_reasoning_that_does_not_end_is_reasoning() -> None:
    for cut in cuts("<think>on and </thin on"):
        assert parsed(parser(None, reasons=True), cut) == Piece("on and </thin on", "", ())


def test_blanks_between_reasoning_and_answer_belong_to_neither() -> None:
    for cut in cuts("<think>\n\nhm  \n</think>\n\n  Two  words \n"):
        assert parsed(parser(None, reasons=True), cut) == Piece("hm", "Two  words \n", ())


def test_text_is_shown_as_soon_as_it_cannot_be_a_call() -> None:
    taken = parser("hermes")
    assert taken.push("Hello <tool").text == "Hello"
    assert taken.push("box>").text == " <toolbox>"
    assert taken.push('<tool_call>{"name": "now"}</tool_call>').calls == (ToolCall("now", {}),)
    assert taken.called


@pytest.mark.parametrize("format", TOOL_FORMATS)
def test_the_work_is_in_proportion_to_the_text(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in characters that formats look at: of a call that does not end, piece by piece."""
    found = TOOL_FORMATS[format]
    looked: list[int] = []
    read = type(found).read

    def counted(self: object, text: str, *rest: object) -> object:
        looked.append(len(text))
        return read(self, text, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(type(found), "read", counted)
    beginnings = {
        "qwen3_coder": "<function=weather>",
        "mistral": 'weather[ARGS]{"a": "',
        "pythonic": "weather(a='",
        "lfm2": "[weather(a='",
    }
    start = (found.opening or found.marker) + beginnings.get(format, '{"name": "weather", "arguments": "')
    cut = [start, *[")]}>x"] * 8000]
    taken = parser(format)
    for piece in cut:
        assert not taken.push(piece).calls
    taken.finish()
    total = sum(map(len, cut))
    assert sum(looked) < 20 * total
