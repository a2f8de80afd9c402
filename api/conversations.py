"""Checks of what goes through a chat template: messages, tools, options."""

import json

from tokloom.api.types import GenerateRequest
from tokloom.core.shown import shown
from tokloom.sdk import ChatMessage, RequestError, Tool, ToolCall


def check_text(text: object, name: str, subject: str) -> None:
    """Raises RequestError unless it is text that can be written as UTF-8."""
    if not isinstance(text, str):
        raise RequestError(f"{name} is {type(text).__name__}", subject=subject, remedy="Send text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{name} has {text[error.start]!r} at character {error.start}, which is half of a character",
            subject=subject,
            remedy="Send text that can be written as UTF-8",
        ) from None


def check_conversation(request: GenerateRequest, subject: str) -> None:
    """Raises RequestError naming the field that is wrong."""
    if request.messages is not None and not request.messages:
        raise RequestError("messages is empty", subject=subject, remedy="Send at least one message")
    for number, message in enumerate(request.messages or ()):
        _check_message(message, f"messages[{number}]", subject)
    names: set[str] = set()
    for number, tool in enumerate(request.tools):
        _check_tool(tool, f"tools[{number}]", subject)
        if tool.name in names:
            raise RequestError(f"two tools are called {shown(tool.name)}", subject=subject, remedy="Rename one")
        names.add(tool.name)
    _check_object(request.template_options, "template_options", subject)


def _check_message(message: ChatMessage, name: str, subject: str) -> None:
    for field in ("role", "content", "name", "tool_call_id", "reasoning"):
        check_text(getattr(message, field), f"{name}.{field}", subject)
    if not isinstance(message.tool_calls, tuple) or not all(isinstance(call, ToolCall) for call in message.tool_calls):
        raise RequestError(
            f"{name}.tool_calls is {shown(message.tool_calls)}", subject=subject, remedy="Give a tuple of ToolCall"
        )
    for number, call in enumerate(message.tool_calls):
        place = f"{name}.tool_calls[{number}]"
        check_text(call.name, f"{place}.name", subject)
        check_text(call.id, f"{place}.id", subject)
        _check_object(call.arguments, f"{place}.arguments", subject)


def _check_tool(tool: Tool, name: str, subject: str) -> None:
    if not isinstance(tool, Tool):
        raise RequestError(f"{name} is {shown(tool)}", subject=subject, remedy="Give a Tool")
    check_text(tool.name, f"{name}.name", subject)
    check_text(tool.description, f"{name}.description", subject)
    if not tool.name:
        raise RequestError(f"{name}.name is empty", subject=subject, remedy="Name the function")
    _check_object(tool.parameters, f"{name}.parameters", subject)


def _check_object(value: object, name: str, subject: str) -> None:
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(
            f"{name} cannot be written as JSON: {error}", subject=subject, remedy="Give dictionaries, lists and scalars"
        ) from None
    check_text(text, name, subject)
    if not text.startswith("{"):
        raise RequestError(f"{name} is {shown(value)}", subject=subject, remedy="Give a dictionary")
