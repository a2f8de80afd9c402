"""What clients say about the form of an answer, as the engine's grammars."""

import json
from typing import Any

from tokloom.sdk import GrammarSpec, RequestError
from tokloom.serve.http.requests import ResponseFormat, ResponseTextFormat, StructuredOutputs


def grammar_of(
    formatted: ResponseFormat | ResponseTextFormat | None, structured: StructuredOutputs | None = None
) -> GrammarSpec | None:
    """At most one of the two says something. Raises RequestError where they contradict themselves."""
    if isinstance(formatted, ResponseFormat):
        content = None if formatted.json_schema is None else formatted.json_schema.content
    else:
        content = None if formatted is None else formatted.content
    kind = "text" if formatted is None else formatted.type
    if (kind == "json_schema") != (content is not None):
        raise RequestError("a schema goes with the type json_schema, and that type with a schema", remedy="Give both")
    own = None
    if content is not None:
        own = _schema(content)
    elif kind == "json_object":
        own = GrammarSpec("json_object")
    if structured is None:
        return own
    if own is not None:
        raise RequestError("response_format and structured_outputs exclude each other", remedy="Give one of them")
    return _structured(structured)


def _structured(wanted: StructuredOutputs) -> GrammarSpec:
    given: list[GrammarSpec] = []
    if wanted.json_schema is not None:
        given.append(_schema(wanted.json_schema))
    if wanted.regex is not None:
        given.append(GrammarSpec("regex", wanted.regex))
    if wanted.choice is not None:
        given.append(GrammarSpec("choice", json.dumps(wanted.choice)))
    if wanted.grammar is not None:
        given.append(GrammarSpec("lark", wanted.grammar))
    if len(given) != 1:
        raise RequestError(
            "structured_outputs needs exactly one of json, regex, choice and grammar", remedy="Give one of them"
        )
    return given[0]


def _schema(content: dict[str, Any]) -> GrammarSpec:
    return GrammarSpec("json_schema", json.dumps(content))
