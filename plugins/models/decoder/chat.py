"""ChatTemplate: a model's own Jinja template, rendered in a sandbox that bounds its time and memory."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from tokloom.plugins.models.decoder.template_sandbox.bounded import BoundedTemplate
from tokloom.plugins.models.decoder.template_sandbox.budget import TemplateFailure, TemplateLimit
from tokloom.sdk import JSON, ChatMessage, RequestError, Tool

#: variables that a template gets from us
_RESERVED: Final = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_REPLACE: Final = "Put a template of your own in its place: [model] chat_template = FILE in the profile"


class ChatTemplate:
    """Hugging Face's conventions: `messages`, `tools`, `add_generation_prompt`, the special tokens' texts,
    `raise_exception`, `strftime_now` (UTC).

    The sandbox gives no access to files, modules or the process, and bounds what a template may cost.
    """

    def __init__(self, text: str, source: str, tokens: Mapping[str, str]) -> None:
        self.text = text
        self._source = source
        self._tokens = dict(tokens)
        self._problem = ""
        try:
            self._template = BoundedTemplate(text, clock=partial(datetime.now, UTC))
        except TemplateLimit as error:
            self._problem = f"the chat template {error}"
        except TemplateFailure as error:
            self._problem = f"the chat template is invalid: {error}"

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool],
        options: Mapping[str, JSON],
        add_generation_prompt: bool,
    ) -> str:
        """The conversation as one text. Raises RequestError if the template refuses it, fails or costs too much, or if
        an option is a variable of ours.
        """
        if self._problem:
            raise RequestError(self._problem, subject=self._source, remedy=_REPLACE)
        variables = self._variables(messages, tools, options)
        try:
            return self._template.render({**variables, "add_generation_prompt": add_generation_prompt})
        except TemplateLimit as error:
            raise RequestError(
                f"the chat template {error}", subject=self._source, remedy=f"Send less. {_REPLACE}"
            ) from error
        except TemplateFailure as error:
            raise RequestError(
                f"the chat template refuses these messages: {error}",
                subject=self._source,
                remedy="Send messages with the roles the model was trained on",
            ) from error

    def _variables(
        self, messages: Sequence[ChatMessage], tools: Sequence[Tool], options: Mapping[str, JSON]
    ) -> dict[str, object]:
        taken = [name for name in options if name in _RESERVED or name in self._tokens]
        if taken:
            raise RequestError(f"{taken[0]} is no option of the chat template", remedy="Leave it out")
        return {
            **self._tokens,
            **options,
            "messages": [_message(message) for message in messages],
            "tools": [_tool(tool) for tool in tools] or None,
        }


def _message(message: ChatMessage) -> dict[str, Any]:
    """As Hugging Face's templates read it; keys that say nothing are left out, which is what they test for."""
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name:
        made["name"] = message.name
    if message.reasoning:
        made["reasoning_content"] = message.reasoning
    if message.tool_call_id:
        made["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        made["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return made


def _tool(tool: Tool) -> dict[str, Any]:
    described = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": described}
