"""Calls written as JSON objects: `{"name": …, "arguments": {…}}`, one by one, in a list, or after their name."""

import json
from collections.abc import Mapping, Sequence

from attrs import frozen

from tokloom.api.formats.calls import MORE, NO_CALL, Calls, More, NoCall, Read, as_call, ended, read_value, skip_blanks
from tokloom.api.formats.lark import Lark
from tokloom.sdk import JSON, Tool, ToolCall

_ARGUMENTS = ("arguments", "parameters")


@frozen(kw_only=True)
class ObjectCalls:
    """One object after each marker: `<tool_call>{…}</tool_call>`.

    Attributes:
        key: what arguments are called where the format is enforced; all of `_ARGUMENTS` are read.
        end: text after each object.
        blank: between markers and object where the format is enforced; any is read.
    """

    name: str
    signs: tuple[str, ...]
    marker: str
    end: str
    key: str = "arguments"
    blank: str = "\n"
    opening: str = ""
    between: str = ""

    def read(self, text: str, tools: Mapping[str, Tool], final: bool) -> Read:
        at = skip_blanks(text, len(self.marker))
        found = read_value(text, at)
        if isinstance(found, More | NoCall):
            return found
        value, at = found
        call = as_call(value, _ARGUMENTS)
        if call is None:
            return NO_CALL
        return ended(text, at, (call,), self.end, final)

    def markers(self) -> tuple[str, ...]:
        return self.marker, self.end

    def rule(self, lark: Lark, tools: Sequence[Tool], *, several: bool) -> str:
        one = lark.rule(" | ".join(object_rule(lark, tool, self.key) for tool in tools))
        blank, end = json.dumps(self.blank), lark.text(self.end)
        rest = f" ({blank} {lark.text(self.marker)} {blank} {one} {blank} {end})*" if several else ""
        return f"{blank} {one} {blank} {end}{rest}"


@frozen(kw_only=True)
class ListCalls:
    """A list of objects after the marker: `[TOOL_CALLS][{…}, {…}]`.

    Attributes:
        end: text after the list, where the model writes one.
    """

    name: str
    signs: tuple[str, ...]
    marker: str
    end: str = ""
    key: str = "arguments"
    opening: str = ""
    between: str = ""

    def read(self, text: str, tools: Mapping[str, Tool], final: bool) -> Read:
        at = skip_blanks(text, len(self.marker))
        found = read_value(text, at)
        if isinstance(found, More | NoCall):
            return found
        value, at = found
        calls = [as_call(item, _ARGUMENTS) for item in (value if isinstance(value, list) else [value])]
        made = tuple(call for call in calls if call is not None)
        if not made or len(made) < len(calls):
            return NO_CALL
        return ended(text, at, made, self.end, final)

    def markers(self) -> tuple[str, ...]:
        return self.marker, self.end

    def rule(self, lark: Lark, tools: Sequence[Tool], *, several: bool) -> str:
        one = lark.rule(" | ".join(object_rule(lark, tool, self.key) for tool in tools))
        rest = f' (", " {one})*' if several else ""
        return f'"[" {one}{rest} "]" {lark.text(self.end)}'


@frozen(kw_only=True)
class NamedCalls:
    """A name, then its arguments, after each marker: `[TOOL_CALLS]name[ARGS]{…}`."""

    name: str
    signs: tuple[str, ...]
    marker: str
    middle: str
    opening: str = ""
    between: str = ""

    def read(self, text: str, tools: Mapping[str, Tool], final: bool) -> Read:
        start = len(self.marker)
        at = text.find(self.middle, start)
        if at < 0:
            return MORE if len(text) - start < 512 and "{" not in text[start:] else NO_CALL
        name = text[start:at].partition("[CALL_ID]")[0].strip()
        found = read_value(text, skip_blanks(text, at + len(self.middle)))
        if isinstance(found, More | NoCall):
            return found
        if not name or not isinstance(found[0], dict):
            return NO_CALL
        return Calls((ToolCall(name, found[0]),), found[1])

    def markers(self) -> tuple[str, ...]:
        return self.marker, self.middle

    def rule(self, lark: Lark, tools: Sequence[Tool], *, several: bool) -> str:
        middle = lark.text(self.middle)
        one = lark.rule(" | ".join(f"{json.dumps(tool.name)} {middle} {arguments(lark, tool)}" for tool in tools))
        return one + (f" ({lark.text(self.marker)} {one})*" if several else "")


@frozen(kw_only=True)
class BareCalls:
    """Objects that are the whole answer: `{"name": …, "parameters": {…}}; {…}`. One whose name no tool has is an answer
    like any other.
    """

    name: str
    signs: tuple[str, ...]
    marker: str
    key: str = "parameters"
    opening: str = "{"
    between: str = ";,"

    def read(self, text: str, tools: Mapping[str, Tool], final: bool) -> Read:
        at = len(self.marker) if text.startswith(self.marker) else 0
        found = read_value(text, skip_blanks(text, at))
        if isinstance(found, More | NoCall):
            return found
        call = as_call(found[0], _ARGUMENTS)
        return Calls((call,), found[1]) if call is not None and call.name in tools else NO_CALL

    def markers(self) -> tuple[str, ...]:
        return (self.marker,)

    def rule(self, lark: Lark, tools: Sequence[Tool], *, several: bool) -> str:
        one = lark.rule(" | ".join(object_rule(lark, tool, self.key) for tool in tools))
        return one + (f' ("; " {one})*' if several else "")


def arguments(lark: Lark, tool: Tool) -> str:
    """Stands for the object of a function's arguments."""
    return lark.rule(lark.schema(tool.parameters or {"type": "object", "properties": {}}))


def object_rule(lark: Lark, tool: Tool, key: str) -> str:
    """Stands for a call as an object, spaced as models are taught it."""
    if lark.compact:
        named: dict[str, JSON] = {"name": {"const": tool.name}, key: tool.parameters or {"type": "object"}}
        shape: dict[str, JSON] = {"type": "object", "properties": named, "required": ["name", key]}
        return lark.rule(lark.schema({**shape, "additionalProperties": False}))
    head = f'{{"name": {json.dumps(tool.name)}, "{key}": '
    return lark.rule(f'{json.dumps(head)} {arguments(lark, tool)} "}}"')
