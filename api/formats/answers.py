"""AnswerFormat: what a model's answers look like, and requests that hold them to it."""

import json
from collections.abc import Callable, Mapping
from typing import Final, Literal

import attrs
from attrs import frozen

from tokloom.api.formats.calls import ToolFormat
from tokloom.api.formats.known import AUTO, NONE, TOOL_FORMATS, reasoning_format, tool_format
from tokloom.api.formats.lark import Lark, escaped, special_id
from tokloom.api.formats.parser import AnswerParser
from tokloom.api.types import GenerateRequest
from tokloom.sdk import JSON, ChatMessage, GrammarSpec, RequestError, Tokenizer, TokloomError, Tool

#: ids at the end of a prompt that are looked at for an open mark of reasoning
_TAIL: Final = 16


@frozen(kw_only=True)
class ToolUse:
    """How a request's tools may be used.

    Attributes:
        choice: `auto`: the model decides; `none`: it makes no calls; `required`: it makes at least one.
        only: with `required`: the name of the one tool to call, once.
        several: more than one call may come.
        strict: arguments must fit their schemas, also where the model decides. They always do where calls are required.
    """

    choice: Literal["auto", "none", "required"] = "auto"
    only: str = ""
    several: bool = True
    strict: bool = False


class AnswerFormat:
    """Of one model. Thread-safe.

    Args:
        tools, reasoning: names of formats; `auto` looks in the chat template, `none` looks for nothing.
    """

    def __init__(self, tokenizer: Tokenizer, *, tools: str = AUTO, reasoning: str = AUTO) -> None:
        self._tokenizer = tokenizer
        self._template = tokenizer.chat_template
        self._tools = tool_format(tools, self._template)
        self._reasoning = reasoning_format(reasoning, self._template)
        self._inside: dict[str, bool] = {}

    @property
    def end_of_reasoning(self) -> bytes:
        """What ends the reasoning, as the tokens spell it; empty: answers have none."""
        return b"" if self._reasoning is None else self._reasoning.end.encode()

    def prepare(self, request: GenerateRequest, use: ToolUse) -> tuple[GenerateRequest, Callable[[], AnswerParser]]:
        """The request as the engine takes it, and what makes a parser for each of its sequences.

        Renders the template once for each new set of options. Raises RequestError where the model's format of calls is
        not known, or its template shows it no tools.
        """
        tools = {} if use.choice == NONE else {tool.name: tool for tool in request.tools}
        format = self._format_of(tools)
        inside = self._reasoning is not None and self._begins_inside(request)
        grammar = self._grammar(request, use, format, tools, inside)
        marks = format.markers() if format is not None else ()
        if self._reasoning is not None:
            marks = (*marks, self._reasoning.begin, self._reasoning.end)
        shown = {found for mark in marks if (found := special_id(self._tokenizer, mark)) is not None}
        sampling = attrs.evolve(request.sampling, grammar=grammar)
        prepared = attrs.evolve(request, sampling=sampling, shown_special=request.shown_special | shown)
        return prepared, lambda: AnswerParser(self._reasoning, inside=inside, format=format, tools=tools)

    def _format_of(self, tools: Mapping[str, Tool]) -> ToolFormat | None:
        if not tools:
            return None
        if self._tools is None:
            raise RequestError(
                "tools are given, and no known format of tool calls fits the model's chat template",
                remedy=f"Name one of {', '.join(TOOL_FORMATS)} (tool_format), or use a model whose template has one",
            )
        if "tools" not in self._template:
            raise RequestError(
                "tools are given, and the model's chat template would not show them to it",
                remedy="Give it a template that does: [model] chat_template = FILE in the profile",
            )
        return self._tools

    def _begins_inside(self, request: GenerateRequest) -> bool:
        """Whether the prompt of such a request opens the reasoning itself, and leaves it open."""
        assert self._reasoning is not None
        options = {**request.template_options}
        key = json.dumps([options, bool(request.tools)], sort_keys=True)
        if key not in self._inside:
            try:
                ids = self._tokenizer.chat(
                    [ChatMessage("user", "x")], tools=request.tools, options=options, add_generation_prompt=True
                )
                tail = self._tokenizer.decode(ids[-_TAIL:], skip_special=False)
            except TokloomError:  # the engine will say it of the request itself
                return False
            if len(self._inside) >= 64:
                self._inside.clear()
            self._inside[key] = tail.rstrip().endswith(self._reasoning.begin)
        return self._inside[key]

    # -- grammar -------------------------------------------------------------------------------------------------------

    def _grammar(
        self,
        request: GenerateRequest,
        use: ToolUse,
        format: ToolFormat | None,
        tools: Mapping[str, Tool],
        inside: bool,
    ) -> GrammarSpec | None:
        """What the whole text is held to, reasoning and markers included; None: nothing."""
        wanted = request.sampling.grammar
        if format is None and use.choice == "required":
            raise RequestError("a tool call is required and no tools are given", remedy="Give tools")
        if format is None:
            return wanted if wanted is None or self._reasoning is None else self._beside_reasoning(wanted, inside)
        free = use.choice == AUTO
        if free and use.several and not use.strict and wanted is None:
            return None
        lark = Lark(self._tokenizer, compact=wanted is not None and format.opening == "{")
        if free:
            answer = self._free(lark, wanted, use, format, tools)
        else:
            answer = self._required(lark, wanted, use, format, tools)
        lark.rule(self._thought(lark, inside) + f" ({answer})", name="start")
        return GrammarSpec("lark", str(lark))

    def _required(
        self,
        lark: Lark,
        wanted: GrammarSpec | None,
        use: ToolUse,
        format: ToolFormat,
        tools: Mapping[str, Tool],
    ) -> str:
        if wanted is not None:
            raise RequestError(
                "a required tool call and a form of the answer exclude each other", remedy="Give one of them"
            )
        if use.only and use.only not in tools:
            raise RequestError(f"no tool is called {use.only!r}", remedy=f"Known: {', '.join(tools)}")
        called = [tools[use.only]] if use.only else list(tools.values())
        return _marked(lark, format, format.rule(lark, called, several=use.several and not use.only))

    def _free(
        self,
        lark: Lark,
        wanted: GrammarSpec | None,
        use: ToolUse,
        format: ToolFormat,
        tools: Mapping[str, Tool],
    ) -> str:
        """Any text, or the form that is asked for; or calls, behind text where a marker says where they begin."""
        calls = format.rule(lark, list(tools.values()), several=use.several)
        if wanted is not None:
            return f"{_marked(lark, format, calls)} | {_nested(lark, wanted)}"
        if format.opening:
            return f"{calls} | {lark.terminal(rf'/[^{escaped(format.opening)}](?s:.*)/')}"
        return f"{lark.until(format.marker)} {calls} | {lark.without(format.marker)}"

    def _beside_reasoning(self, wanted: GrammarSpec, inside: bool) -> GrammarSpec:
        lark = Lark(self._tokenizer)
        lark.rule(f"{self._thought(lark, inside)} ({_nested(lark, wanted)})", name="start")
        return GrammarSpec("lark", str(lark), wanted.offer)

    def _thought(self, lark: Lark, inside: bool) -> str:
        """Stands for the reasoning in front; the model may leave it out unless it has begun."""
        if self._reasoning is None:
            return ""
        end = f"{lark.until(self._reasoning.end)} /[ \\n]{{0,4}}/"
        return end if inside else f"({lark.text(self._reasoning.begin)} {end})?"


def _marked(lark: Lark, format: ToolFormat, calls: str) -> str:
    return calls if format.opening else f"{lark.text(format.marker)} {calls}"


def _nested(lark: Lark, wanted: GrammarSpec) -> str:
    """Stands for another specification within a grammar."""
    if wanted.syntax == "json_schema":
        found: dict[str, JSON] = json.loads(wanted.text)
        return lark.rule(lark.schema(found))
    if wanted.syntax == "json_object":
        return lark.rule(lark.schema({"type": "object"}))
    if wanted.syntax == "choice":
        return lark.rule(" | ".join(json.dumps(choice) for choice in json.loads(wanted.text)))
    if wanted.syntax == "regex":
        return lark.rule(f"/{wanted.text.replace('/', chr(92) + '/')}/")
    raise RequestError(
        f"a grammar in {wanted.syntax} cannot stand beside tools or reasoning",
        remedy="Use a JSON schema, a regular expression or a choice, or switch the reasoning off",
    )
