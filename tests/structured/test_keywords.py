"""Every keyword of JSON Schema: honoured as an independent validator says, an annotation, or refused with its place."""

import json
import random
from typing import Any, Final

import pytest
from jsonschema import Draft202012Validator
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
from structured_rig import factory, start, takes

from tokloom.plugins.logits.llguidance import schema as rules
from tokloom.sdk import RequestError

#: candidates that every schema of the table is tried with
POOL: Final[list[Any]] = [
    *(None, True, False, 0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, -1, -3, 30, 100, 0.5, 1.5, 2.5, 0.25, -0.5),
    *("", "a", "b", "ab", "aa", "aaa", "abc", "abcd", "aaaaa", "é", "日本", "A1", "x y", '"', "\\", "\n", "1", "null"),
    *([], [1], [1, 2], [1, 2, 3], [1, 1], ["a"], ["a", 1], [1, "a"], [1, "a", 2], [1, "a", "b"]),
    *([None], [[]], [[1], [2]]),
    *({}, {"a": 1}, {"a": "x"}, {"b": 1}, {"a": 1, "b": 2}, {"a": 1, "b": "x"}, {"a": 1, "b": 2, "c": 3}, {"c": 3}),
    *({"b": "x"}, {"a": None}, {"ab": 1}, {"x": 1}, {"x": "y"}, {"a": {"a": 1}}, {"a": {"a": {}}}, {"k": "u", "v": 1}),
    *({"k": "w", "v": "x"}, {"k": "u", "v": "x"}, {"x1": 1, "x2": 2}, {"x1": 1, "y": "z"}, {"a": [1, 2]}),
    *({"v": 1, "n": None}, {"v": 1, "n": {"v": 2, "n": None}}, {"v": 1, "n": {"v": 2}}, {"a": 5, "b": 2}),
]  # fmt: skip
INT: Final = {"type": "integer"}
A: Final = {"a": INT}
#: schemas by the keyword they are about
HONOURED: Final[dict[str, list[dict[str, Any]]]] = {
    "type": [
        *({"type": name} for name in ("null", "boolean", "integer", "number", "string", "array", "object")),
        {"type": ["integer", "null"]},
    ],
    "const": [{"const": {"a": 1}}, {"const": "ab"}, {"const": None}, {"const": [1, 2]}, {"const": 0.5}],
    "enum": [{"enum": [1, "a", None, {"a": 1}]}, {"enum": ['"', "\\", "\n", "é"]}, {"enum": [1, 5], "minimum": 3}],
    "minLength": [{"type": "string", "minLength": 2}],
    "maxLength": [{"type": "string", "maxLength": 2}, {"maxLength": 1}],
    "pattern": [
        {"type": "string", "pattern": "^a+$"},
        {"type": "string", "pattern": "b"},
        {"type": "string", "pattern": "^[A-Z]\\d$"},
        {"type": "string", "pattern": "^a+$", "maxLength": 3, "minLength": 2},
    ],
    "minimum": [{"type": "integer", "minimum": 3}, {"type": "number", "minimum": 0.5}, {"minimum": 3}],
    "maximum": [{"type": "integer", "maximum": 3}, {"type": "number", "maximum": -0.5, "minimum": -2}],
    "exclusiveMinimum": [{"type": "integer", "exclusiveMinimum": 3}, {"type": "number", "exclusiveMinimum": 0.5}],
    "exclusiveMaximum": [
        {"type": "integer", "exclusiveMaximum": 3},
        {"type": "number", "exclusiveMaximum": 1.5, "minimum": 0},
    ],
    "multipleOf": [
        {"type": "integer", "multipleOf": 3},
        {"type": "number", "multipleOf": 0.5},
        {"type": "integer", "multipleOf": 3, "minimum": 4, "maximum": 30},
    ],
    "items": [{"type": "array", "items": INT}, {"type": "array", "items": {"type": "array", "items": INT}}],
    "prefixItems": [
        {"type": "array", "prefixItems": [INT, {"type": "string"}]},
        {"type": "array", "prefixItems": [INT, {"type": "string"}], "items": False},
        {"type": "array", "prefixItems": [INT, {"type": "string"}], "items": {"type": "string"}, "minItems": 2},
    ],
    "minItems": [{"type": "array", "minItems": 2}, {"type": "array", "items": INT, "minItems": 1, "maxItems": 2}],
    "maxItems": [{"type": "array", "maxItems": 1}, {"maxItems": 2}],
    "uniqueItems": [{"type": "array", "items": INT, "uniqueItems": False}],
    "properties": [
        {"type": "object", "properties": {"a": INT, "b": INT}},
        {"properties": {"a": {"type": "string"}}},
        {"type": "object", "properties": {"a": False}},
    ],
    "required": [
        {"type": "object", "properties": A, "required": ["a"]},
        {"type": "object", "properties": A, "required": ["b"]},
        {"type": "object", "required": ["a", "b"]},
    ],
    "additionalProperties": [
        {"type": "object", "properties": A, "additionalProperties": False},
        {"type": "object", "properties": A, "additionalProperties": {"type": "string"}},
        {"type": "object", "additionalProperties": INT},
    ],
    "patternProperties": [
        {"type": "object", "patternProperties": {"^x": INT}},
        {"type": "object", "patternProperties": {"^x": INT}, "additionalProperties": False},
        {
            "type": "object",
            "properties": A,
            "patternProperties": {"^x": INT},
            "additionalProperties": {"type": "string"},
        },
    ],
    "minProperties": [
        {"type": "object", "minProperties": 2},
        {"type": "object", "properties": A, "required": ["a"], "minProperties": 2},
    ],
    "maxProperties": [{"type": "object", "maxProperties": 1}],
    "anyOf": [{"anyOf": [INT, {"type": "string", "maxLength": 1}]}, {"type": "integer", "anyOf": [{"minimum": 5}]}],
    "oneOf": [
        {"oneOf": [INT, {"type": "null"}]},
        {
            "oneOf": [
                {"type": "object", "properties": {"k": {"const": "u"}, "v": INT}, "required": ["k"]},
                {"type": "object", "properties": {"k": {"const": "w"}, "v": {"type": "string"}}, "required": ["k"]},
            ]
        },
    ],
    "allOf": [
        {"allOf": [INT, {"minimum": 3}, {"maximum": 10}]},
        {
            "allOf": [
                {"type": "object", "properties": A, "required": ["a"]},
                {"properties": {"b": INT}, "required": ["b"]},
            ]
        },
        {"allOf": [{"anyOf": [INT, {"type": "string"}]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}]},
    ],
    "$ref": [
        {"$defs": {"n": INT}, "$ref": "#/$defs/n"},
        {"$defs": {"n": INT}, "$ref": "#/$defs/n", "minimum": 3},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": False},
        {
            "$defs": {
                "n": {
                    "type": ["object", "null"],
                    "properties": {"v": INT, "n": {"$ref": "#/$defs/n"}},
                    "required": ["v", "n"],
                    "additionalProperties": False,
                }
            },
            "$ref": "#/$defs/n",
        },
    ],
    "$defs": [{"$defs": {"a/b": INT}, "$ref": "#/$defs/a~1b"}],
    "definitions": [{"definitions": {"n": INT}, "$ref": "#/definitions/n"}],
}
#: what is taken and what is not, by format
FORMATTED: Final = {
    "date": (["2024-02-29", "1999-12-31"], ["2024-13-01", "2024-1-1", "today", "2024-02-30"]),
    "time": (["12:30:00Z", "23:59:59.5+01:00"], ["25:00:00Z", "12:30", ""]),
    "date-time": (["2024-02-29T12:30:00Z", "1999-12-31T00:00:00.25-08:00"], ["2024-02-29", "2024-02-29T25:00:00Z"]),
    "duration": (["P1Y2M", "PT5M", "P3W"], ["1Y", "P", "PT"]),
    "email": (["a@b.org", "first.last@mail.example.com"], ["a", "@b.org", "a b@c.org"]),
    "hostname": (["example.org", "a-b.c"], ["-a.org", "a b", "a..b"]),
    "ipv4": (["127.0.0.1", "255.255.255.255"], ["256.0.0.1", "1.2.3", "::1"]),
    "ipv6": (["::1", "2001:db8::8:800:200c:417a"], ["127.0.0.1", ":::", "12345::"]),
    "uri": (["https://example.org/a?b=c", "mailto:a@b.org"], ["example", "http://a b"]),
    "uuid": (["123e4567-e89b-12d3-a456-426614174000"], ["123e4567", "123e4567-e89b-12d3-a456-42661417400z"]),
}
#: keywords of the vocabulary (and some that people write) that are refused
REFUSED: Final[dict[str, Any]] = {
    **{"not": {}, "if": {}, "then": {}, "else": {}, "contains": INT, "minContains": 1, "maxContains": 1},
    **{"uniqueItems": True, "propertyNames": {}, "dependentRequired": {}, "dependentSchemas": {}, "dependencies": {}},
    **{"unevaluatedProperties": False, "unevaluatedItems": False, "additionalItems": False, "$dynamicRef": "#"},
    **{"$dynamicAnchor": "a", "$recursiveRef": "#", "$recursiveAnchor": True, "$anchor": "a", "$vocabulary": {}},
    **{"nullable": True, "id": "x", "$id": "x", "x-guidance": {"lenient": True}, "x-order": 1, "minlength": 3},
}
GIVEN: Final = factory()


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@pytest.mark.parametrize("keyword", HONOURED)
def test_a_keyword_means_what_an_independent_validator_says(keyword: str) -> None:
    for schema in HONOURED[keyword]:
        Draft202012Validator.check_schema(schema)
        oracle = Draft202012Validator(schema)
        grammar = start(GIVEN, "json_schema", json.dumps(schema))
        valid = [oracle.is_valid(value) for value in POOL]
        assert True in valid, schema
        assert False in valid, schema
        for value, right in zip(POOL, valid, strict=True):
            assert takes(grammar, compact(value)) == right, (
                f"{schema}: {compact(value)} is {'' if right else 'in'}valid"
            )


def random_schema(chance: random.Random, depth: int) -> dict[str, Any]:
    """Keywords of the table put together at random, whether or not that makes sense."""
    found: dict[str, Any] = {}
    for _ in range(chance.choice([1, 1, 2, 3])):
        keyword = chance.choice([name for name in HONOURED if "$" not in name and name != "definitions"])
        found.update(chance.choice(HONOURED[keyword]))
    if depth:
        one = random_schema(chance, depth - 1)
        ways = ("items", "additionalProperties", "anyOf", "allOf", "oneOf", "properties", "prefixItems")
        keyword = chance.choice(ways)
        if keyword in ("anyOf", "allOf", "oneOf", "prefixItems"):
            found[keyword] = [one, random_schema(chance, depth - 1)]
        else:
            found[keyword] = {"a": one, "b": random_schema(chance, depth - 1)} if keyword == "properties" else one
    return found


@pytest.mark.parametrize("seed", range(8))
def test_keywords_mean_the_same_put_together(seed: int) -> None:
    chance = random.Random(seed)
    agreed = 0
    for _ in range(60):
        schema = random_schema(chance, chance.choice([0, 1, 2]))
        oracle = Draft202012Validator(schema)
        try:
            grammar = start(GIVEN, "json_schema", json.dumps(schema))
        except RequestError:
            continue  # nothing fits, or it cannot be told apart: refused is never wrong
        wrong = [compact(value) for value in POOL if takes(grammar, compact(value)) != oracle.is_valid(value)]
        assert wrong == [], f"seed {seed}: {json.dumps(schema)}"
        agreed += 1
    assert agreed > 15


def test_an_integer_is_written_without_a_fraction() -> None:
    grammar = start(GIVEN, "json_schema", json.dumps(INT))
    assert takes(grammar, "3")
    assert not takes(grammar, "3.0")


@pytest.mark.parametrize("name", FORMATTED)
def test_a_format_takes_its_texts_and_no_others(name: str) -> None:
    grammar = start(GIVEN, "json_schema", json.dumps({"type": "string", "format": name}))
    good, bad = FORMATTED[name]
    assert [text for text in good if not takes(grammar, compact(text))] == []
    assert [text for text in bad if takes(grammar, compact(text))] == []


@pytest.mark.parametrize("keyword", sorted(rules.ANNOTATIONS))
def test_an_annotation_changes_nothing(keyword: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer", keyword: "x"}}, keyword: "x"}
    grammar = start(GIVEN, "json_schema", json.dumps(schema))
    assert takes(grammar, '{"a":1}')
    assert not takes(grammar, '{"a":"x"}')


@pytest.mark.parametrize("keyword", REFUSED)
@pytest.mark.parametrize(
    ("around", "place"),
    [
        (lambda s: {"type": "object", "properties": {"x": s}}, "$.properties.x"),
        (lambda s: {"anyOf": [{"type": "array", "items": s}]}, "$.anyOf[0].items"),
        (lambda s: {"$defs": {"d": {"prefixItems": [{}, s]}}}, "$.$defs.d.prefixItems[1]"),
        (lambda s: {"patternProperties": {"^a": s}}, "$.patternProperties.^a"),
        (lambda s: {"oneOf": [s]}, "$.oneOf[0]"),
        (lambda s: {"allOf": [{"additionalProperties": s}]}, "$.allOf[0].additionalProperties"),
        (lambda s: {"definitions": {"d": s}}, "$.definitions.d"),
    ],
)
def test_what_is_not_honoured_is_refused_with_its_place(keyword: str, around: Any, place: str) -> None:
    text = json.dumps(around({keyword: REFUSED[keyword]}))
    with pytest.raises(RequestError) as caught:
        start(GIVEN, "json_schema", text)
    assert caught.value.message == f"unsupported keyword {keyword!r} at {place}"
    with pytest.raises(RequestError, match="unsupported keyword"):
        start(GIVEN, "lark", f'start: "a" %json {text} "b"')


def test_every_keyword_is_in_one_of_the_tables() -> None:
    known = rules.ONE | rules.MANY | rules.NAMED | rules.PLAIN
    assert known - {"format"} <= HONOURED.keys()
    assert set(FORMATTED) == rules.FORMATS
    assert not known & REFUSED.keys() - {"uniqueItems"}
    assert not known & rules.ANNOTATIONS
    home = "https://json-schema.org/draft/2020-12/"
    parts = [part["$ref"] for part in REGISTRY.contents(f"{home}schema")["allOf"]]
    vocabulary = {name for part in parts for name in REGISTRY.contents(home + part)["properties"]}
    assert len(vocabulary) > 50
    assert vocabulary <= known | REFUSED.keys() | rules.ANNOTATIONS | {"$id"}
