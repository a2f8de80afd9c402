"""What each syntax takes and refuses, special tokens, padded vocabularies, and bounds on what one request may cost."""

import json
import random
import re
from typing import Final

import pytest
from structured_rig import CALL, END, VOCAB, ByteTokenizer, allowed, factory, start, takes

from tokloom.sdk import GrammarSpec, RequestError

GIVEN: Final = factory()
TOOL: Final = {
    "type": "object",
    "properties": {"name": {"const": "add"}, "arguments": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    "required": ["name", "arguments"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("syntax", "text", "good", "bad"),
    [
        ("regex", "a+b?", ["a", "aab"], ["", "b", "abb", "xa"]),
        ("regex", r"\d{2}-[^x]", ["12-y", "00-é"], ["1-y", "12-x", "12-"]),
        ("json_object", "", ["{}", '{"a":[1,{"b":null}]}'], ["[]", "1", '{"a": 1}', "{", '{"a":1}x']),
        ("json_schema", '{"type":"string"}', ['"a"', '"\\n"', '"é"'], ["a", '"', '"\n"']),
        ("json_schema", "true", ["1", "[]"], ["x"]),
        ("lark", 'start: "a" (b | "c")+\nb: /[0-9]{2}/', ["a12", "accc", "a12c34"], ["a", "a1", "b"]),
    ],
)
def test_a_syntax_takes_its_texts_and_no_others(syntax: str, text: str, good: list[str], bad: list[str]) -> None:
    grammar = start(GIVEN, syntax, text)
    assert [one for one in good if not takes(grammar, one)] == []
    assert [one for one in bad if takes(grammar, one)] == []


@pytest.mark.parametrize("seed", range(20))
def test_a_choice_takes_exactly_its_texts(seed: int) -> None:
    chance = random.Random(seed)
    letters = "ab\\.+*?()|[]{}^$#&~/- \n\t\"'é日<>=!:,%@`_"
    texts = ["".join(chance.choices(letters, k=chance.randrange(1, 5))) for _ in range(40)]
    choices = texts[:20]
    grammar = start(GIVEN, "choice", json.dumps(choices))
    assert [text for text in texts if takes(grammar, text) != (text in choices)] == [], f"seed {seed}"


@pytest.mark.parametrize("seed", range(20))
def test_a_regular_expression_is_pythons(seed: int) -> None:
    chance = random.Random(seed)

    def made(depth: int) -> str:
        if not depth:
            return chance.choice(["a", "b", "c", "[ab]", "[^a]", ".", "ab"])
        left, right = made(depth - 1), made(depth - 1)
        return chance.choice([f"{left}{right}", f"(?:{left}|{right})", f"(?:{left}){chance.choice('?*+')}{right}"])

    pattern = made(3)
    grammar = start(GIVEN, "regex", pattern)
    for _ in range(60):
        text = "".join(chance.choices("abcx", k=chance.randrange(7)))
        assert takes(grammar, text) == (re.fullmatch(pattern, text) is not None), f"seed {seed}: {pattern} {text!r}"


def test_a_tool_call_is_a_lark_grammar_with_schemas_in_it() -> None:
    lark = (
        f'start: "<tool>" (call ",")* call "</tool>" | /[^<]+/\ncall: %json {json.dumps(TOOL, indent=2)}\n// %json no'
    )
    grammar = start(GIVEN, "lark", lark)
    one = '{"name":"add","arguments":{"a":1}}'
    assert takes(grammar, f"<tool>{one}</tool>")
    assert takes(grammar, f"<tool>{one},{one}</tool>")
    assert takes(grammar, "plain text")
    assert not takes(grammar, f"<tool>{one.replace('1', 'x')}</tool>")
    assert not takes(grammar, f"<tool>{one.replace(':1', ': 1')}</tool>")
    assert not takes(grammar, "<tool></tool>")


def test_quoted_signs_of_a_schema_are_none() -> None:
    grammar = start(GIVEN, "lark", 'start: "%json" /%json [a]/ %json {"const":1} // %json [')
    assert takes(grammar, "%json%json a1")


def test_special_tokens_stand_only_where_the_grammar_names_them() -> None:
    anything = start(GIVEN, "regex", "(.|\n)*")
    assert allowed(anything.mask()) & set(range(256, VOCAB)) == {END}
    named = start(GIVEN, "lark", 'start: "a" <|call|> "b"')
    assert allowed(named.mask()) == {ord("a")}
    assert named.advance(ord("a"))
    assert allowed(named.mask()) == {CALL}
    assert not named.advance(ord("<"))
    assert named.advance(CALL)
    assert allowed(named.mask()) == {ord("b")}


def test_a_refused_token_changes_nothing_and_the_end_can_be_undone() -> None:
    grammar = start(GIVEN, "regex", "ab|abc")
    assert [grammar.advance(ord(letter)) for letter in "axb"] == [True, False, True]
    assert allowed(grammar.mask()) == {ord("c"), END}
    assert not grammar.advance(END)
    assert not grammar.terminated
    assert grammar.advance(ord("c"))
    assert grammar.terminated
    grammar.rollback(2)
    assert allowed(grammar.mask()) == {ord("b")}
    grammar.rollback(1)
    assert allowed(grammar.mask()) == {ord("a")}


@pytest.mark.parametrize("seed", range(5))
def test_a_walk_with_rollbacks_says_what_a_fresh_grammar_says(seed: int) -> None:
    chance = random.Random(seed)
    schema = json.dumps({"type": "object", "additionalProperties": {"type": ["array", "integer"]}})
    grammar, taken = start(GIVEN, "json_schema", schema), list[int]()
    for _ in range(120):
        options = sorted(allowed(grammar.mask()) - {END})
        if options and chance.random() < 0.75:
            taken.append(chance.choice(options))
            assert grammar.advance(taken[-1])
        else:
            back = chance.randrange(len(taken) + 1)
            grammar.rollback(back)
            del taken[len(taken) - back :]
        fresh = start(GIVEN, "json_schema", schema)
        assert all(fresh.advance(token) for token in taken)
        assert allowed(fresh.mask()) == allowed(grammar.mask()), f"seed {seed}"


def deep(levels: int) -> str:
    return '{"items":' * levels + "{}" + "}" * levels


#: specification, and what the error must say
REFUSED: Final[dict[str, tuple[str, str, str]]] = {
    "no JSON": ("json_schema", '{"type"', "the schema is not JSON"),
    "NaN": ("json_schema", '{"const":NaN}', "NaN is no JSON number"),
    "a number of 5000 digits": ("json_schema", '{"const":1' + "0" * 5000 + "}", "the schema is not JSON"),
    "a number nobody tells apart": ("json_schema", '{"const":9007199254740993}', r"number at \$.const is too large"),
    "an infinite bound": ("json_schema", '{"maximum":1e999}', "maximum is inf"),
    "a boolean bound": ("json_schema", '{"minimum":1,"exclusiveMinimum":true}', "exclusiveMinimum is True"),
    "a list": ("json_schema", "[]", "the schema is"),
    "false": ("json_schema", "false", "the schema is False"),
    "no schema below": ("json_schema", '{"items":[{}]}', r"at \$.items is no schema"),
    "names as a list": ("json_schema", '{"properties":[]}', r"at \$.properties maps no names"),
    "one as many": ("json_schema", '{"anyOf":{}}', r"at \$.anyOf is no list"),
    "depth": ("json_schema", deep(65), "nested too deeply"),
    "great depth": ("json_schema", deep(6000), "nested too deeply"),
    "width": ("json_schema", json.dumps({"properties": {str(i): {} for i in range(257)}}), "257 entries"),
    "size": ("json_schema", '{"title":"' + "x" * 70000 + '"}', "has 70012 bytes"),
    "an unknown type": ("json_schema", '{"type":"text"}', "Invalid type: text"),
    "a format": ("json_schema", '{"format":"iri"}', r"unsupported format 'iri' at \$"),
    "a large multiple": ("json_schema", '{"type":"integer","multipleOf":99991}', "multipleOf is 99991"),
    "nothing fits": ("json_schema", '{"type":"string","minLength":3,"maxLength":2}', "Unsatisfiable"),
    "empty recursion": ("json_schema", '{"$defs":{"n":{"$ref":"#/$defs/n"}},"$ref":"#/$defs/n"}', "no text fits"),
    "a missing definition": ("json_schema", '{"$ref":"#/$defs/n"}', "does not exist"),
    "another document": ("json_schema", '{"$ref":"http://a.b/c"}', "leaves the schema"),
    "overlapping alternatives": ("json_schema", '{"oneOf":[{"type":"integer"},{"type":"number"}]}', "oneOf"),
    "sixty patterns at once": (
        "json_schema",
        json.dumps({"allOf": [{"type": "string", "pattern": f".*a{i}.*b.*c{i}"} for i in range(60)]}),
        "60 patterns and formats may have to hold",
    ),
    "nine patterns through references": (
        "json_schema",
        json.dumps(
            {
                "$defs": {f"d{i}": {"pattern": f"a.*{i}", "$ref": f"#/$defs/d{i + 1}"} for i in range(8)}
                | {"d8": {"pattern": "b"}},
                "$ref": "#/$defs/d0",
            }
        ),
        "9 patterns and formats may have to hold",
    ),
    "nine patterns of one property": (
        "json_schema",
        json.dumps({"allOf": [{"properties": {"a": {"pattern": f"a.*{i}"}}} for i in range(9)]}),
        "9 patterns and formats may have to hold",
    ),
    "a pattern that looks around": ("json_schema", '{"type":"string","pattern":"(?=a)b"}', "look-around"),
    "a broken pattern": ("json_schema", '{"type":"string","pattern":"["}', "unclosed"),
    "a broken expression": ("regex", "(a", "the regex is not accepted"),
    "an expression that looks back": ("regex", r"(a)\1", "backreferences"),
    "an expression of nothing": ("regex", r"[^\s\S]", "no text fits"),
    "a broken grammar": ("lark", "start: (", "the lark is not accepted"),
    "an empty grammar": ("lark", "", "the lark is not accepted"),
    "an endless grammar": ("lark", "start: start", "no text fits"),
    "an unknown special token": ("lark", "start: <|nothing|>", "unknown special token"),
    "no schema in a grammar": ("lark", "start: %json {", "%json is not followed by JSON"),
    "no choices": ("choice", "[]", "no list of texts"),
    "odd choices": ("choice", '["a",1]', "no list of texts"),
    "an object with text": ("json_object", "{}", "takes no text"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused_with_the_reason(name: str) -> None:
    syntax, text, reason = REFUSED[name]
    with pytest.raises(RequestError, match=reason) as caught:
        start(factory(), syntax, text)
    assert caught.value.remedy
    assert len(str(caught.value)) < 600


def test_many_patterns_apart_are_taken() -> None:
    schema = {"properties": {f"p{i}": {"anyOf": [{"pattern": "a+"}, {"$ref": "#"}]} for i in range(100)}}
    start(GIVEN, "json_schema", json.dumps(schema))
    start(GIVEN, "json_schema", json.dumps({"allOf": [{"type": "string", "pattern": f"a{i}?"} for i in range(2)]}))


HARD: Final[dict[str, tuple[str, str]]] = {
    "counted twice": ("regex", "(a{1,1000}){1,1000}"),
    "an automaton of 2**25 states": ("regex", "(a|b)*a(a|b){25}"),
    "stars of stars": ("regex", "((a*)*)*b"),
    "many letters": ("regex", r"\p{L}{1,500}\w*"),
    "a long literal": ("regex", "ab" * 30_000),
    "many items": ("json_schema", '{"type":"array","items":{"type":"integer"},"maxItems":1000000}'),
    "many items each": (
        "json_schema",
        json.dumps({"items": {"items": {"maxItems": 999}, "maxItems": 999}, "maxItems": 999}),
    ),
    "many texts": ("json_schema", json.dumps({"enum": [f"value {i}" for i in range(4000)]})),
    "many properties": (
        "json_schema",
        json.dumps({"properties": {f"name{i}": {"type": "string"} for i in range(256)}}),
    ),
    "allOf of anyOf": (
        "json_schema",
        json.dumps(
            {
                "$defs": {
                    **{f"d{i}": {"allOf": [{"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2}]} for i in range(20)},
                    "d20": {"type": "integer"},
                },
                "$ref": "#/$defs/d0",
            }
        ),
    ),
    "ambiguous": ("lark", 'start: start start | "a"'),
}


@pytest.mark.parametrize("name", HARD)
def test_a_hard_specification_costs_bounded_work(name: str) -> None:
    """Every step ends with a mask or says that it gave up; pools of states are bounded by the plugin's limits."""
    chance = random.Random(1)
    try:
        grammar = start(GIVEN, *HARD[name])
        for _ in range(60):
            options = sorted(allowed(grammar.mask()) - {END})
            if not options:
                break
            assert grammar.advance(chance.choice(options))
    except RequestError as error:
        told = error.message
    else:
        told = ""
    assert not told or "cannot be followed any further" in told or "schema too large" in told


def test_ids_that_the_tokenizer_does_not_know_are_never_allowed() -> None:
    class Short(ByteTokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            return b"" if token_id == ord("q") else super().token_bytes(token_id)

    anything = factory(Short()).start(GrammarSpec("regex", "(?s:.)*", "llguidance"), 1000, (END,))
    mask = anything.mask()
    assert mask.shape == (1000,)
    assert allowed(mask) >= set(range(128)) - {ord("q")}
    assert not allowed(mask) & {ord("q"), CALL, *range(CALL, 1000)}
    assert not anything.advance(999)
    assert ord("a") in allowed(anything.mask())


def test_a_model_without_an_end_and_one_with_two() -> None:
    none = factory().start(GrammarSpec("regex", "ab?", "llguidance"), VOCAB, ())
    assert none.advance(ord("a"))
    assert allowed(none.mask()) == {ord("b")}
    assert none.advance(ord("b"))
    assert none.terminated
    two = factory().start(GrammarSpec("regex", "ab?", "llguidance"), VOCAB, (END, CALL))
    assert two.advance(ord("a"))
    assert allowed(two.mask()) == {ord("b"), END, CALL}
