"""ChatTemplate: a model's own Jinja template, rendered in a sandbox with a bounded result."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokloom.sdk import JSON, ChatMessage, RequestError, Tool

#: characters a conversation may render to
MAX_CHARACTERS = 4_000_000
#: variables that a template gets from us
_RESERVED: Final = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class ChatTemplate:
    """Hugging Face's conventions: `messages`, `tools`, `add_generation_prompt`, the special tokens' texts,
    `raise_exception`, `strftime_now` (UTC).

    The sandbox gives no access to files, modules or attributes that begin with an underscore, and bounds `range`.
    """

    def __init__(self, text: str, source: str, tokens: Mapping[str, str]) -> None:
        self.text = text
        self._source = source
        self._tokens = dict(tokens)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _now
        self._problem = ""
        try:
            self._template = environment.from_string(text)
        except (TemplateError, RecursionError) as error:
            self._problem = str(error) or type(error).__name__

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool],
        options: Mapping[str, JSON],
        add_generation_prompt: bool,
    ) -> str:
        """The conversation as one text. Raises RequestError if the template refuses it or fails, or if an option is a
        variable of ours.
        """
        if self._problem:
            raise RequestError(f"the chat template is invalid: {self._problem}", subject=self._source)
        variables = self._variables(messages, tools, options)
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(variables, add_generation_prompt=add_generation_prompt):
                size += len(piece)
                if size > MAX_CHARACTERS:
                    raise RequestError(
                        f"the chat template made more than {MAX_CHARACTERS} characters", subject=self._source
                    )
                pieces.append(piece)
        except RequestError:
            raise
        except Exception as error:  # a template may raise anything its expressions raise
            raise RequestError(
                f"the chat template refuses these messages: {error}",
                subject=self._source,
                remedy="Send messages with the roles the model was trained on",
            ) from error
        return "".join(pieces)

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


def _to_json(value: object, indent: int | None = None, **how: Any) -> str:
    """`tojson` as Hugging Face has it: not escaped for HTML, characters beyond ASCII as they are."""
    return json.dumps(value, **{"ensure_ascii": False, **how}, indent=indent)


def _now(format: str) -> str:
    return datetime.now(UTC).strftime(format)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
