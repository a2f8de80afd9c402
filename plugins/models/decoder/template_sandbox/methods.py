"""The methods of texts, dictionaries and lists that a template may call: all that change nothing."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tokloom.plugins.models.decoder.template_sandbox.budget import MAX_ITEMS, TemplateLimit
from tokloom.plugins.models.decoder.template_sandbox.printf import format_text

if TYPE_CHECKING:
    from tokloom.plugins.models.decoder.template_sandbox.runtime import Runtime

#: every attribute of texts and of dictionaries: a name that is here and has no method below is refused
STR_NAMES: Final = frozenset(dir(str))
DICT_NAMES: Final = frozenset(dir(dict))

_LINE_ENDS: Final = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_Function = Callable[..., Any]


def _needle(value: object) -> int:
    return len(value) if type(value) is str else sum(map(len, value)) if type(value) is tuple else 1


def _says(name: str) -> _Function:
    """A question about the characters, or about an end."""
    method = getattr(str, name)

    def call(runtime: "Runtime", text: str, /, *args: Any) -> Any:
        runtime.spend(3 + (len(text) >> 5))
        if args and type(args[0]) is tuple:
            runtime.spend(len(args[0]))
        return method(text, *args)

    return call


def _makes(name: str) -> _Function:
    """Another text of about the same length: three times as long at most."""
    method = getattr(str, name)

    def call(runtime: "Runtime", text: str, /, *args: Any) -> str:
        runtime.spend(3 + (len(text) >> 4))
        return runtime.made(method(text, *args))

    return call


def _strips(name: str) -> _Function:
    method = getattr(str, name)

    def call(runtime: "Runtime", text: str, chars: Any = None, /) -> str:
        runtime.spend(3 + (len(text) * (_needle(chars) + 16) >> 8))
        return runtime.made(method(text, chars))

    return call


def _seeks(name: str) -> _Function:
    method = getattr(str, name)

    def call(runtime: "Runtime", text: str, sub: Any, /, *span: Any) -> int:
        runtime.spend(3)
        runtime.scan(len(text), _needle(sub), backwards=name.startswith("r"))
        return method(text, sub, *span)  # type: ignore[no-any-return]

    return call


def _pads(name: str) -> _Function:
    method = getattr(str, name)

    def call(runtime: "Runtime", text: str, width: Any, /, *fill: Any) -> str:
        runtime.spend(3)
        if isinstance(width, int):
            runtime.room(width)
        return runtime.made(method(text, width, *fill))

    return call


def _splits(name: str) -> _Function:
    method = getattr(str, name)

    def call(runtime: "Runtime", text: str, /, sep: Any = None, maxsplit: Any = -1) -> list[str]:
        runtime.spend(3 + (len(text) >> 4))
        runtime.scan(len(text), _needle(sep), backwards=name == "rsplit")
        bounded = not isinstance(maxsplit, int) or 0 <= maxsplit <= MAX_ITEMS
        made: list[str] = method(text, sep, maxsplit if bounded else MAX_ITEMS)
        runtime.items(len(made), 64)
        runtime.spend(0, len(text) * (1 if text.isascii() else 4))
        return made

    return call


def _partitions(name: str) -> _Function:
    method = getattr(str, name)

    def call(runtime: "Runtime", text: str, sep: Any, /) -> tuple[str, str, str]:
        runtime.scan(len(text), _needle(sep), backwards=name == "rpartition")
        made: tuple[str, str, str] = method(text, sep)
        for piece in made:
            runtime.made(piece)
        return made

    return call


def split_lines(runtime: "Runtime", text: str, /, keepends: Any = False) -> list[str]:
    """`text.splitlines()`."""
    runtime.spend(3 + (len(text) >> 4))
    if len(text) > MAX_ITEMS and sum(map(text.count, _LINE_ENDS)) > MAX_ITEMS:
        raise TemplateLimit("the length of a list", MAX_ITEMS)
    made = text.splitlines(bool(keepends))
    runtime.items(len(made), 64)
    runtime.spend(0, len(text) * (1 if text.isascii() else 4))
    return made


def replace(runtime: "Runtime", text: str, old: Any, new: Any, count: Any = -1, /) -> str:
    """`text.replace(old, new)`, whose length is known before it is made."""
    runtime.spend(3 + (len(text) >> 4))
    runtime.scan(len(text), _needle(old))
    if type(old) is str and type(new) is str and len(new) > len(old):
        most = len(text) // max(1, len(old)) + 1
        growth = len(new) - len(old)
        if len(text) + most * growth > 65536:
            runtime.scan(len(text), _needle(old))
            most = text.count(old)
            if isinstance(count, int) and count >= 0:
                most = min(most, count)
            runtime.room(len(text) + most * growth)
    return runtime.made(text.replace(old, new, count))


def join(runtime: "Runtime", text: str, values: Any, /) -> str:
    """`text.join(values)`."""
    pieces = runtime.collect(values)
    size = len(text) * max(0, len(pieces) - 1)
    for piece in pieces:
        if type(piece) is not str:
            raise TypeError(f"sequence item: expected str instance, {type(piece).__name__} found")
        size += len(piece)
    runtime.room(size)
    return runtime.made(text.join(pieces))


def _expand_tabs(runtime: "Runtime", text: str, /, tabsize: Any = 8) -> str:
    runtime.spend(3 + (len(text) >> 4))
    if isinstance(tabsize, int):
        runtime.room(len(text) + text.count("\t") * max(tabsize, 0))
    return runtime.made(text.expandtabs(tabsize))


def _format(runtime: "Runtime", text: str, /, *args: Any, **kwargs: Any) -> str:
    return format_text(runtime, text, args, kwargs)


def _format_map(runtime: "Runtime", text: str, values: Any, /) -> str:
    return format_text(runtime, text, (), runtime.unpack_map(values))


def _get(runtime: "Runtime", table: dict[Any, Any], key: Any, default: Any = None, /) -> Any:
    runtime.spend(1)
    return table.get(runtime.key(key), default)


def _view(name: str) -> _Function:
    method = getattr(dict, name)

    def call(runtime: "Runtime", table: dict[Any, Any], /) -> Any:
        runtime.spend(1, 48)
        return method(table)

    return call


def _copy(runtime: "Runtime", value: Any, /) -> Any:
    runtime.items(len(value), 104 if type(value) is dict else 8)
    return value.copy()


def _count(runtime: "Runtime", values: Any, item: Any, /) -> int:
    runtime.contains(item, values)
    return values.count(item)  # type: ignore[no-any-return]


def _index(runtime: "Runtime", values: Any, item: Any, /, *span: Any) -> int:
    runtime.contains(item, values)
    runtime.repr(item)  # it stands in the message
    return values.index(item, *span)  # type: ignore[no-any-return]


STR_METHODS: Final[Mapping[str, _Function]] = {
    **{name: _says(name) for name in ("startswith", "endswith")},
    **{name: _says(name) for name in sorted(STR_NAMES) if name.startswith("is")},
    **{name: _makes(name) for name in ("lower", "upper", "capitalize", "title", "swapcase", "casefold")},
    **{name: _makes(name) for name in ("removeprefix", "removesuffix")},
    **{name: _strips(name) for name in ("strip", "lstrip", "rstrip")},
    **{name: _seeks(name) for name in ("find", "rfind", "index", "rindex", "count")},
    **{name: _pads(name) for name in ("center", "ljust", "rjust", "zfill")},
    **{name: _splits(name) for name in ("split", "rsplit")},
    **{name: _partitions(name) for name in ("partition", "rpartition")},
    "splitlines": split_lines,
    "replace": replace,
    "join": join,
    "expandtabs": _expand_tabs,
    "format": _format,
    "format_map": _format_map,
}
DICT_METHODS: Final[Mapping[str, _Function]] = {
    "get": _get,
    "copy": _copy,
    **{name: _view(name) for name in ("items", "keys", "values")},
}
LIST_METHODS: Final[Mapping[str, _Function]] = {"count": _count, "index": _index, "copy": _copy}
