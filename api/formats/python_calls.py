"""Calls written as Python: `[search(query="rivers", limit=3), now()]`."""

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import frozen

from tokloom.api.formats.calls import MORE, NO_CALL, Read, ended, skip_blanks
from tokloom.api.formats.lark import Lark, parameters
from tokloom.sdk import JSON, Tool, ToolCall

_NAMES: Final[Mapping[str, JSON]] = {"true": True, "false": False, "null": None}
_CLOSING: Final = {"[": "]", "(": ")", "{": "}"}


@frozen(kw_only=True)
class PythonCalls:
    """A list of calls with keyword arguments, whose values are literals of Python or JSON.

    Attributes:
        end: text after the list, where the model writes one.
    """

    name: str
    signs: tuple[str, ...]
    marker: str = ""
    end: str = ""
    opening: str = "["
    between: str = ""

    def read(self, text: str, tools: Mapping[str, Tool], final: bool) -> Read:
        marked = bool(self.marker) and text.startswith(self.marker)
        start = skip_blanks(text, len(self.marker) if marked else 0)
        head = text[start : start + 1]
        if head != "[":
            return NO_CALL if head else MORE
        name = text[start + 1 :].partition("(")[0].strip()
        if name and not marked and not any(known.startswith(name) for known in tools):
            return NO_CALL
        end = _end(text, start)
        if end is None:
            return MORE
        calls = _calls(text[start:end])
        if not calls or not (marked or all(call.name in tools for call in calls)):
            return NO_CALL
        return ended(text, end, calls, self.end, final)

    def markers(self) -> tuple[str, ...]:
        return self.marker, self.end

    def rule(self, lark: Lark, tools: Sequence[Tool], *, several: bool) -> str:
        one = lark.rule(" | ".join(_rule(lark, tool) for tool in tools))
        rest = f' (", " {one})*' if several else ""
        return f'"[" {one}{rest} "]" {lark.text(self.end)}'


def _rule(lark: Lark, tool: Tool) -> str:
    """A call; arguments come in the order of the schema, and those that are not required may be left out."""
    first = after = lark.rule('""')
    for key, schema, needed in reversed(parameters(tool.name, tool.parameters)):
        one = lark.rule(f"{json.dumps(key + '=')} {lark.schema(schema)}")
        first = lark.rule(f"{one} {after}" + ("" if needed else f" | {first}"))
        after = lark.rule(f'", " {one} {after}' + ("" if needed else f" | {after}"))
    return f'{json.dumps(tool.name + "(")} {first} ")"'


def _end(text: str, start: int) -> int | None:
    """Behind the bracket that closes the one at `start`; None where it has not come."""
    open_: list[str] = []
    quote = ""
    at = start
    while at < len(text):
        character = text[at]
        if quote:
            if character == "\\":
                at += 1
            elif text.startswith(quote, at):
                at += len(quote) - 1
                quote = ""
        elif character in "\"'":
            quote = character * 3 if text.startswith(character * 3, at) else character
            at += len(quote) - 1
        elif character in _CLOSING:
            open_.append(_CLOSING[character])
        elif open_ and character == open_[-1]:
            open_.pop()
            if not open_:
                return at + 1
        at += 1
    return None


def _calls(text: str) -> tuple[ToolCall, ...]:
    """Empty if the text is anything but a list of calls."""
    try:
        tree = ast.parse(text, mode="eval").body
        assert isinstance(tree, ast.List)
        return tuple(_call(node) for node in tree.elts)
    except (SyntaxError, ValueError, AssertionError, RecursionError, MemoryError):
        return ()


def _call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call with keywords")
    made: dict[str, JSON] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("**")
        made[keyword.arg] = _literal(keyword.value)
    return ToolCall(ast.unparse(node.func), made)


def _literal(node: ast.expr) -> JSON:
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
        return node.value
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {_key(key): _literal(value) for key, value in zip(node.keys, node.values, strict=True)}
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _literal(node.operand)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return -value
    raise ValueError("no literal")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("a key is no text")
