"""The filters that go over lists, and the tests that `select` and its like apply."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

from jinja2 import tests
from jinja2.exceptions import FilterArgumentError, TemplateRuntimeError
from jinja2.runtime import Macro
from jinja2.utils import pass_environment

from tokloom.plugins.models.decoder.template_sandbox.budget import MAX_ITEMS, TemplateLimit
from tokloom.plugins.models.decoder.template_sandbox.methods import join as join_texts
from tokloom.plugins.models.decoder.template_sandbox.runtime import BoundedLoop, Runtime
from tokloom.plugins.models.decoder.template_sandbox.values import (
    LISTS,
    SIZED,
    VIEWS,
    Function,
    Group,
    Joiner,
    Method,
    Stream,
    Undefined,
)


def getter(runtime: Runtime, attribute: Any, default: Any = None) -> Callable[[Any], Any]:
    """Looks up `a.b.0` in an item."""
    parts: list[Any] = [attribute]
    if attribute is None:
        parts = []
    elif type(attribute) is str:
        parts = [int(part) if part.isdecimal() else part for part in runtime.invoke(attribute[:1000], "split", ".")]

    def get(item: Any) -> Any:
        runtime.spend(1 + 2 * len(parts))
        for part in parts:
            item = runtime.getitem(item, part)
            if default is not None and isinstance(item, Undefined):
                item = default
        return item

    return get


def _folded(runtime: Runtime, value: Any, case_sensitive: Any) -> Any:
    return runtime.invoke(value, "lower") if type(value) is str and not case_sensitive else value


def _keys(runtime: Runtime, items: list[Any], attribute: Any, case_sensitive: Any, default: Any = None) -> list[Any]:
    """What to sort by, after counting what the comparisons of a sort can cost."""
    names = attribute.split(",") if type(attribute) is str and len(attribute) < 1000 else [attribute]
    gets = [getter(runtime, name, default) for name in names]
    keys: list[Any] = []
    weight = 0
    for item in items:
        found = [_folded(runtime, get(item), case_sensitive) for get in gets]
        keys.append(found[0] if len(found) == 1 else found)
        weight += 1 + runtime.weight(keys[-1])
    runtime.spend(weight * len(items).bit_length() >> 2)
    return keys


def _sorted(runtime: Runtime, items: list[Any], keys: list[Any], reverse: Any) -> list[Any]:
    runtime.items(len(items), 48)
    order = sorted(range(len(items)), key=keys.__getitem__, reverse=bool(reverse))
    return [items[index] for index in order]


def _sort(
    runtime: Runtime, value: Any, /, reverse: Any = False, case_sensitive: Any = False, attribute: Any = None
) -> list[Any]:
    items = runtime.collect(value)
    return _sorted(runtime, items, _keys(runtime, items, attribute, case_sensitive), reverse)


def _dictsort(
    runtime: Runtime, value: Any, /, case_sensitive: Any = False, by: Any = "key", reverse: Any = False
) -> list[Any]:
    if type(value) is not dict or by not in ("key", "value"):
        raise FilterArgumentError('You can only sort a mapping, by either "key" or "value"')
    items = runtime.collect(value.items())
    return _sorted(runtime, items, _keys(runtime, items, 0 if by == "key" else 1, case_sensitive), reverse)


def _groupby(
    runtime: Runtime, value: Any, /, attribute: Any, default: Any = None, case_sensitive: Any = False
) -> list[Group]:
    items = runtime.collect(value)
    get = getter(runtime, attribute, default)
    keys = [_folded(runtime, get(item), case_sensitive) for item in items]
    weight = sum(1 + runtime.weight(key) for key in keys)
    runtime.spend(weight * len(items).bit_length() >> 2, 200 * len(items))
    groups: list[Group] = []
    last: Any = None
    for index in sorted(range(len(items)), key=keys.__getitem__):
        if groups and keys[index] == last:
            groups[-1].list.append(items[index])
        else:
            groups.append(Group(get(items[index]), [items[index]]))
            last = keys[index]
    return groups


def _unique(runtime: Runtime, value: Any, /, case_sensitive: Any = False, attribute: Any = None) -> Stream:
    get = getter(runtime, attribute)

    def items() -> Iterator[Any]:
        seen: set[Any] = set()
        for item in runtime.iterate(value):
            key = runtime.key(_folded(runtime, get(item), case_sensitive))
            runtime.spend(1, 64)
            if key not in seen:
                seen.add(key)
                yield item

    return runtime.stream(value, items())


def _extreme(largest: bool) -> Callable[..., Any]:
    def call(runtime: Runtime, value: Any, /, case_sensitive: Any = False, attribute: Any = None) -> Any:
        items = runtime.collect(value)
        if not items:
            return runtime.undefined("No aggregated item, sequence was empty.")
        get = getter(runtime, attribute)
        keys = [_folded(runtime, get(item), case_sensitive) for item in items]
        runtime.spend(sum(1 + runtime.weight(key) for key in keys))
        return items[(max if largest else min)(range(len(items)), key=keys.__getitem__)]

    return call


def _join(runtime: Runtime, value: Any, /, d: Any = "", attribute: Any = None) -> str:
    items = runtime.collect(value)
    if attribute is not None:
        get = getter(runtime, attribute)
        items = [get(item) for item in items]
    return join_texts(runtime, runtime.text(d), [runtime.text(item) for item in items])


def _sum(runtime: Runtime, value: Any, /, attribute: Any = None, start: Any = 0) -> Any:
    if type(start) is str:
        raise TypeError("sum() can't sum strings [use ''.join(seq) instead]")
    get = getter(runtime, attribute)
    total = start
    for item in runtime.iterate(value):
        runtime.spend(2)
        total = runtime.add(total, get(item))
    return total


def _first(runtime: Runtime, value: Any, /) -> Any:
    for item in runtime.iterate(value):
        return item
    return runtime.undefined("No first item, sequence was empty.")


def _last(runtime: Runtime, value: Any, /) -> Any:
    if type(value) not in SIZED and not isinstance(value, Undefined):
        raise TypeError(f"{type(value).__name__!r} object is not reversible")
    for item in reversed(value):
        return item
    return runtime.undefined("No last item, sequence was empty.")


def _list(runtime: Runtime, value: Any, /) -> list[Any]:
    return runtime.collect(value)


def _reverse(runtime: Runtime, value: Any, /) -> Any:
    if type(value) is str:
        return runtime.slice(value, None, None, -1)
    return runtime.stream(value, reversed(value if type(value) in LISTS else runtime.collect(value)))


def _items(runtime: Runtime, value: Any, /) -> Stream:
    if isinstance(value, Undefined):
        return runtime.stream(value, iter(()))
    if type(value) is not dict:
        raise TypeError("Can only get item pairs from a mapping.")
    return runtime.stream(value, iter(value.items()))


def _batch(runtime: Runtime, value: Any, /, linecount: int, fill_with: Any = None) -> Stream:
    if linecount > MAX_ITEMS:
        raise TemplateLimit("the length of a list", MAX_ITEMS)

    def rows() -> Iterator[list[Any]]:
        row: list[Any] = []
        for item in runtime.iterate(value):
            runtime.spend(1, 8)
            if len(row) == linecount:
                yield row
                row = []
                runtime.items(0)
            row.append(item)
        if row:
            if fill_with is not None and len(row) < linecount:
                runtime.items(linecount)
                row += [fill_with] * (linecount - len(row))
            yield row

    return runtime.stream(value, rows())


def _slice(runtime: Runtime, value: Any, /, slices: int, fill_with: Any = None) -> Stream:
    items = runtime.collect(value)
    if slices < 1:
        raise FilterArgumentError("slice takes at least one slice")
    each, longer = divmod(len(items), slices)

    def columns() -> Iterator[list[Any]]:
        start = 0
        for number in range(slices):
            end = start + each + (number < longer)
            column = runtime.slice(items, start, end, None)
            start = end
            if fill_with is not None and number >= longer:
                column.append(fill_with)
            yield column

    return runtime.stream(value, columns())


def _select(wanted: bool, attribute: bool) -> Callable[..., Any]:
    def call(runtime: Runtime, value: Any, /, *args: Any, **kwargs: Any) -> Stream:
        def items() -> Iterator[Any]:
            if not value:
                return
            if attribute and not args:
                raise FilterArgumentError("Missing parameter for attribute name")
            get = getter(runtime, args[0]) if attribute else None
            rest = args[1:] if attribute else args
            check = _test(runtime, rest[0]) if rest else None
            for item in runtime.iterate(value):
                runtime.spend(3)
                found = item if get is None else get(item)
                if bool(found if check is None else check(runtime, found, *rest[1:], **kwargs)) is wanted:
                    yield item

        return runtime.stream(value, items())

    return call


def _test(runtime: Runtime, name: Any) -> Callable[..., Any]:
    found = runtime.tests.get(name) if type(name) is str else None
    if found is None:
        raise TemplateRuntimeError(f"No test named {name[:40]!r}." if type(name) is str else "No such test.")
    return found


TABLE: Final[Mapping[str, Callable[..., Any]]] = {
    "batch": _batch,
    "dictsort": _dictsort,
    "first": _first,
    "groupby": _groupby,
    "items": _items,
    "join": _join,
    "last": _last,
    "list": _list,
    "max": _extreme(True),
    "min": _extreme(False),
    "reject": _select(False, attribute=False),
    "rejectattr": _select(False, attribute=True),
    "reverse": _reverse,
    "select": _select(True, attribute=False),
    "selectattr": _select(True, attribute=True),
    "slice": _slice,
    "sort": _sort,
    "sum": _sum,
    "unique": _unique,
}


def _plain(test: Callable[[Any], bool]) -> Callable[..., bool]:
    def call(runtime: Runtime, value: Any, /) -> bool:
        return test(value)

    return call


def _ordered(operator: str) -> Callable[..., bool]:
    def call(runtime: Runtime, value: Any, other: Any, /) -> bool:
        return runtime.order(operator, value, other)

    return call


def _equal(runtime: Runtime, value: Any, other: Any, /) -> bool:
    return runtime.eq(value, other)


def _unequal(runtime: Runtime, value: Any, other: Any, /) -> bool:
    return runtime.ne(value, other)


def _divisible(runtime: Runtime, value: Any, /, num: Any) -> bool:
    return runtime.eq(runtime.mod(value, num), 0)


def _sequence(value: Any) -> bool:
    return (type(value) in SIZED and type(value) not in VIEWS) or isinstance(value, Undefined)


def _iterable(value: Any) -> bool:
    return type(value) in SIZED or isinstance(value, Undefined | Stream | BoundedLoop)


def _callable(value: Any) -> bool:
    return isinstance(value, Method | Function | Macro | Joiner | BoundedLoop | Undefined)


def _cased(name: str) -> Callable[..., bool]:
    def call(runtime: Runtime, value: Any, /) -> bool:
        return runtime.invoke(runtime.text(value), name)  # type: ignore[no-any-return]

    return call


_TESTS: Final[Mapping[str, Callable[..., bool]]] = {
    **{
        name: _plain(cast("Callable[[Any], bool]", tests.TESTS[name]))
        for name in (
            "defined",
            "undefined",
            "none",
            "boolean",
            "false",
            "true",
            "integer",
            "float",
            "string",
            "mapping",
            "number",
        )
    },
    "odd": lambda runtime, value, /: runtime.eq(runtime.mod(value, 2), 1),
    "even": lambda runtime, value, /: runtime.eq(runtime.mod(value, 2), 0),
    "divisibleby": _divisible,
    "filter": lambda runtime, name, /: type(name) is str and name in runtime.filters,
    "test": lambda runtime, name, /: type(name) is str and name in runtime.tests,
    "sequence": _plain(_sequence),
    "iterable": _plain(_iterable),
    "callable": _plain(_callable),
    "escaped": _plain(lambda value: False),
    "lower": _cased("islower"),
    "upper": _cased("isupper"),
    "sameas": lambda runtime, value, /, other: value is other,
    "in": lambda runtime, value, /, seq: runtime.contains(value, seq),
    **dict.fromkeys(("==", "eq", "equalto"), _equal),
    **dict.fromkeys(("!=", "ne"), _unequal),
    **dict.fromkeys((">", "gt", "greaterthan"), _ordered("gt")),
    **dict.fromkeys((">=", "ge"), _ordered("gteq")),
    **dict.fromkeys(("<", "lt", "lessthan"), _ordered("lt")),
    **dict.fromkeys(("<=", "le"), _ordered("lteq")),
}
TESTS: Final[dict[str, Callable[..., bool]]] = {name: pass_environment(test) for name, test in _TESTS.items()}
