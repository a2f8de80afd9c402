"""Patterns of a schema that may have to hold for one text: intersecting them takes exponential time."""

from typing import Any, Final

from tokloom.sdk import RequestError

#: twenty milliseconds; ten would take a quarter of a second, twelve take three
MAX_PATTERNS: Final = 8
_BRANCHES: Final = ("anyOf", "oneOf")


def check_overlaps(schema: dict[str, Any]) -> None:
    """Raises RequestError where more than `MAX_PATTERNS` patterns and formats may meet. Counts every one below the
    parts that are put together, although those of an object may be about different properties.
    """
    _Count(schema).below(schema)


class _Count:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._known: dict[int, int] = {}

    def below(self, schema: Any) -> int:
        """Patterns and formats of a schema and all that it refers to, of alternatives the most."""
        if not isinstance(schema, dict):
            return 0
        if id(schema) not in self._known:
            self._known[id(schema)] = 0  # what refers to itself is counted once
            parts = [part for part in self._parts(schema) if part]
            if len(parts) > 1 and sum(parts) > MAX_PATTERNS:
                raise RequestError(
                    f"{sum(parts)} patterns and formats may have to hold for one text",
                    remedy=f"Put at most {MAX_PATTERNS} together with allOf, or beside anyOf, oneOf or $ref",
                )
            self._known[id(schema)] = min(sum(parts), 1000)
        return self._known[id(schema)]

    def _parts(self, schema: dict[str, Any]) -> list[int]:
        """What is put together: its own keywords, each member of allOf, the alternatives, what it refers to."""
        own = sum(keyword in schema for keyword in ("pattern", "format"))
        own += sum(self.below(one) for one in schema.get("prefixItems", ()))
        own += sum(self.below(schema[keyword]) for keyword in ("items", "additionalProperties") if keyword in schema)
        for keyword in ("properties", "patternProperties"):
            own += sum(self.below(one) for one in schema.get(keyword, {}).values())
        parts = [own, *(self.below(one) for one in schema.get("allOf", ()))]
        parts += [max((self.below(one) for one in schema.get(keyword, ())), default=0) for keyword in _BRANCHES]
        return [*parts, self.below(self._target(schema["$ref"])) if "$ref" in schema else 0]

    def _target(self, ref: str) -> Any:
        """What a reference points to; None where it is nothing, which the compiler says better."""
        found: Any = self._root
        for part in ref.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict):
                found = found.get(key)
            elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            else:
                return None
        return found
