"""The formats that are known, and which one a chat template names."""

from collections.abc import Mapping
from typing import Final

from tokloom.api.formats.calls import ToolFormat
from tokloom.api.formats.json_calls import BareCalls, ListCalls, NamedCalls, ObjectCalls
from tokloom.api.formats.python_calls import PythonCalls
from tokloom.api.formats.reasoning import REASONING_FORMATS, ReasoningFormat
from tokloom.api.formats.tag_calls import TagCalls

#: choose by the chat template, or do not look for anything
AUTO: Final = "auto"
NONE: Final = "none"

_TOOLS: Final[tuple[ToolFormat, ...]] = (
    TagCalls(name="qwen3_coder", signs=("<tool_call>", "<function=", "<parameter=")),
    ObjectCalls(name="hermes", signs=("<tool_call>",), marker="<tool_call>", end="</tool_call>"),
    NamedCalls(name="mistral", signs=("[TOOL_CALLS]", "[ARGS]"), marker="[TOOL_CALLS]", middle="[ARGS]"),
    ListCalls(name="mistral_list", signs=("[TOOL_CALLS]",), marker="[TOOL_CALLS]"),
    PythonCalls(
        name="lfm2", signs=("<|tool_call_start|>",), marker="<|tool_call_start|>", end="<|tool_call_end|>", opening=""
    ),
    ListCalls(name="phi4", signs=("<|/tool_call|>",), marker="<|tool_call|>", end="<|/tool_call|>"),
    ListCalls(name="granite", signs=("<|tool_call|>",), marker="<|tool_call|>"),
    PythonCalls(name="pythonic", signs=("func_name1(params_name1=",)),
    BareCalls(name="llama3_json", signs=("<|start_header_id|>", '"parameters"', "tools"), marker="<|python_tag|>"),
)
#: name -> format, in the order in which a template is compared with their signs
TOOL_FORMATS: Final[Mapping[str, ToolFormat]] = {found.name: found for found in _TOOLS}


def tool_format(name: str, template: str) -> ToolFormat | None:
    """The format of that name; with `auto` the one that the template names. None: there is none."""
    if name != AUTO:
        return TOOL_FORMATS.get(name)
    return next((found for found in _TOOLS if all(sign in template for sign in found.signs)), None)


def reasoning_format(name: str, template: str) -> ReasoningFormat | None:
    """The format of that name; with `auto` the one that the template names. None: there is none."""
    if name != AUTO:
        return REASONING_FORMATS.get(name)
    return next((found for found in REASONING_FORMATS.values() if found.end in template), None)
