"""Operators: arithmetic and comparisons whose cost and result are bounded before they happen."""

from collections.abc import Callable
from functools import reduce
from operator import ge, gt, le, lt
from typing import Any, Final, NoReturn

from tokloom.plugins.models.decoder.template_sandbox.budget import (
    MAX_BITS,
    MAX_ITEMS,
    MAX_TEXT,
    Budget,
    TemplateLimit,
)
from tokloom.plugins.models.decoder.template_sandbox.printf import printf
from tokloom.plugins.models.decoder.template_sandbox.values import (
    LISTS,
    NUMBERS,
    SCALARS,
    VIEWS,
    Stream,
    Undefined,
)

_ORDER: Final[dict[str, Callable[[Any, Any], Any]]] = {"lt": lt, "lteq": le, "gt": gt, "gteq": ge}


class Operators(Budget):
    """Python's meaning for plain data; nothing for the rest."""

    def number(self, value: Any) -> Any:
        """A number that is not too large."""
        self.spend(0, 32)
        return self.integer(value) if type(value) is int else value

    def add(self, left: Any, right: Any) -> Any:
        """`left + right`."""
        kind, other = type(left), type(right)
        if kind is str and other is str:
            self.room(len(left) + len(right))
            return self.made(left + right)
        if kind in NUMBERS and other in NUMBERS:
            return self.number(left + right)
        if (kind is list and other is list) or (kind in LISTS and other in LISTS and list not in (kind, other)):
            self.items(len(left) + len(right))
            return left + right
        self._refuse("+", left, right)

    def plus(self, *values: Any) -> Any:
        """`a + b + c + …`, from the left; texts are put together at once."""
        try:
            size = sum(map(len, values))
            if size <= MAX_TEXT:
                return self.made("".join(values))
        except TypeError:  # not all of them are texts
            pass
        return reduce(self.add, values)

    def sub(self, left: Any, right: Any) -> Any:
        """`left - right`."""
        if type(left) in NUMBERS and type(right) in NUMBERS:
            return self.number(left - right)
        self._refuse("-", left, right)

    def mul(self, left: Any, right: Any) -> Any:
        """`left * right`."""
        kind, other = type(left), type(right)
        if kind in NUMBERS and other in NUMBERS:
            return self.number(left * right)
        if other is str or other in LISTS:
            left, right, kind, other = right, left, other, kind
        if other is int or other is bool:
            count = max(right, 0)
            if kind is str:
                self.room(len(left) * count)
                return self.made(left * count)
            if kind in LISTS:
                if len(left) * count > MAX_ITEMS:
                    raise TemplateLimit("the length of a list", MAX_ITEMS)
                self.items(len(left) * count)
                return left * count
        self._refuse("*", left, right)

    def div(self, left: Any, right: Any) -> Any:
        """`left / right`."""
        if type(left) in NUMBERS and type(right) in NUMBERS:
            return self.number(left / right)
        self._refuse("/", left, right)

    def floordiv(self, left: Any, right: Any) -> Any:
        """`left // right`."""
        if type(left) in NUMBERS and type(right) in NUMBERS:
            return self.number(left // right)
        self._refuse("//", left, right)

    def mod(self, left: Any, right: Any) -> Any:
        """`left % right`: the remainder, or a text's format."""
        kind = type(left)
        if kind is str:
            return printf(self, left, right)
        if kind in NUMBERS and type(right) in NUMBERS:
            return self.number(left % right)
        self._refuse("%", left, right)

    def pow(self, left: Any, right: Any) -> Any:
        """`left ** right`."""
        if type(left) not in NUMBERS or type(right) not in NUMBERS:
            self._refuse("**", left, right)
        integers = isinstance(left, int) and isinstance(right, int) and right > 0 and abs(left) > 1
        # |left|^right has more than (bits - 1) * right bits
        if integers and (left.bit_length() - 1) * right >= MAX_BITS:
            raise TemplateLimit("the bits of an integer", MAX_BITS)
        return self.number(left**right)

    def neg(self, value: Any) -> Any:
        """`-value`."""
        if type(value) in NUMBERS:
            return self.number(-value)
        self._refuse("unary -", value)

    def pos(self, value: Any) -> Any:
        """`+value`."""
        if type(value) in NUMBERS:
            return self.number(+value)
        self._refuse("unary +", value)

    def eq(self, left: Any, right: Any) -> bool:
        """`left == right`."""
        self._comparing(left, right)
        return left == right  # type: ignore[no-any-return]

    def ne(self, left: Any, right: Any) -> bool:
        """`left != right`."""
        return not self.eq(left, right)

    def order(self, operator: str, left: Any, right: Any) -> bool:
        """`left < right` and its like."""
        self._comparing(left, right)
        return _ORDER[operator](left, right)  # type: ignore[no-any-return]

    def contains(self, item: Any, where: Any) -> bool:
        """`item in where`."""
        kind = type(where)
        if kind is str:
            if type(item) is str:
                self.scan(len(where), len(item))
            return item in where
        if kind is dict or kind is type({}.keys()):
            return self.key(item) in where
        if kind in LISTS or kind in VIEWS:
            self.spend((len(where) >> 2) + self._search_weight(item) * len(where))
            return item in (where if kind in LISTS else list(where))
        if kind is range:
            self.spend(len(where) if type(item) not in (int, bool) else 1)
            return item in where
        if kind is Stream:
            for other in where:
                self.spend(1)
                if other is item or self.eq(other, item):
                    return True
            return False
        if isinstance(where, Undefined):
            return False
        raise TypeError(f"argument of type {kind.__name__!r} is not iterable")

    def key(self, value: Any) -> Any:
        """See `Runtime.key`."""
        raise NotImplementedError

    def _comparing(self, left: Any, right: Any) -> None:
        """Count a comparison. With a scalar it ends at once, else at the end of the smaller side."""
        kind, other = type(left), type(right)
        if kind is str and other is str:
            self.spend(min(len(left), len(right)) >> 8)
        elif kind not in SCALARS and other not in SCALARS:
            self.measure(left)

    def _search_weight(self, item: Any) -> int:
        """Steps to compare `item` with one item of a list."""
        if type(item) is str:
            return len(item) >> 8
        return 0 if type(item) in SCALARS else self.weight(item)

    def _refuse(self, operator: str, *values: Any) -> NoReturn:
        for value in values:
            if isinstance(value, Undefined):
                value._fail_with_undefined_error()
        kinds = " and ".join(repr(type(value).__name__) for value in values)
        raise TypeError(f"unsupported operand type(s) for {operator}: {kinds}")
