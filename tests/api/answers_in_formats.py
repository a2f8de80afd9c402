"""Answers in every format of tool calls, written by hand, and what they say."""

from typing import Any, Final

from attrs import frozen

from tokloom.sdk import Tool

PLACE: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "units": {"enum": ["C", "F"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 9}, "maxItems": 3},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: Final = (Tool("weather", "What the sky does.", PLACE), Tool("now", "The time."))
ONE: Final[dict[str, Any]] = {"city": 'New "York"', "days": 3}
TWO: Final[dict[str, Any]] = {"city": "a]b}c(é", "days": 1, "tags": ["x", "y"]}


@frozen
class Case:
    """`text` holds `before`, then the calls."""

    format: str
    text: str
    calls: tuple[tuple[str, dict[str, Any]], ...]
    before: str = ""


def _json(name: str, arguments: str, key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


_ONE, _TWO = '{"city":"New \\"York\\"","days":3}', '{"city":"a]b}c(é","days":1,"tags":["x","y"]}'
_BOTH: Final = (("weather", ONE), ("weather", TWO))
CASES: Final = (
    Case("hermes", f"<tool_call>\n{_json('weather', _ONE)}\n</tool_call>", (("weather", ONE),)),
    Case(
        "hermes",
        f"Let me see.\n<tool_call>\n{_json('weather', _ONE)}\n</tool_call>\n"
        f"<tool_call>\n{_json('weather', _TWO)}\n</tool_call>",
        _BOTH,
        "Let me see.",
    ),
    Case("hermes", f"<tool_call>{_json('now', '{}')}", (("now", {}),)),
    Case("llama3_json", _json("weather", _ONE, "parameters"), (("weather", ONE),)),
    Case("llama3_json", f"{_json('weather', _ONE, 'parameters')}; {_json('weather', _TWO, 'parameters')}", _BOTH),
    Case("llama3_json", f"<|python_tag|>{_json('now', '{}', 'parameters')}", (("now", {}),)),
    Case("mistral_list", f"[TOOL_CALLS][{_json('weather', _ONE)}, {_json('weather', _TWO)}]", _BOTH),
    Case("mistral_list", f"[TOOL_CALLS] [{_json('now', '{}')}]", (("now", {}),)),
    Case("mistral", f"So:[TOOL_CALLS]weather[ARGS]{_ONE}[TOOL_CALLS]weather[ARGS]{_TWO}", _BOTH, "So:"),
    Case("granite", f"<|tool_call|>[{_json('weather', _ONE)}, {_json('weather', _TWO)}]", _BOTH),
    Case("phi4", f"<|tool_call|>[{_json('weather', _ONE)}]<|/tool_call|>", (("weather", ONE),)),
    Case(
        "pythonic",
        """[weather(city='New "York"', days=3), weather(city="a]b}c(é", days=1, tags=["x", 'y'])]""",
        _BOTH,
    ),
    Case("pythonic", "[now()]", (("now", {}),)),
    Case(
        "lfm2",
        "Well.<|tool_call_start|>[weather(city='New \\\"York\\\"', days=3)]<|tool_call_end|>",
        (("weather", ONE),),
        "Well.",
    ),
    Case(
        "qwen3_coder",
        '<tool_call>\n<function=weather>\n<parameter=city>\nNew "York"\n</parameter>\n'
        "<parameter=days>\n3\n</parameter>\n"
        "</function>\n</tool_call>\n<tool_call>\n<function=weather>\n<parameter=city>\na]b}c(é\n</parameter>\n"
        '<parameter=days>\n1\n</parameter>\n<parameter=tags>\n["x", "y"]\n</parameter>\n</function>\n</tool_call>',
        _BOTH,
    ),
    Case("qwen3_coder", "<tool_call>\n<function=now>\n</function>\n</tool_call>", (("now", {}),)),
)

#: what looks like calls and holds none: format, text
NO_CALLS: Final = (
    ("hermes", "<tool_call>\n{broken}\n</tool_call> and on"),
    ("hermes", "A <tool_call> is a mark, and </tool_call> too."),
    ("hermes", "no calls, just a < b and a <tool"),
    ("hermes", '<tool_call>\n{"name": "weather", "arguments": {"city": "x'),
    ("hermes", "  leading and trailing blanks \n\n"),
    ("hermes", '<tool_call>["weather"]</tool_call>'),
    ("llama3_json", '{"name": "Bob", "parameters": {"age": 3}}'),
    ("llama3_json", '{"answer": 42} and more'),
    ("llama3_json", '{"name": "weather", "parameters": {"city"'),
    ("llama3_json", "Text with {braces} in it; {}"),
    ("mistral_list", "[TOOL_CALLS] none of them [1, 2]"),
    ("mistral", "[TOOL_CALLS]weather"),
    ("granite", "<|tool_call|>[1, 2, 3]"),
    ("pythonic", "[1, 2, 3] are numbers"),
    ("pythonic", "[unknown(a=1)]"),
    ("pythonic", "[weather(city=name)]"),
    ("pythonic", "[weather('positional')]"),
    ("pythonic", "[weather(**x)]"),
    ("pythonic", "[weather(city='x'"),
    ("qwen3_coder", "<tool_call>\n<function=weather>\n<parameter=city>\nx"),
    ("qwen3_coder", "<tool_call>{}</tool_call>"),
)
