"""ToolFormat: how a model writes the calls of functions in its text."""

import json
from collections.abc import Mapping, Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, Final, Protocol

from attrs import frozen

from tokloom.api.formats.lark import Lark
from tokloom.sdk import JSON, Tool, ToolCall


@frozen
class Calls:
    """Calls that stand whole at the beginning of a text, and how many characters they take."""

    calls: tuple[ToolCall, ...]
    length: int


@frozen
class More:
    """What came so far may become a call."""


@frozen
class NoCall:
    """Whatever comes, this is no call."""


MORE: Final = More()
NO_CALL: Final = NoCall()
Read = Calls | More | NoCall


class ToolFormat(Protocol):
    """One way of writing calls.

    Attributes:
        name: for `tool_format`.
        signs: texts that a chat template has all of if its model answers in this format.
        marker: text before calls, anywhere in the answer. A special token, where the tokenizer has one of this text.
        opening: what calls begin with if they stand first, without the marker; empty: the marker is needed.
        between: characters, besides blanks, that may separate calls.
    """

    @property
    def name(self) -> str: ...

    @property
    def signs(self) -> tuple[str, ...]: ...

    @property
    def marker(self) -> str: ...

    @property
    def opening(self) -> str: ...

    @property
    def between(self) -> str: ...

    def read(self, text: str, tools: Mapping[str, Tool], final: bool) -> Read:
        """The calls that `text` begins with, marker or opening first. `tools`: those of the request by name; `final`:
        nothing comes after `text`.
        """
        ...

    def rule(self, lark: Lark, tools: Sequence[Tool], *, several: bool) -> str:
        """Adds rules for calls of these tools; returns what stands for them behind the first marker, or from the
        opening on. With `several`, more than one may come.
        """
        ...

    def markers(self) -> tuple[str, ...]:
        """All texts that may be special tokens."""
        ...


def skip_blanks(text: str, at: int) -> int:
    """The place of the next character that is no blank."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def read_value(text: str, at: int) -> tuple[Any, int] | More | NoCall:
    """A JSON value at a place, and where it ends. A number or name at the very end may go on."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except RecursionError:
        return NO_CALL
    except ValueError as error:
        return MORE if _may_go_on(text, at, error) else NO_CALL
    if end == len(text) and not isinstance(value, dict | list | str):
        return MORE
    return value, end


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse, strict=False)


def _may_go_on(text: str, at: int, error: ValueError) -> bool:
    """Whether what could not be read is a beginning: it fails at its end, or in a string, name or number that reaches
    it.
    """
    if not isinstance(error, json.JSONDecodeError):
        return False
    rest = text[error.pos :]
    if error.msg.startswith("Unterminated string") or not rest:
        return True
    if error.msg.startswith("Invalid") and len(rest) < 7:  # an escape that is cut: \u12, or a pair of them
        return rest.startswith("u") or len(rest) <= 1
    if rest.startswith('"'):
        return _open_string(rest)
    return any(word.startswith(rest) for word in ("true", "false", "null")) or rest == "-"


def _open_string(text: str) -> bool:
    try:
        scanstring(text, 1, False)
    except ValueError:
        return True
    return False


def ended(text: str, at: int, calls: tuple[ToolCall, ...], end: str, final: bool) -> Read:
    """Calls that reach up to `at`, with the text `end` behind them if it is there or may still come."""
    if not end:
        return Calls(calls, at)
    after = skip_blanks(text, at)
    rest = text[after : after + len(end)]
    if rest == end:
        return Calls(calls, after + len(end))
    return MORE if not final and end.startswith(rest) else Calls(calls, at)


def as_call(value: JSON, arguments: Sequence[str]) -> ToolCall | None:
    """`{"name": …, ARGUMENTS: {…}}` as a call; None for anything else. `arguments`: what the second key may be."""
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    given = [value[key] for key in arguments if key in value]
    made = given[0] if given else {}
    if isinstance(made, str):
        try:
            made = json.loads(made)
        except ValueError:
            return None
    return ToolCall(str(value["name"]), made) if isinstance(made, Mapping) else None
