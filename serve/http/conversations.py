"""Conversations and tools as clients send them, and as the engine takes them."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from tokloom import ChatMessage
from tokloom.api.formats import ToolUse
from tokloom.sdk import JSON, RequestError, Tool, ToolCall
from tokloom.serve.http.fields import FunctionName, Ignored, Nothing, Strict

CallId = Annotated[str, Field(max_length=512)]
Role = Literal["system", "developer", "user", "assistant"]


class TextPart(Strict):
    type: Literal["text"]
    text: str


Content = str | Annotated[list[TextPart], Field(min_length=1)]


class CalledFunction(Strict):
    name: FunctionName
    arguments: str = Field(description="A JSON object.")


class MadeCall(Strict):
    """A call of an earlier answer."""

    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Ignored = None


class SpeakerMessage(Strict):
    """A message of whoever asks."""

    role: Literal["system", "developer", "user"]
    content: Content
    name: str = Field("", max_length=64, description="Of who speaks; the chat template may show it.")


class AssistantMessage(Strict):
    """An earlier answer; beside calls it need not have content."""

    role: Literal["assistant"]
    content: Content | None = None
    name: str = Field("", max_length=64, description="The chat template may show it.")
    reasoning_content: str | None = Field(None, description="What it thought before it answered.")
    tool_calls: list[MadeCall] | None = Field(None, max_length=128)
    refusal: None = None
    audio: None = None
    annotations: Nothing | None = None
    function_call: None = None


class ToolMessage(Strict):
    """What a call gave."""

    role: Literal["tool"]
    content: Content
    tool_call_id: CallId = Field(description="Which call the message answers.")
    name: str = Field("", max_length=64, description="Of the function; the chat template may show it.")


Message = Annotated[SpeakerMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class InputPart(Strict):
    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: Ignored = None
    logprobs: Ignored = None


class InputMessage(Strict):
    """A message of a response's input."""

    type: Literal["message"] = "message"
    role: Role
    content: str | Annotated[list[InputPart], Field(min_length=1)]
    id: Ignored = None
    status: Ignored = None


class FunctionDefinition(Strict):
    name: FunctionName
    description: str = ""
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema of an object; left out: no arguments.")
    strict: bool | None = Field(None, description="Hold the arguments to the schema.")


class ToolDefinition(Strict):
    type: Literal["function"]
    function: FunctionDefinition


class ChosenFunction(Strict):
    name: FunctionName


class ChosenTool(Strict):
    type: Literal["function"]
    function: ChosenFunction


ToolChoice = Literal["none", "auto", "required"] | ChosenTool

ROLES: Final = ("system", "developer", "user", "assistant", "tool")
#: OpenAI's newer word for `system`
_ROLES: Final = {"developer": "system"}


def conversation(messages: Sequence[Message]) -> tuple[ChatMessage, ...]:
    """As templates know it. Raises RequestError naming the message that says nothing."""
    return tuple(_message(message, f"messages[{number}]") for number, message in enumerate(messages))


def _message(message: SpeakerMessage | AssistantMessage | ToolMessage, name: str) -> ChatMessage:
    if isinstance(message, ToolMessage):
        return ChatMessage("tool", _text(message.content), name=message.name, tool_call_id=message.tool_call_id)
    if isinstance(message, SpeakerMessage):
        return ChatMessage(_ROLES.get(message.role, message.role), _text(message.content), name=message.name)
    calls = message.tool_calls or []
    if message.content is None and not calls:
        raise RequestError(f"{name}.content is missing", remedy="Only a message with tool_calls may lack it")
    return ChatMessage(
        "assistant",
        _text(message.content or ""),
        name=message.name,
        tool_calls=tuple(_call(call, f"{name}.tool_calls[{number}]") for number, call in enumerate(calls)),
        reasoning=message.reasoning_content or "",
    )


def _call(call: MadeCall, name: str) -> ToolCall:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise RequestError(f"{name}.function.arguments is no JSON object", remedy="Send what the answer had")
    return ToolCall(call.function.name, arguments, call.id)


def spoken(messages: Sequence[InputMessage]) -> tuple[ChatMessage, ...]:
    """A response's input as templates know it."""
    return tuple(ChatMessage(_ROLES.get(message.role, message.role), _text(message.content)) for message in messages)


def _text(content: str | Sequence[TextPart] | Sequence[InputPart]) -> str:
    """The parts, one after the other."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


def tools_of(definitions: Sequence[ToolDefinition]) -> tuple[Tool, ...]:
    """Tools as templates show them. Raises RequestError where two have one name."""
    names = [definition.function.name for definition in definitions]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise RequestError(f"two tools are called {twice[0]!r}", remedy="Rename one")
    nothing: dict[str, JSON] = {"type": "object", "properties": {}}
    found = [definition.function for definition in definitions]
    return tuple(
        Tool(one.name, one.description, nothing if one.parameters is None else one.parameters) for one in found
    )


def use_of(definitions: Sequence[ToolDefinition], choice: ToolChoice, *, parallel: bool) -> ToolUse:
    """How they may be used. Raises RequestError for a choice that there is not."""
    names = [definition.function.name for definition in definitions]
    strict = any(definition.function.strict for definition in definitions)
    if not isinstance(choice, ChosenTool):
        return ToolUse(choice=choice, several=parallel, strict=strict)
    only = choice.function.name
    if only not in names:
        raise RequestError(
            f"tool_choice names {only!r}, which is none of the tools", remedy=f"Tools: {', '.join(names) or 'none'}"
        )
    return ToolUse(choice="required", only=only)


def options_of(given: Mapping[str, Any], effort: str | None, template: str) -> dict[str, JSON]:
    """Variables for the chat template. Raises RequestError where it knows nothing of effort."""
    options: dict[str, JSON] = dict(given)
    if effort is None:
        return options
    known = [name for name in ("enable_thinking", "reasoning_effort") if name in template]
    if not known:
        raise RequestError(
            "reasoning_effort is given, and the model's chat template has no such setting", remedy="Leave it out"
        )
    if "enable_thinking" in known:
        options.setdefault("enable_thinking", effort != "none")
    if "reasoning_effort" in known:
        options.setdefault("reasoning_effort", effort)
    return options
