"""JSON schemas of growing difficulty, by a seeded program. Every text that fits one is short."""

import random
from collections.abc import Callable
from typing import Any, Final

Schema = dict[str, Any]
WORDS: Final = [
    "name",
    "age",
    "city",
    "kind",
    "size",
    "count",
    "tags",
    "date",
    "note",
    "state",
    "code",
    "unit",
    "price",
    "owner",
    "title",
    "level",
]
FORMATS: Final = ("date", "time", "date-time", "uuid", "ipv4")
PATTERNS: Final = ("^[a-z]{2,8}$", "^[A-Z]{3}-\\d{3}$", "^(red|green|blue)$", "^\\+?\\d{3,9}$", "^v\\d\\.\\d{1,2}$")


def make_schema(seed: int, level: int) -> Schema:
    """`level` 0 to 9: flat objects of constants first; then text, numbers, arrays, nesting, alternatives, patterns,
    formats, references, other names than those listed, recursion.
    """
    maker = _Maker(random.Random(seed * 100 + level), level)
    schema = maker.object(min(3, 1 + level // 3))
    if maker.definitions:
        schema["$defs"] = maker.definitions
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"level {level}", **schema}


class _Maker:
    def __init__(self, chance: random.Random, level: int) -> None:
        self.chance = chance
        self.level = level
        self.definitions: dict[str, Schema] = {}

    def value(self, depth: int) -> Schema:
        leaves: list[Callable[[], Schema]] = [self.choice, self.constant]
        leaves += [self.text, self.number][: self.level]
        leaves += [self.pattern] if self.level >= 5 else []
        leaves += [self.format] if self.level >= 6 else []
        inner: list[Callable[[], Schema]] = []
        if depth:
            inner += [lambda: self.array(depth - 1)] if self.level >= 2 else []
            inner += [lambda: self.object(depth - 1)] if self.level >= 3 else []
            inner += [lambda: self.alternatives(depth - 1)] if self.level >= 4 else []
            inner += [lambda: self.reference(depth - 1)] if self.level >= 7 else []
            inner += [lambda: self.map(depth - 1)] if self.level >= 8 else []
            inner += [lambda: self.tree(depth - 1)] if self.level >= 9 else []
        return self.chance.choice(inner if inner and self.chance.random() < 0.5 else leaves)()

    def choice(self) -> Schema:
        return {"enum": self.chance.sample([*WORDS, 1, 2.5, None, True, "two words", "é", 'a "quote"'], 4)}

    def constant(self) -> Schema:
        return self.chance.choice([{"const": self.chance.choice(WORDS)}, {"type": "boolean"}, {"type": "null"}])

    def text(self) -> Schema:
        low = self.chance.randrange(3)
        return {"type": "string", "minLength": low, "maxLength": low + self.chance.randint(1, 10)}

    def number(self) -> Schema:
        low = self.chance.randint(-50, 50)
        schema: Schema = {"type": "integer", "minimum": low, "maximum": low + self.chance.randint(3, 500)}
        if self.chance.random() < 0.3:
            schema["multipleOf"] = self.chance.choice([2, 3])
        if self.chance.random() < 0.3:
            schema = {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + 30}
        return schema

    def pattern(self) -> Schema:
        return {"type": "string", "pattern": self.chance.choice(PATTERNS)}

    def format(self) -> Schema:
        name = self.chance.choice(FORMATS)
        # fractions of a second have no end
        return {"type": "string", "format": name, **({"maxLength": 28} if "time" in name else {})}

    def array(self, depth: int) -> Schema:
        if self.chance.random() < 0.3:
            parts = [self.value(depth) for _ in range(self.chance.randint(1, 3))]
            return {
                "type": "array",
                "prefixItems": parts,
                "items": False,
                "minItems": self.chance.randint(0, len(parts)),
            }
        low = self.chance.randrange(2)
        return {
            "type": "array",
            "items": self.value(depth),
            "minItems": low,
            "maxItems": low + self.chance.randint(1, 2),
        }

    def object(self, depth: int) -> Schema:
        names = self.chance.sample(WORDS, self.chance.randint(1, 4 if self.level < 5 else 3))
        required = [name for name in names if self.chance.random() < 0.7]
        return {
            "type": "object",
            "description": "an object",
            "properties": {name: self.value(depth) for name in names},
            "required": required,
            "additionalProperties": False,
        }

    def alternatives(self, depth: int) -> Schema:
        if self.chance.random() < 0.4:
            kinds = [{"type": "null"}, {"type": "boolean"}, self.text(), self.number()]
            return {"oneOf": self.chance.sample(kinds, 2)}
        if self.chance.random() < 0.3:
            return {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 99}]}
        return {"anyOf": [self.value(depth), self.value(depth), {"type": "null"}]}

    def reference(self, depth: int) -> Schema:
        name = f"part{len(self.definitions)}"
        self.definitions[name] = {}
        self.definitions[name] = self.value(depth)
        return {"$ref": f"#/$defs/{name}"}

    def map(self, depth: int) -> Schema:
        """Names that follow a pattern, as many as there are letters."""
        return {
            "type": "object",
            "patternProperties": {"^[a-c]$": self.value(depth)},
            "additionalProperties": False,
            "minProperties": 1,
            "maxProperties": 2,
        }

    def tree(self, depth: int) -> Schema:
        """A type that holds itself, to a depth that a chain of definitions bounds."""
        below: Schema = {"type": "null"}
        leaf = self.value(0)
        for _ in range(2):
            name = f"node{len(self.definitions)}"
            self.definitions[name] = {
                "type": "object",
                "properties": {"value": leaf, "children": {"type": "array", "items": below, "maxItems": 2}},
                "required": ["value", "children"],
                "additionalProperties": False,
            }
            below = {"anyOf": [{"$ref": f"#/$defs/{name}"}, {"type": "null"}]}
        return below
