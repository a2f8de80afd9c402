"""The filters of templates: Jinja's own meaning, with what each may cost counted before it happens."""

import re
from collections.abc import Callable, Iterator, Mapping
from json import dumps
from math import ceil, floor
from typing import Any, Final

from jinja2.exceptions import FilterArgumentError, TemplateRuntimeError
from jinja2.utils import pass_environment, url_quote
from markupsafe import escape

from tokloom.plugins.models.decoder.template_sandbox import methods, sequences
from tokloom.plugins.models.decoder.template_sandbox.budget import MAX_TEXT, TemplateLimit
from tokloom.plugins.models.decoder.template_sandbox.printf import printf
from tokloom.plugins.models.decoder.template_sandbox.runtime import Runtime
from tokloom.plugins.models.decoder.template_sandbox.values import SIZED, Undefined

#: characters of a text that becomes a number
_DIGITS: Final = 400
_WORD: Final = re.compile(r"\w+")
_TITLE: Final = re.compile(r"[-\s({\[<]+|[^-\s({\[<]+")


def _method(name: str) -> Callable[..., Any]:
    function = methods.STR_METHODS[name]

    def call(runtime: Runtime, value: Any, /) -> Any:
        return function(runtime, runtime.text(value))

    return call


def _trim(runtime: Runtime, value: Any, /, chars: Any = None) -> str:
    return methods.STR_METHODS["strip"](runtime, runtime.text(value), chars)  # type: ignore[no-any-return]


def _center(runtime: Runtime, value: Any, /, width: int = 80) -> str:
    return methods.STR_METHODS["center"](runtime, runtime.text(value), width)  # type: ignore[no-any-return]


def _replace(runtime: Runtime, s: Any, /, old: Any, new: Any, count: Any = None) -> str:
    text, old, new = runtime.text(s), runtime.text(old), runtime.text(new)
    return methods.replace(runtime, text, old, new, -1 if count is None else count)


def _indent(runtime: Runtime, s: Any, /, width: Any = 4, first: Any = False, blank: Any = False) -> str:
    if isinstance(width, int):
        runtime.room(width)
    indention = width if type(width) is str else " " * width
    lines = methods.split_lines(runtime, runtime.add(s, "\n"))
    runtime.room(len(s) + len(lines) * (len(indention) + 1))
    if blank:
        made = ("\n" + indention).join(lines)
    else:
        made = "\n".join([lines[0], *(indention + line if line else line for line in lines[1:])])
    return runtime.made(indention + made if first else made)


def _truncate(
    runtime: Runtime, s: Any, /, length: int = 255, killwords: Any = False, end: str = "...", leeway: int | None = None
) -> Any:
    leeway = 5 if leeway is None else leeway
    if length < len(end) or leeway < 0:
        raise FilterArgumentError(f"expected length >= {len(end)} and leeway >= 0")
    if len(s) <= length + leeway:
        return s
    head = runtime.slice(s, None, length - len(end), None)
    return runtime.add(head if killwords else methods.STR_METHODS["rsplit"](runtime, head, " ", 1)[0], end)


def _title(runtime: Runtime, value: Any, /) -> str:
    text = runtime.text(value)
    runtime.spend(3 + (len(text) >> 1))
    runtime.items(sum(1 for _ in _TITLE.finditer(text)), 64)
    words = (match.group() for match in _TITLE.finditer(text))
    return runtime.made("".join(word[0].upper() + word[1:].lower() for word in words))


def _wordcount(runtime: Runtime, value: Any, /) -> int:
    text = runtime.text(value)
    runtime.spend(3 + (len(text) >> 1))
    return sum(1 for _ in _WORD.finditer(text))


def _escape(runtime: Runtime, value: Any, /) -> str:
    text = runtime.text(value)
    runtime.spend(3 + (len(text) >> 4))
    if len(text) > MAX_TEXT // 8:
        runtime.room(len(text) + 5 * sum(map(text.count, "&<>'\"")))
    return runtime.made(str(escape(text)))


def _urlencode(runtime: Runtime, value: Any, /) -> str:
    if type(value) is str or type(value) not in SIZED:
        return _quoted(runtime, value, for_qs=False)
    pairs = runtime.collect(value.items() if type(value) is dict else value)
    return "&".join(runtime.join(_quoted(runtime, k), "=", _quoted(runtime, v)) for k, v in pairs)


def _quoted(runtime: Runtime, value: Any, *, for_qs: bool = True) -> str:
    text = runtime.text(value)
    runtime.spend(3 + (len(text) >> 1), 24 * len(text))
    runtime.room(len(text) * 12 if not text.isascii() else len(text) * 3)
    return runtime.made(url_quote(text, for_qs=for_qs))


def _tojson(
    runtime: Runtime,
    value: Any,
    /,
    ensure_ascii: Any = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: Any = False,
) -> str:
    """Hugging Face's: plain JSON, without escapes for HTML."""
    before = runtime.work
    size = runtime.measure(value) * (6 if ensure_ascii else 1)
    items = before - runtime.work
    extra = 0
    if indent is not None:
        extra += len(indent) if type(indent) is str else int(indent)
    if separators is not None:
        extra += sum(map(len, separators))
    # every item begins a line with at most 64 levels, and a container has two such lines
    runtime.spend(items * (8 if indent is not None or sort_keys else 1))
    runtime.room(size + max(0, extra) * items * (8 if extra < 64 else 64))
    return runtime.made(
        dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    )


def _int(runtime: Runtime, value: Any, /, default: Any = 0, base: Any = 10) -> Any:
    _short(value)
    try:
        return runtime.number(int(value, base) if type(value) is str else int(value))
    except (TypeError, ValueError):
        try:
            return runtime.number(int(float(value)))
        except (TypeError, ValueError, OverflowError):
            return default


def _float(runtime: Runtime, value: Any, /, default: Any = 0.0) -> Any:
    _short(value)
    try:
        return runtime.number(float(value))
    except (TypeError, ValueError):
        return default


def _short(value: Any) -> None:
    if type(value) is str and len(value) > _DIGITS:
        raise TemplateLimit("the digits of a number", _DIGITS)


def _round(runtime: Runtime, value: Any, /, precision: Any = 0, method: str = "common") -> Any:
    if method not in ("common", "ceil", "floor"):
        raise FilterArgumentError("method must be common, ceil or floor")
    if isinstance(precision, int) and abs(precision) > _DIGITS:
        raise TemplateLimit("the digits of a number", _DIGITS)
    if method == "common":
        return runtime.number(round(value, precision))
    scaled = runtime.mul(value, 10**precision)
    return runtime.number((ceil if method == "ceil" else floor)(scaled) / (10**precision))


def _abs(runtime: Runtime, value: Any, /) -> Any:
    return abs(value)


def _default(runtime: Runtime, value: Any, /, default_value: Any = "", boolean: Any = False) -> Any:
    return default_value if isinstance(value, Undefined) or (boolean and not value) else value


def _attr(runtime: Runtime, value: Any, /, name: Any) -> Any:
    if type(name) is not str:
        raise TypeError("attribute name must be string")
    if type(value) is dict and name not in methods.DICT_NAMES:
        return runtime.undefined(obj=value, name=name)
    return runtime.getattr(value, name)


def _format(runtime: Runtime, value: Any, /, *args: Any, **kwargs: Any) -> str:
    if args and kwargs:
        raise FilterArgumentError("can't handle positional and keyword arguments at the same time")
    return printf(runtime, runtime.text(value), kwargs or args)


def _string(runtime: Runtime, value: Any, /) -> str:
    return runtime.text(value)


def _length(runtime: Runtime, value: Any, /) -> int:
    if type(value) in SIZED or isinstance(value, Undefined):
        return len(value)
    raise TypeError(f"object of type {type(value).__name__!r} has no len()")


def _filter(runtime: Runtime, name: Any) -> Callable[..., Any]:
    found = runtime.filters.get(name) if type(name) is str else None
    if found is None:
        raise TemplateRuntimeError(f"No filter named {name[:40]!r}." if type(name) is str else "No such filter.")
    return found


def _map(runtime: Runtime, value: Any, /, *args: Any, **kwargs: Any) -> Any:
    def items() -> Iterator[Any]:
        if not value:
            return
        if not args and "attribute" in kwargs:
            attribute, default = kwargs.pop("attribute"), kwargs.pop("default", None)
            if kwargs:
                raise FilterArgumentError(f"Unexpected keyword argument {next(iter(kwargs))!r}")
            get = sequences.getter(runtime, attribute, default)
            for item in runtime.iterate(value):
                yield get(item)
            return
        if not args:
            raise FilterArgumentError("map requires a filter argument")
        function = _filter(runtime, args[0])
        for item in runtime.iterate(value):
            runtime.spend(3)
            yield function(runtime, item, *args[1:], **kwargs)

    return runtime.stream(value, items())


_TABLE: Final[Mapping[str, Callable[..., Any]]] = {
    **{name: _method(name) for name in ("lower", "upper", "capitalize")},
    "abs": _abs,
    "attr": _attr,
    "center": _center,
    "count": _length,
    "d": _default,
    "default": _default,
    "e": _escape,
    "escape": _escape,
    "float": _float,
    "forceescape": _escape,
    "format": _format,
    "indent": _indent,
    "int": _int,
    "length": _length,
    "map": _map,
    "replace": _replace,
    "round": _round,
    "safe": _string,
    "string": _string,
    "title": _title,
    "tojson": _tojson,
    "trim": _trim,
    "truncate": _truncate,
    "urlencode": _urlencode,
    "wordcount": _wordcount,
    **sequences.TABLE,
}
FILTERS: Final[dict[str, Callable[..., Any]]] = {name: pass_environment(call) for name, call in _TABLE.items()}
