"""Lark: a grammar in llguidance's dialect, put together rule by rule."""

import json
import re
from collections.abc import Mapping
from typing import Final

from tokloom.sdk import JSON, RequestError, Tokenizer

_META: Final = re.compile(r"[\\.+*?()|\[\]{}^$#&~/-]")


class Lark:
    """Rules by name. Texts become literals, and special tokens of the tokenizer references to their id.

    Args:
        compact: JSON is written without blanks throughout, so that objects which begin alike are told apart as late as
            they differ.
    """

    def __init__(self, tokenizer: Tokenizer, *, compact: bool = False) -> None:
        self._tokenizer = tokenizer
        self.compact = compact
        self._rules: list[str] = []
        self._count = 0

    def rule(self, body: str, *, attributes: str = "", name: str = "") -> str:
        """Adds a rule; its name."""
        name = name or self._fresh("r")
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def terminal(self, body: str) -> str:
        """Adds a terminal; its name."""
        name = self._fresh("T")
        self._rules.append(f"{name}: {body}")
        return name

    def _fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def special(self, text: str) -> int | None:
        """The id of the special token with this text."""
        return special_id(self._tokenizer, text)

    def text(self, text: str) -> str:
        """Stands for a text in a rule; empty for none."""
        found = self.special(text)
        if found is not None:
            return f"<[{found}]>"
        return json.dumps(text) if text else ""

    def schema(self, schema: Mapping[str, JSON]) -> str:
        """Stands for the JSON of a schema."""
        return f"%json {json.dumps(schema)}"

    def until(self, text: str) -> str:
        """Adds a rule for any text up to and including the first `text`."""
        if self.special(text) is not None:
            return self.rule(f"ANY? {self.text(text)}")
        return self.rule(r"/(?s:.*)/", attributes=f"[suffix={json.dumps(text)}]")

    def without(self, text: str) -> str:
        """Adds a terminal for any text without `text`, not the empty one."""
        if self.special(text) is not None:
            return "ANY"
        return self.terminal(rf"/(?s:.+)/ & ~/(?s:.*){escaped(text)}(?s:.*)/")

    def __str__(self) -> str:
        return "\n".join([*self._rules, r"ANY: /(?s:.+)/", ""])


def special_id(tokenizer: Tokenizer, text: str) -> int | None:
    """The id of the special token with this text; None where the text is ordinary."""
    ids = tokenizer.encode(text, add_special=False) if text else ()
    return ids[0] if len(ids) == 1 and ids[0] in tokenizer.special_ids else None


def escaped(text: str) -> str:
    """As a part of an expression between slashes."""
    return _META.sub(r"\\\g<0>", text)


def parameters(name: str, schema: Mapping[str, JSON]) -> list[tuple[str, dict[str, JSON], bool]]:
    """The arguments of a function in order: name, schema, whether it is required. Raises RequestError where they cannot
    be told one by one.
    """
    if not schema:
        return []
    found, needed = schema.get("properties", {}), schema.get("required", [])
    if schema.get("type") != "object" or not isinstance(found, Mapping) or not isinstance(needed, list | tuple):
        raise RequestError(
            f"the parameters of {name!r} are no object with properties", remedy="Give each argument in properties"
        )
    missing = [key for key in needed if key not in found]
    if missing:
        raise RequestError(f"{name!r} requires {missing[0]!r}, which is not in properties", remedy="Add it there")
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return [
        (key, {**shared, **value} if isinstance(value, Mapping) else {**shared, "anyOf": [{}]}, key in needed)
        for key, value in found.items()
    ]
