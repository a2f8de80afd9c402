"""Runtime: what a compiled template calls instead of Python's own operators."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NoReturn

from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext
from jinja2.utils import Namespace, missing

from tokloom.plugins.models.decoder.template_sandbox.budget import (
    MAX_CALLS,
    MAX_DATA_DEPTH,
    MAX_ITEMS,
    MAX_LAZY,
    TemplateLimit,
)
from tokloom.plugins.models.decoder.template_sandbox.methods import (
    DICT_METHODS,
    DICT_NAMES,
    LIST_METHODS,
    STR_METHODS,
    STR_NAMES,
)
from tokloom.plugins.models.decoder.template_sandbox.operators import Operators
from tokloom.plugins.models.decoder.template_sandbox.values import (
    LISTS,
    SIZED,
    Cycler,
    Function,
    Group,
    Joiner,
    Method,
    Stream,
    TemplateMacro,
    TemplateNamespace,
    Undefined,
)

_LOOP: Final = frozenset(
    [
        "index",
        "index0",
        "revindex",
        "revindex0",
        "first",
        "last",
        "length",
        "depth",
        "depth0",
        "previtem",
        "nextitem",
        "cycle",
        "changed",
    ]
)

#: types of variables that are taken as they are
_SIMPLE: Final = frozenset({str, bool, float, type(None)})


class BoundedLoop(LoopContext):
    """The variable `loop`; its iterable has been through `Runtime.iterate`."""

    def __init__(self, runtime: "Runtime", iterable: Iterable[Any], recurse: Any, depth0: int) -> None:
        super().__init__(iterable, runtime.undefined, recurse, depth0)  # type: ignore[arg-type]
        self._runtime = runtime

    @property
    def length(self) -> int:
        """Its length; what is lazy is read to its end for it."""
        if self._length is None and type(self._iterable) not in SIZED:
            rest = self._runtime.collect(self._iterator)
            self._iterator = iter(rest)
            self._length = len(rest) + self.index + (self._after is not missing)
        return super().length

    def changed(self, *value: Any) -> bool:
        """Whether the values differ from those of the last call."""
        self._runtime.measure(value)
        return super().changed(*value)

    def __repr__(self) -> str:
        return "<LoopContext>"


class Runtime(Operators):
    """One rendering. It stands where compiled templates expect their environment."""

    autoescape: Final = False
    is_async: Final = False
    macro_class: Final = TemplateMacro

    def __init__(self, filters: Mapping[str, Callable[..., Any]], tests: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__()
        self.filters = filters
        self.tests = tests

    # -- names and attributes

    def undefined(self, hint: str | None = None, obj: Any = missing, name: Any = None, exc: Any = None) -> Undefined:
        """A value that is not there. `name` becomes part of a message, so it is a text or a number."""
        self.spend(1, 96)
        if type(name) is not str and type(name) is not int:
            name = type(name).__name__
        return Undefined(hint, obj, name) if exc is None else Undefined(hint, obj, name, exc)

    def getattr(self, obj: Any, name: str) -> Any:
        """`obj.name`: attributes that are on a list, then items."""
        kind = type(obj)
        if kind is dict:
            if name in DICT_NAMES:
                return self._method(obj, name, DICT_METHODS)
            try:
                return obj[name]
            except KeyError:
                return self.undefined(obj=obj, name=name)
        found = self._attribute(obj, kind, name)
        return self.undefined(obj=obj, name=name) if found is missing else found

    def getitem(self, obj: Any, key: Any) -> Any:
        """`obj[key]`: items, then attributes."""
        kind = type(obj)
        if kind is dict:
            try:
                return obj[self.key(key)]
            except (KeyError, TypeError):
                if type(key) is str and key in DICT_NAMES:
                    return self._method(obj, key, DICT_METHODS)
                return self.undefined(obj=obj, name=key)
        if type(key) is str:
            found = self._attribute(obj, kind, key)
            return self.undefined(obj=obj, name=key) if found is missing else found
        if kind in LISTS or kind is str or kind is range:
            try:
                return obj[key]
            except (TypeError, LookupError):
                return self.undefined(obj=obj, name=key)
        if isinstance(obj, Undefined):
            self.fail(obj)
        return self.undefined(obj=obj, name=key)

    def _attribute(self, obj: Any, kind: type, name: str) -> Any:
        """What templates may see of a value that is not a dictionary; `missing` where there is nothing."""
        if isinstance(obj, Undefined):
            self.fail(obj)
        if isinstance(obj, Namespace):
            try:
                return getattr(obj, name) if not name.startswith("_") else missing
            except AttributeError:
                return missing
        if kind is str:
            return self._method(obj, name, STR_METHODS) if name in STR_NAMES else missing
        if kind is BoundedLoop and name in _LOOP:
            found = getattr(obj, name)
            return Method(obj, name, _plain_call(found)) if name in ("cycle", "changed") else found
        if kind is Group and name in ("grouper", "list"):
            return getattr(obj, name)
        if kind in LISTS and name in LIST_METHODS:
            return self._method(obj, name, LIST_METHODS)
        if kind is Cycler and name in ("next", "reset", "current"):
            found = getattr(obj, name)
            return found if name == "current" else Method(obj, name, _plain_call(found))
        return self._unsafe(kind, name) if hasattr(kind, name) else missing

    def _method(self, obj: Any, name: str, table: Mapping[str, Callable[..., Any]]) -> Any:
        function = table.get(name)
        if function is None:
            return self._unsafe(type(obj), name)
        self.spend(2, 64)
        return Method(obj, name, function)

    def _unsafe(self, kind: type, name: str) -> Undefined:
        hint = f"access to attribute {name[:40]!r} of {kind.__name__!r} object is unsafe."
        return self.undefined(hint, name=name, exc=SecurityError)

    # -- calls

    def call(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """`function(…)`, for functions that templates may call."""
        kind = type(function)
        if kind is Method:
            return function.function(self, function.owner, *args, **kwargs)
        if kind is Function:
            return function.function(self, *args, **kwargs)
        if kind is TemplateMacro or kind is BoundedLoop:
            return self._nested(function, args, kwargs)
        if kind is Joiner:
            return function()
        if isinstance(function, Undefined):
            self.fail(function)
        raise TypeError(f"{kind.__name__!r} object is not callable")

    def invoke(self, obj: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """`obj.name(…)`."""
        kind = type(obj)
        function = STR_METHODS.get(name) if kind is str else DICT_METHODS.get(name) if kind is dict else None
        if function is not None:
            return function(self, obj, *args, **kwargs)
        return self.call(self.getattr(obj, name), *args, **kwargs)

    def _nested(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.calls -= 1
        if self.calls < 0:
            raise TemplateLimit("the depth of macros and recursive loops", MAX_CALLS)
        try:
            if type(function) is BoundedLoop:
                (iterable,) = args
                return function(self.iterate(iterable), **kwargs)
            return function(*args, **kwargs)
        finally:
            self.calls += 1

    # -- loops and lists

    def loop(self, iterable: Any, undefined: object, recurse: Any = None, depth0: int = 0) -> BoundedLoop:
        """The `loop` of a loop over what `iterate` or a loop's own condition gave."""
        return BoundedLoop(self, iterable, recurse, depth0)

    def iterate(self, value: Any) -> Iterable[Any]:
        """What a loop may go over."""
        kind = type(value)
        if kind in SIZED or kind is Stream:
            return value  # type: ignore[no-any-return]
        if isinstance(value, Undefined):
            return ()
        raise TypeError(f"{kind.__name__!r} object is not iterable")

    def collect(self, value: Any) -> list[Any]:
        """Its items, as a list of its own."""
        if type(value) in SIZED:
            self.items(len(value), 8 if type(value) in LISTS else 88)
            return list(value)
        made: list[Any] = []
        source = value if isinstance(value, Iterator) and type(value) is not BoundedLoop else self.iterate(value)
        for item in source:
            self.spend(1, 8)
            made.append(item)
            if len(made) > MAX_ITEMS:
                raise TemplateLimit("the length of a list", MAX_ITEMS)
        return made

    def stream(self, value: Any, source: Iterator[Any]) -> Stream:
        """The items of `source`, which reads `value` lazily."""
        depth = value.depth + 1 if type(value) is Stream else 1
        if depth > MAX_LAZY:
            raise TemplateLimit("lazy filters within each other", MAX_LAZY)
        self.spend(20, 1200)
        return Stream(source, depth)

    def unpack(self, value: Any) -> list[Any]:
        """`*value` of a call."""
        return self.collect(value)

    def unpack_map(self, value: Any) -> dict[str, Any]:
        """`**value` of a call."""
        if type(value) is not dict or not all(type(key) is str for key in value):
            raise TypeError("argument after ** must be a mapping with texts as keys")
        self.items(len(value), 104)
        return value

    def key(self, value: Any) -> Any:
        """A key of a dictionary. Long integers and tuples are none: their hashes can be made to collide."""
        kind = type(value)
        if kind is str or kind is bool or kind is float or value is None or isinstance(value, Undefined):
            return value
        if kind is int and -(2**60) < value < 2**60:
            return value
        raise TypeError(f"unhashable type: {kind.__name__!r}")

    def table(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        """`dict(…)`."""
        if len(args) > 1:
            raise TypeError(f"dict expected at most 1 argument, got {len(args)}")
        made: dict[Any, Any] = {}
        if args and type(args[0]) is dict:
            self.items(len(args[0]), 104)
            made = dict(args[0])
        elif args:
            for pair in self.collect(args[0]):
                key, value = self.collect(pair)
                made[self.key(key)] = value
            self.items(len(made), 104)
        self.items(len(kwargs), 104)
        made.update(kwargs)
        return made

    def slice(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        """`value[start:stop:step]`."""
        kind = type(value)
        if kind is str:
            return self.made(value[start:stop:step])
        if kind in LISTS or kind is range:
            found = value[start:stop:step]
            self.items(len(found))
            return found
        if isinstance(value, Undefined):
            self.fail(value)
        raise TypeError(f"{kind.__name__!r} object cannot be sliced")

    def concat(self, pieces: list[str]) -> str:
        """The text of a macro or block."""
        size = 0
        for piece in pieces:
            size += len(piece)
        self.room(size)
        self.spend(1 + (len(pieces) >> 3), len(pieces) << 3)
        return self.made("".join(pieces))

    def join(self, *values: Any) -> str:
        """`a ~ b ~ …`."""
        return self.concat([value if type(value) is str else self.text(value) for value in values])

    def namespace(self, *args: Any, **kwargs: Any) -> TemplateNamespace:
        """`namespace(…)`."""
        self.spend(5, 400)
        return TemplateNamespace(self.table(*args, **kwargs))

    def fail(self, value: Undefined) -> NoReturn:
        """Raise what an operation on an undefined value raises."""
        value._fail_with_undefined_error()

    def plain(self, value: object, depth: int = 0) -> object:
        """A copy of a variable in plain data. What is no data becomes a text that names its type."""
        if depth > MAX_DATA_DEPTH:
            raise TemplateLimit("the depth of data", MAX_DATA_DEPTH)
        kind = type(value)
        if kind in _SIMPLE:
            return value
        if kind is dict:
            return {
                (key if type(key) is str else self.key(self.plain(key))): (
                    item if type(item) in _SIMPLE else self.plain(item, depth + 1)
                )
                for key, item in value.items()  # type: ignore[attr-defined]
            }
        if isinstance(value, list | tuple):
            return [item if type(item) in _SIMPLE else self.plain(item, depth + 1) for item in value]
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            return self.integer(int(value))
        if isinstance(value, float):
            return float(value)
        if isinstance(value, Mapping):
            return self.plain(dict(value), depth)
        return f"<{type(value).__name__}>"


def _plain_call(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(runtime: Runtime, owner: object, /, *args: Any) -> Any:
        return function(*args)

    return call
