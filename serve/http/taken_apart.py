"""TakenApart: the events of answers as reasoning, text and calls."""

import secrets
import string
from collections.abc import Callable
from typing import Final

from attrs import define

from tokloom import Event
from tokloom.api.formats import AnswerParser, Piece
from tokloom.sdk import Tokenizer

_LETTERS: Final = string.ascii_letters + string.digits


@define
class _Answer:
    """One of them.

    Attributes:
        tail: the last bytes of its tokens, as many as may begin the end of the reasoning.
        counted: tokens up to the end of the reasoning, if there is one.
        thinking: the end has not come.
    """

    parser: AnswerParser
    thinking: bool
    tail: bytes = b""
    counted: int = 0
    reasoned: bool = False


class TakenApart:
    """Of one HTTP request.

    Args:
        make: a parser for each answer.
        end: what ends the reasoning; empty: there is none.
    """

    def __init__(self, make: Callable[[], AnswerParser], end: bytes, tokenizer: Tokenizer) -> None:
        self._make = make
        self._end = end
        self._tokenizer = tokenizer
        self._answers: dict[int, _Answer] = {}

    def piece(self, choice: int, event: Event) -> Piece:
        """What an event adds."""
        answer = self._answers.get(choice)
        if answer is None:
            answer = self._answers[choice] = _Answer(self._make(), bool(self._end))
        found = answer.parser.push(event.text)
        if event.finish_reason is not None:
            rest = answer.parser.finish()
            found = Piece(found.reasoning + rest.reasoning, found.text + rest.text, found.calls + rest.calls)
        answer.reasoned = answer.reasoned or bool(found.reasoning) or answer.parser.reasons
        if answer.thinking:
            self._count(answer, event)
        return found

    def _count(self, answer: _Answer, event: Event) -> None:
        for token in event.token_ids:
            answer.counted += 1
            seen = answer.tail + self._tokenizer.token_bytes(token)
            if self._end in seen:
                answer.thinking = False
                return
            answer.tail = seen[1 - len(self._end) :]

    def called(self, choice: int) -> bool:
        """Whether the answer has calls."""
        return choice in self._answers and self._answers[choice].parser.called

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of all reasoning, marks included."""
        return sum(answer.counted for answer in self._answers.values() if answer.reasoned)


def call_id() -> str:
    """A fresh id of a call: 9 letters and digits, which is what the strictest chat templates take."""
    return "".join(secrets.choice(_LETTERS) for _ in range(9))
