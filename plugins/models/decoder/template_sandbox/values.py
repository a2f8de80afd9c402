"""The kinds of values that a template can hold: plain data, and a few classes that say nothing about the process."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import attrs
from jinja2 import Undefined as Undefined
from jinja2.exceptions import SecurityError
from jinja2.runtime import Macro
from jinja2.utils import Namespace


class Group(NamedTuple):
    """A group of `groupby`."""

    grouper: object
    list: list[object]


@attrs.frozen(eq=False)
class Method:
    """A method of a value, not called yet."""

    owner: Any = attrs.field(repr=False)
    name: str
    function: Callable[..., Any] = attrs.field(repr=False)


@attrs.frozen(eq=False)
class Function:
    """A function that templates can call by its name."""

    name: str
    function: Callable[..., Any] = attrs.field(repr=False)


class Stream:
    """What a lazy filter gives: its items, once.

    Attributes:
        source: the items.
        depth: how many lazy filters stand behind each other.
    """

    __slots__ = ("depth", "source")

    def __init__(self, source: Iterator[Any], depth: int) -> None:
        self.source = source
        self.depth = depth

    def __iter__(self) -> Iterator[Any]:
        return self.source

    def __next__(self) -> Any:
        return next(self.source)

    def __repr__(self) -> str:
        return "<generator>"


class TemplateNamespace(Namespace):
    """`namespace()`: the one thing that a template can change. Names that begin with an underscore are refused."""

    def __init__(self, values: Mapping[str, object]) -> None:
        for name in values:
            _public(name)
        super().__init__(values)

    def __setitem__(self, name: str, value: Any) -> None:
        _public(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


class TemplateMacro(Macro):
    """A macro, named so that its type can be compared."""


class Cycler:
    """`cycler(a, b, …)`."""

    __slots__ = ("_items", "_position")

    def __init__(self, items: tuple[object, ...]) -> None:
        if not items:
            raise RuntimeError("at least one item has to be provided")
        self._items = items
        self._position = 0

    @property
    def current(self) -> object:
        """What `next` gives."""
        return self._items[self._position]

    def next(self) -> object:
        """This item; then the next is the current one."""
        found = self.current
        self._position = (self._position + 1) % len(self._items)
        return found

    def reset(self) -> None:
        """Begin again."""
        self._position = 0

    def __repr__(self) -> str:
        return "<Cycler>"


class Joiner:
    """`joiner(sep)`: nothing at the first call, then `sep`."""

    __slots__ = ("_sep", "_used")

    def __init__(self, sep: object) -> None:
        self._sep = sep
        self._used = False

    def __call__(self) -> object:
        used, self._used = self._used, True
        return self._sep if used else ""

    def __repr__(self) -> str:
        return "<Joiner>"


def _public(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"a namespace takes no name that begins with an underscore: {name[:40]!r}")


LISTS: Final = frozenset({list, tuple, Group})
VIEWS: Final = frozenset({type({}.keys()), type({}.values()), type({}.items())})
SIZED: Final = LISTS | VIEWS | {str, dict, range}
NUMBERS: Final = frozenset({int, float, bool, complex})
SCALARS: Final = NUMBERS | {str, type(None)}
