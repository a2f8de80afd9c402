"""Checks of single values that a caller gave; what passes is a plain Python value."""

import math
from collections.abc import Collection, Mapping
from numbers import Integral, Real
from typing import Any, Final, NoReturn

from tokloom.core.shown import shown
from tokloom.sdk import RequestError

MAX_INTEGER: Final = 2**63 - 1
#: entries of a field that takes a collection
MAX_ITEMS: Final = 1 << 20


class Checks:
    """Of the fields of one request. Each method returns the value as a plain Python one, or raises RequestError."""

    def __init__(self, subject: str) -> None:
        self._subject = subject

    def fail(self, field: str, value: object, allowed: str) -> NoReturn:
        raise RequestError(
            f"{field} is {shown(value)}", subject=self._subject, remedy=f"Give {field} a value in its range: {allowed}"
        )

    def integer(self, field: str, value: object, low: int, high: int = MAX_INTEGER) -> int:
        """Booleans are no integers."""
        if not isinstance(value, Integral) or isinstance(value, bool) or not low <= int(value) <= high:
            self.fail(field, value, f"an integer from {low}" + ("" if high == MAX_INTEGER else f" to {high}"))
        return int(value)

    def number(self, field: str, value: object, low: float, high: float, *, low_open: bool = False) -> float:
        """An integer stays one."""
        allowed = f"a number {'above' if low_open else 'from'} {low:g} up to {high:g}"
        if not isinstance(value, Real) or isinstance(value, bool):
            self.fail(field, value, allowed)
        try:
            plain = float(value)
        except OverflowError:
            self.fail(field, value, allowed)
        if math.isnan(plain) or not low <= plain <= high or (low_open and plain == low):
            self.fail(field, value, allowed)
        return int(value) if isinstance(value, Integral) else plain

    def items(self, field: str, value: object, wanted: str) -> tuple[Any, ...]:
        """The items of a sized collection that is neither text nor a mapping."""
        if isinstance(value, tuple):
            return value
        if isinstance(value, str | bytes | bytearray | Mapping) or not isinstance(value, Collection):
            self.fail(field, value, wanted)
        try:
            count = len(value)
            if count <= MAX_ITEMS:
                return tuple(value)
        except Exception:
            self.fail(field, value, wanted)
        self.fail(field, value, f"{wanted}, {MAX_ITEMS} at the most")

    def ids(self, field: str, values: object, vocab_size: int, least: int = 0) -> tuple[int, ...]:
        """Token ids of the vocabulary."""
        items = self.items(field, values, "token ids")
        if len(items) < least:
            self.fail(field, values, "at least one token id")
        return tuple(self.integer(field, item, 0, vocab_size - 1) for item in items)

    def flag(self, field: str, value: object) -> bool:
        if not isinstance(value, bool):
            self.fail(field, value, "true or false")
        return value

    def text(self, field: str, value: object) -> str:
        """Text that can be written as UTF-8."""
        if not isinstance(value, str):
            self.fail(field, value, "text")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            self.fail(field, value, f"text in whole characters; character {error.start} is half of one")
        return str(value)

    def texts(self, field: str, values: object) -> tuple[str, ...]:
        wanted = "a tuple of strings"
        items = self.items(field, values, wanted)
        if not all(isinstance(item, str) for item in items):
            self.fail(field, values, wanted)
        return tuple(self.text(field, item) for item in items)
