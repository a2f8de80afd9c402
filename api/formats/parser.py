"""AnswerParser: takes a growing text apart into reasoning, answer and calls, however it was cut into pieces."""

from collections.abc import Mapping
from typing import Literal

from attrs import frozen

from tokloom.api.formats.calls import Calls, More, ToolFormat
from tokloom.api.formats.reasoning import ReasoningFormat
from tokloom.sdk import Tool, ToolCall

#: characters of what may be a call that are looked at again with every piece. More are looked at when something closes
#: and they have grown by an eighth, so that the work stays in proportion to the text
_EAGER = 256


@frozen
class Piece:
    """What a piece of text adds: reasoning, then answer, then calls."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[ToolCall, ...] = ()


class AnswerParser:
    """One sequence.

    Text that holds no reasoning and no call comes out as it is. What looks like a call and is none is text. Calls come
    out whole.

    Args:
        inside: the prompt ends within the reasoning.
        tools: those that may be called, by name; empty: no calls are looked for.
    """

    def __init__(
        self, reasoning: ReasoningFormat | None, *, inside: bool, format: ToolFormat | None, tools: Mapping[str, Tool]
    ) -> None:
        self._reasoning = reasoning
        self._format = format if tools else None
        self._tools = tools
        self._phase: Literal["start", "reasoning", "answer", "call"] = "reasoning" if inside else "start"
        if reasoning is None:
            self._phase = "answer"
        self._held = ""
        self._blanks = ""
        self._looked = 0
        self._fresh = True
        self._after = False
        self.called = False

    @property
    def reasons(self) -> bool:
        """Whether the text so far ends within the reasoning."""
        return self._phase == "reasoning"

    def push(self, text: str) -> Piece:
        """What a piece of text adds that cannot change any more."""
        self._held += text
        return self._read(text, final=False)

    def finish(self) -> Piece:
        """What was held back."""
        return self._read("", final=True)

    def _read(self, new: str, *, final: bool) -> Piece:
        reasoning: list[str] = []
        texts: list[str] = []
        calls: list[ToolCall] = []
        while self._step(new, final, reasoning, texts, calls):
            pass
        return Piece("".join(reasoning), "".join(texts), tuple(calls))

    def _step(self, new: str, final: bool, reasoning: list[str], texts: list[str], calls: list[ToolCall]) -> bool:
        """Work in one phase; whether the next one can go on with what is left."""
        if self._phase == "start":
            return self._start(final)
        if self._phase == "reasoning":
            return self._think(final, reasoning)
        if self._phase == "call":
            return self._call(new, final, texts, calls)
        return self._answer(final, texts)

    def _start(self, final: bool) -> bool:
        assert self._reasoning is not None
        begin, text = self._reasoning.begin, self._held.lstrip()
        if text.startswith(begin):
            self._held = text[len(begin) :]
            self._phase = "reasoning"
        elif final or not begin.startswith(text):
            self._phase = "answer"
        else:
            return False
        return True

    def _think(self, final: bool, reasoning: list[str]) -> bool:
        """Blanks at both ends are not part of it."""
        assert self._reasoning is not None
        if self._fresh:
            self._held = self._held.lstrip()
            self._fresh = not self._held
        thought, end, rest = self._held.partition(self._reasoning.end)
        if not end and not final:
            keep = _begun(self._held, self._reasoning.end)
            shown = self._held[: len(self._held) - keep].rstrip()
            reasoning.append(shown)
            self._held = self._held[len(shown) :]
            return False
        reasoning.append(thought.rstrip())
        self._held = rest
        self._phase, self._fresh, self._after = "answer", True, True
        return bool(end)

    def _answer(self, final: bool, texts: list[str]) -> bool:
        if self._fresh and self._clean(final):
            return True
        if self._format is None:
            self._show(self._held, texts)
            self._held = ""
            return False
        at = self._held.find(self._format.marker) if self._format.marker else -1
        if at >= 0:
            before = self._held[:at].rstrip()
            self._show(before, texts)
            self._begin_call(at, len(before))
            return True
        keep = 0 if final else _begun(self._held, self._format.marker)
        shown = self._held[: len(self._held) - keep]
        if not final:  # blanks before a call are no text
            shown = shown.rstrip()
        self._held = self._held[len(shown) :]
        self._show(shown, texts)
        return False

    def _clean(self, final: bool) -> bool:
        """At the beginning of the answer, or behind calls: drop what separates, see whether a call begins."""
        drop = " \t\r\n" + (self._format.between if self._format is not None and self.called else "")
        bare = self._held.lstrip(drop)
        if self._after or self.called:
            self._held = bare
        opening = "" if self._format is None else self._format.opening
        if opening and bare.startswith(opening):
            self._begin_call(len(self._held) - len(bare), 0)
            return True
        return False

    def _begin_call(self, at: int, shown: int) -> None:
        """What begins at `at` may be a call; the blanks between `shown` and it are text if it is none."""
        self._blanks, self._held = self._held[shown:at], self._held[at:]
        self._phase = "call"
        self._looked = 0

    def _show(self, text: str, texts: list[str]) -> None:
        if text:
            texts.append(text)
            self._fresh = self._fresh and not text.strip()

    def _call(self, new: str, final: bool, texts: list[str], calls: list[ToolCall]) -> bool:
        assert self._format is not None
        size = len(self._held)
        if not final and size > _EAGER and (8 * size < 9 * self._looked or not any(mark in new for mark in "}])>")):
            return False
        self._looked = size
        found = self._format.read(self._held, self._tools, final)
        if isinstance(found, More) and not final:
            return False
        self._phase = "answer"
        if isinstance(found, Calls):
            calls += found.calls
            self._held = self._held[found.length :]
            self.called = self._fresh = True
            return True
        first = max(1, len(self._format.marker) if self._held.startswith(self._format.marker) else 1)
        self._show(self._blanks + self._held[:first], texts)
        self._held = self._held[first:]
        return True


def _begun(text: str, marker: str) -> int:
    """Length of the longest tail that begins `marker`, without being all of it."""
    for size in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:size]):
            return size
    return 0
