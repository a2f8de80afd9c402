"""Calls written as tags: `<function=NAME><parameter=KEY>…</parameter></function>` within `<tool_call>`."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import frozen

from tokloom.api.formats.calls import MORE, NO_CALL, Calls, Read
from tokloom.api.formats.lark import Lark, parameters
from tokloom.sdk import JSON, Tool, ToolCall

_END: Final = "</tool_call>"
_BODY: Final = re.compile(r"\s*<function=([^>\s]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER: Final = re.compile(r"\s*<parameter=([^>\n]+)>(.*?)</parameter>\s*(?=<parameter=|$)", re.DOTALL)


@frozen(kw_only=True)
class TagCalls:
    """Values of arguments are JSON, but for those that the schema says are texts: they stand as they are."""

    name: str
    signs: tuple[str, ...]
    marker: str = "<tool_call>"
    opening: str = ""
    between: str = ""

    def read(self, text: str, tools: Mapping[str, Tool], final: bool) -> Read:
        start = len(self.marker)
        head = text[start : start + 40].lstrip()
        if not (head.startswith("<function=") or "<function=".startswith(head)):
            return NO_CALL
        end = text.find(_END, start)
        while end >= 0:
            call = _call(text[start:end], tools)
            if call is not None:
                return Calls((call,), end + len(_END))
            end = text.find(_END, end + 1)
        call = _call(text[start:], tools) if final else None
        return MORE if call is None else Calls((call,), len(text))

    def markers(self) -> tuple[str, ...]:
        return self.marker, _END

    def rule(self, lark: Lark, tools: Sequence[Tool], *, several: bool) -> str:
        one = lark.rule(" | ".join(_rule(lark, tool) for tool in tools))
        whole = f'"\\n" {one} "\\n" {lark.text(_END)}'
        return whole + (f' ("\\n" {lark.text(self.marker)} {whole})*' if several else "")


def _rule(lark: Lark, tool: Tool) -> str:
    parts = []
    for key, schema, needed in parameters(tool.name, tool.parameters):
        head = json.dumps(f"<parameter={key}>\n")
        if _is_text(schema):
            body = f"{head} {lark.until(chr(10) + '</parameter>' + chr(10))}"
        else:
            body = f'{head} {lark.schema(schema)} "\\n</parameter>\\n"'
        parts.append(lark.rule(body) + ("" if needed else "?"))
    return f'{json.dumps(f"<function={tool.name}>" + chr(10))} {" ".join(parts)} "</function>"'


def _is_text(schema: object) -> bool:
    """Whether a value stands as it is: any text, which no list or pattern narrows."""
    if not isinstance(schema, Mapping) or schema.get("type") != "string":
        return False
    return not {"enum", "const", "pattern", "format", "minLength", "maxLength"} & schema.keys()


def _call(body: str, tools: Mapping[str, Tool]) -> ToolCall | None:
    found = _BODY.fullmatch(body)
    if found is None:
        return None
    name, rest = found[1], found[2].strip()
    tool = tools.get(name)
    known = tool.parameters.get("properties") if tool is not None else None
    made: dict[str, JSON] = {}
    at = 0
    while at < len(rest):
        one = _PARAMETER.match(rest, at)
        if one is None:
            return None
        schema = known.get(one[1]) if isinstance(known, Mapping) else None
        made[one[1]] = _value(one[2], schema)
        at = one.end()
    return ToolCall(name, made)


def _value(text: str, schema: object) -> JSON:
    """Without the line break that the format puts before and behind each value."""
    text = text.removeprefix("\n").removesuffix("\n")
    if _is_text(schema):
        return text
    try:
        value: JSON = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(schema, Mapping) and schema.get("type") == "string" and not isinstance(value, str):
        return text
    return value
