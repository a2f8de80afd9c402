"""Fields: typed reads from a model's configuration, which remember what was read."""

import math
from collections.abc import Mapping
from typing import TypeVar

from tokloom.sdk import CheckpointError

T = TypeVar("T", int, float, bool, str)


class Fields:
    """Typed reads from a mapping of unknown content. Errors name file and key."""

    def __init__(self, source: str, values: Mapping[str, object], defaults: Mapping[str, object] | None = None) -> None:
        self.source = source
        self.values = {**(defaults or {}), **values}
        self._read: set[str] = set()

    def fail(self, key: str, problem: str, remedy: str = "") -> CheckpointError:
        return CheckpointError(f"{key} {problem}", subject=self.source, remedy=remedy)

    def raw(self, key: str) -> object:
        """The value of `key` as it is, or None."""
        self._read.add(key)
        return self.values.get(key)

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The value of `key`; a missing one without default, or one of another type, is an error."""
        value = self.raw(key)
        if value is None:
            if default is None:
                raise self.fail(key, "is missing", "The file must be a complete model configuration")
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.fail(key, f"is {value!r}, not {kind.__name__}")
        return value

    def size(self, key: str, default: int | None = None, most: int = 1 << 24) -> int:
        """A positive integer."""
        value = self.get(key, int, default)
        if not 0 < value <= most:
            raise self.fail(key, f"is {value}; it must be between 1 and {most}")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self.get(key, float, default)
        if not (value > 0 and math.isfinite(value)):
            raise self.fail(key, f"is {value}; it must be a positive number")
        return value

    def optional(self, key: str) -> float | None:
        """A positive finite number, or None where the key is missing or null."""
        return None if self.raw(key) is None else self.positive(key)

    def ids(self, key: str) -> tuple[int, ...]:
        """An id, a list of ids, or nothing."""
        value = self.raw(key)
        if value is None:
            return ()
        listed = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in listed):
            raise self.fail(key, f"is {value!r}, not a token id or a list of them")
        return tuple(listed)

    def table(self, key: str) -> dict[str, object]:
        """A mapping; empty where the key is missing or null."""
        value = self.raw(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.fail(key, f"is {value!r}, not a table")
        return value

    def refuse_unread(self, harmless: frozenset[str] = frozenset()) -> None:
        """Every key that asks for something must have been read. A key that is null, false, zero or empty asks for
        nothing. Raises CheckpointError naming the first other one.
        """
        for key, value in sorted(self.values.items()):
            if value and key not in self._read and key not in harmless and not key.startswith("_"):
                raise self.fail(
                    key,
                    f"is {value!r:.80}, which this family does not know for this architecture",
                    "Remove the key if it does not change results",
                )
