"""The formats of `%` and of `str.format`, one field at a time, with bounded width and precision."""

import re
from _string import formatter_field_name_split  # type: ignore[import-not-found]
from collections.abc import Mapping, Sequence
from string import Formatter
from typing import TYPE_CHECKING, Any, Final

from tokloom.plugins.models.decoder.template_sandbox.budget import MAX_WIDTH, Budget, TemplateLimit
from tokloom.plugins.models.decoder.template_sandbox.values import LISTS, SCALARS, Undefined

if TYPE_CHECKING:
    from tokloom.plugins.models.decoder.template_sandbox.runtime import Runtime

#: https://docs.python.org/3/library/stdtypes.html#printf-style-string-formatting, without `*` and nested parentheses
_FIELD: Final = re.compile(r"%(?:\(([^()]*)\))?([-+ #0]*)(\d*)(?:\.(\d*))?[hlL]?([diouxXeEfFgGcrsa%])")
_NUMBERS: Final = re.compile(r"\d+")


def printf(budget: Budget, text: str, values: Any) -> str:
    """`text % values`. Raises ValueError for a field that is not understood."""
    budget.spend(len(text) >> 6)
    pieces: list[str] = []
    position, size, used = 0, 0, 0
    args: Sequence[Any] = values if type(values) in LISTS and type(values) is not list else (values,)
    while (start := text.find("%", position)) >= 0:
        field = _FIELD.match(text, start)
        if field is None:
            raise ValueError(f"unsupported format at index {start}")
        name, flags, width, precision, kind = field.groups()
        _width(width, precision or "")
        if kind == "%":
            piece = "%"
        elif name is not None:
            if type(values) is not dict:
                raise TypeError("format requires a mapping")
            piece = _field(budget, flags, width, precision, kind, values[name])
        elif used < len(args):
            piece = _field(budget, flags, width, precision, kind, args[used])
            used += 1
        else:
            raise TypeError("not enough arguments for format string")
        pieces += (text[position:start], piece)
        size += start - position + len(piece)
        budget.room(size)
        budget.spend(5, 16)
        position = field.end()
    pieces.append(text[position:])
    budget.room(size + len(pieces[-1]))
    if used < len(args) and type(values) not in (dict, list) and not isinstance(values, Undefined):
        raise TypeError("not all arguments converted during string formatting")
    return budget.made("".join(pieces))


def _field(budget: Budget, flags: str, width: str, precision: str | None, kind: str, value: Any) -> str:
    if kind in "sra":
        text = budget.text(value) if kind == "s" else budget.repr(value)
        value, kind = (ascii(value), "s") if kind == "a" else (text, "s")
    elif type(value) not in SCALARS:
        raise TypeError(f"%{kind} format: a number is required, not {type(value).__name__}")
    dot = "" if precision is None else "." + precision
    return budget.made(f"%{flags}{width}{dot}{kind}" % (value,))


def _width(*figures: str) -> None:
    for figure in figures:
        if figure and (len(figure) > 9 or int(figure) > MAX_WIDTH):
            raise TemplateLimit("the width of a format", MAX_WIDTH)


class BoundedFormatter(Formatter):
    """`str.format`, whose fields see what templates see."""

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        self._size = 0

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """The value of `a.b[c]`."""
        self._runtime.spend(5 + len(field_name))
        first, rest = formatter_field_name_split(field_name)
        found = self.get_value(first, args, kwargs)
        for is_attribute, name in rest:
            found = self._runtime.getattr(found, name) if is_attribute else self._runtime.getitem(found, name)
        return found, first

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        """`!s`, `!r` and `!a`."""
        if conversion is None or conversion not in "sra":
            return super().convert_field(value, conversion)  # which refuses what it does not know
        if conversion == "s":
            return self._runtime.text(value)
        text = self._runtime.repr(value)
        return ascii(value) if conversion == "a" else text

    def format_field(self, value: Any, format_spec: str) -> str:
        """One field, whose size counts before the fields are put together."""
        self._runtime.spend(5 + len(format_spec), 16)
        _width(*_NUMBERS.findall(format_spec))
        if type(value) in SCALARS:
            piece = format(value, format_spec)
        elif format_spec:
            raise TypeError(f"unsupported format string passed to {type(value).__name__}")
        else:
            piece = self._runtime.text(value)
        self._size += len(piece)
        self._runtime.room(self._size)
        return piece


def format_text(runtime: "Runtime", text: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """`text.format(…)`."""
    runtime.spend(len(text) >> 2, len(text))
    return runtime.made(BoundedFormatter(runtime).vformat(text, args, kwargs))
