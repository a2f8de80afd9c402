"""Problems of a profile, each pointing at its source, rendered the way compilers do."""

import unicodedata
from collections.abc import Sequence
from typing import Final

from attrs import evolve, frozen

from tokloom.sdk import ProfileError

#: characters of a source line that an error shows
LONGEST_LINE: Final = 160


@frozen
class Place:
    """Where a key and its value stand. `line` and `column` count from 1; 0 where there is no text to point at.

    Attributes:
        source: a file's path, `environment variable X`, or `--set text`.
        text: the line itself, to show.
        column, width: of the value; `key_column`, `key_width`: of the key.
    """

    source: str
    line: int = 0
    text: str = ""
    column: int = 0
    width: int = 1
    key_column: int = 0
    key_width: int = 1

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.key_column}" if self.line else self.source


@frozen
class Problem:
    """One thing that is wrong. `at_key` puts the caret under the key instead of the value; `secret` says that the value
    must not be shown.
    """

    message: str
    place: Place
    key: str = ""
    help: str = ""
    at_key: bool = False
    secret: bool = False

    def render(self) -> str:
        place = self.place
        lines = [f"error: {self.message}"]
        column = place.key_column if self.at_key else place.column
        width = place.key_width if self.at_key else place.width
        if place.line:
            number = str(place.line)
            gutter = " " * len(number)
            lines.append(f"{gutter}--> {place.source}:{place.line}:{column}")
            text, column, width = _clip(place.text, column, width)
            lines.append(f"{gutter} |")
            lines.append(f"{number} | {text}")
            inside = f" in `{self.key}`" if self.key else ""
            lines.append(f"{gutter} | {_carets(text, column, width)}{inside}")
        else:
            lines.append(f" --> {place.source}" + (f", in `{self.key}`" if self.key else ""))
        if self.help:
            lines.append(f" = help: {self.help}")
        return "\n".join(lines)


def _clip(text: str, column: int, width: int) -> tuple[str, int, int]:
    """A piece of a long line around a column; the column and how much of the width is within it."""
    if len(text) <= LONGEST_LINE:
        return text, column, width
    start = max(0, column - 1 - LONGEST_LINE // 2)
    head = "..." if start else ""
    tail = "..." if start + LONGEST_LINE < len(text) else ""
    width = min(width, start + LONGEST_LINE - column + 1)
    return f"{head}{text[start : start + LONGEST_LINE]}{tail}", column - start + len(head), width


def _carets(text: str, column: int, width: int) -> str:
    """What goes below `text` so that a terminal shows carets below `width` characters from `column` on: tabs stay
    tabs, wide characters count twice.
    """
    before = text[: column - 1].ljust(column - 1)
    lead = "".join("\t" if character == "\t" else " " * _columns(character) for character in before)
    return lead + "^" * max(1, sum(_columns(character) for character in text[column - 1 : column - 1 + width]))


def _columns(character: str) -> int:
    """Terminal columns of a character."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _redacted(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """The problems with every value that should have been a secret hidden, also where another one shows its line."""
    exposed = [problem.place for problem in problems if problem.secret]
    done = []
    for problem in problems:
        place = problem.place
        for secret in exposed:
            if (place.source, place.line) != (secret.source, secret.line):
                continue
            if place.line:
                begin, end = secret.column - 1, secret.column - 1 + secret.width
                place = evolve(place, text=place.text[:begin] + "*" * (end - begin) + place.text[end:])
            elif "=" in place.source:  # a `--set`
                place = evolve(place, source=place.source.partition("=")[0] + "=***")
        done.append(evolve(problem, place=place))
    return tuple(done)


class ProfileProblems(ProfileError):
    """All problems of a profile at once. `str` renders them."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = _redacted(problems)
        first = self.problems[0]
        super().__init__(first.message, subject=str(first.place), remedy=first.help)

    def __str__(self) -> str:
        return "\n\n".join(problem.render() for problem in self.problems)

    def __reduce__(self) -> "tuple[object, ...]":
        return (ProfileProblems, (self.problems,))
