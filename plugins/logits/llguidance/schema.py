"""JSON schemas as llguidance takes them: whatever it would ignore is refused here, with its place in the schema.

The dialect is draft 2020-12, whatever `$schema` says.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

from tokloom.plugins.logits.llguidance.overlaps import check_overlaps
from tokloom.sdk import RequestError

#: keywords that say nothing about what is valid
ANNOTATIONS: Final = frozenset(
    [
        "$schema",
        "$comment",
        "title",
        "description",
        "default",
        "examples",
        "example",
        "deprecated",
        "readOnly",
        "writeOnly",
        "discriminator",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "externalDocs",
        "xml",
    ]
)
#: those that take one schema, a list of schemas, a mapping of names to schemas
ONE: Final = frozenset({"items", "additionalProperties"})
MANY: Final = frozenset({"prefixItems", "anyOf", "oneOf", "allOf"})
NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions"})
#: those whose value holds no schema
PLAIN: Final = frozenset(
    [
        "$ref",
        "type",
        "const",
        "enum",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minItems",
        "maxItems",
        "required",
        "minProperties",
        "maxProperties",
    ]
)
FORMATS: Final = frozenset(
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"]
)
MAX_DEPTH: Final = 64
MAX_PROPERTIES: Final = 256
MAX_MULTIPLE: Final = 10_000
#: integers beyond are not told apart by a float64
MAX_EXACT: Final = 2**53


def read_schema(text: str) -> dict[str, Any]:
    """A schema as llguidance may have it, without annotations.

    Raises:
        RequestError: not JSON, or the first keyword that cannot be honoured, as `'not' at $.properties.x`.
    """
    return check_schema(read_json(text, "the schema"))


def read_json(text: str, what: str) -> Any:
    """Strict JSON. Raises RequestError."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise RequestError(f"{what} is nested too deeply", remedy=f"At most {MAX_DEPTH} levels are taken") from None
    except ValueError as error:
        raise RequestError(f"{what} is not JSON: {error}", remedy="Give one JSON value") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def check_schema(schema: Any) -> dict[str, Any]:
    """See `read_schema`; of JSON that is read already."""
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        _refuse(f"the schema is {_shown(schema)}", "Give an object")
    clean = _Walk().schema(schema, "$", 0)
    assert isinstance(clean, dict)
    check_overlaps(clean)
    return clean


class _Walk:
    """One pass over one schema."""

    def schema(self, schema: Any, place: str, depth: int) -> dict[str, Any] | bool:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            _refuse(f"{_shown(schema)} at {place} is no schema", "A schema is an object, true or false")
        if depth > MAX_DEPTH:
            _refuse(f"the schema is nested too deeply, at {place}", f"At most {MAX_DEPTH} levels are taken")
        clean: dict[str, Any] = {}
        for keyword, value in schema.items():
            if keyword in ANNOTATIONS or (keyword == "$id" and place == "$"):
                continue
            if keyword in ONE:
                clean[keyword] = self.schema(value, f"{place}.{keyword}", depth + 1)
            elif keyword in MANY:
                clean[keyword] = [self.schema(one, p, depth + 1) for p, one in _listed(value, f"{place}.{keyword}")]
            elif keyword in NAMED:
                clean[keyword] = {
                    n: self.schema(one, p, depth + 1) for n, p, one in _named(value, f"{place}.{keyword}")
                }
            elif keyword == "uniqueItems" and value is False:
                continue
            elif keyword in PLAIN:
                _check_plain(keyword, value, place)
                clean[keyword] = value
            else:
                _unsupported(keyword, place)
        return clean


def _listed(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, list):
        _refuse(f"{_shown(value)} at {place} is no list of schemas", "Give an array")
    return ((f"{place}[{index}]", one) for index, one in enumerate(value))


def _named(value: Any, place: str) -> Iterator[tuple[str, str, Any]]:
    if not isinstance(value, dict):
        _refuse(f"{_shown(value)} at {place} maps no names to schemas", "Give an object")
    if len(value) > MAX_PROPERTIES:
        _refuse(f"{len(value)} entries at {place}", f"At most {MAX_PROPERTIES} are taken")
    return ((name, f"{place}.{name}", one) for name, one in value.items())


def _check_plain(keyword: str, value: Any, place: str) -> None:
    if keyword == "$ref":
        if not isinstance(value, str) or not (value == "#" or value.startswith("#/")):
            _refuse(f"$ref {_shown(value)} at {place} leaves the schema", "Refer to # or #/$defs/NAME")
    elif keyword == "format" and value not in FORMATS:
        _refuse(f"unsupported format {_shown(value)} at {place}", f"Supported: {', '.join(sorted(FORMATS))}")
    elif keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_EXACT:
            _refuse(f"{keyword} is {_shown(value)} at {place}", "Give a number of at most 2**53")
        if keyword == "multipleOf" and not 1 / MAX_MULTIPLE <= value <= MAX_MULTIPLE:
            _refuse(f"multipleOf is {_shown(value)} at {place}", f"From {1 / MAX_MULTIPLE} to {MAX_MULTIPLE} is taken")
    elif keyword in ("const", "enum"):
        _check_numbers(value, f"{place}.{keyword}")


def _check_numbers(value: Any, place: str) -> None:
    """Of constants: those that are told apart."""
    if isinstance(value, dict):
        for key, one in value.items():
            _check_numbers(one, f"{place}.{key}")
    elif isinstance(value, list):
        for index, one in enumerate(value):
            _check_numbers(one, f"{place}[{index}]")
    elif isinstance(value, int | float) and not abs(value) <= MAX_EXACT:
        _refuse(f"the number at {place} is too large", "Give one of at most 2**53, or a text")


def _unsupported(keyword: str, place: str) -> NoReturn:
    hints = {
        "additionalItems": "Use prefixItems and items",
        "nullable": 'Use "type": ["...", "null"]',
        "id": "Remove it",
        "$id": "Refer to # or #/$defs/NAME",
        "$anchor": "Refer to # or #/$defs/NAME",
    }
    _refuse(f"unsupported keyword {_shown(keyword)} at {place}", hints.get(keyword, "Remove it, or say it otherwise"))


def _refuse(message: str, remedy: str) -> NoReturn:
    raise RequestError(message, remedy=remedy)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_LARK: Final = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\\n])+/|%json\b')


def check_lark_schemas(lark: str, options: dict[str, Any]) -> str:
    """A Lark grammar whose `%json` parts are checked as `read_schema` does it and carry llguidance's `options`."""
    parts: list[str] = []
    done = 0
    while (found := _LARK.search(lark, done)) is not None:
        parts.append(lark[done : found.end()])
        done = found.end()
        if found.group() == "%json":
            start = len(lark) - len(lark[done:].lstrip())
            try:
                schema, done = json.JSONDecoder(parse_constant=_no_constant).raw_decode(lark, start)
            except (ValueError, RecursionError) as error:
                raise RequestError(f"%json is not followed by JSON: {error}", remedy="Give one JSON value") from None
            parts.append(" " + json.dumps({**check_schema(schema), "x-guidance": options}))
    return "".join([*parts, lark[done:]])
