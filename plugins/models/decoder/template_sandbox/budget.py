"""Budget: what one rendering may still do, and the bounds on every value that it makes."""

from collections.abc import Iterable
from sys import getsizeof
from typing import Final, NoReturn

from jinja2.runtime import Macro

from tokloom.plugins.models.decoder.template_sandbox.values import LISTS, VIEWS, Undefined

#: characters of a template's source
MAX_SOURCE: Final = 200_000
#: nodes of its syntax tree
MAX_NODES: Final = 30_000
#: nodes times the loops and macros around each, and names times branches: the compiler reads them so often
MAX_COMPILING: Final = 1_000_000
#: levels of its syntax tree
MAX_SYNTAX_DEPTH: Final = 150
#: steps of one rendering. A step is about one node of the tree, evaluated once: 50 to 100 nanoseconds
MAX_WORK: Final = 10_000_000
#: bytes that one rendering may make, all values together, whether or not they are still in use
MAX_MEMORY: Final = 256 * 1024**2
#: characters of one text, and of the result
MAX_TEXT: Final = 4_000_000
#: items of one list, tuple or dictionary
MAX_ITEMS: Final = 250_000
#: bits of one integer; the largest finite float has 1024
MAX_BITS: Final = 1024
#: levels of lists and dictionaries within each other, where something looks at all of them
MAX_DATA_DEPTH: Final = 64
#: macros and recursive loops within each other
MAX_CALLS: Final = 40
#: lazy filters within each other
MAX_LAZY: Final = 32
#: width and precision in formats
MAX_WIDTH: Final = 9999


class TemplateLimit(Exception):
    """A template would go beyond a bound.

    Attributes:
        bound: which bound: work, memory, text, …
        limit: the figure that it would pass.
    """

    def __init__(self, bound: str, limit: int) -> None:
        super().__init__(f"goes beyond the bound on {bound} ({limit:,})")
        self.bound = bound
        self.limit = limit


class TemplateFailure(Exception):
    """A template is wrong, or refuses its variables. The text is short enough to be shown."""


class Budget:
    """Counts down. Everything is counted, nothing is timed: the same template and variables always end alike."""

    __slots__ = ("calls", "memory", "work")

    def __init__(self) -> None:
        self.work = MAX_WORK
        self.memory = MAX_MEMORY
        self.calls = MAX_CALLS

    def spend(self, work: int, memory: int = 0) -> None:
        """Count steps and bytes."""
        self.work -= work
        self.memory -= memory
        if self.work < 0 or self.memory < 0:
            self._exhausted()

    def _exhausted(self) -> NoReturn:
        if self.work < 0:
            raise TemplateLimit("work", MAX_WORK)
        raise TemplateLimit("memory", MAX_MEMORY)

    def scan(self, length: int, needle: int, *, backwards: bool = False) -> None:
        """Count a search for a text of `needle` characters; the worst case is the product of the lengths.

        From 30,000 characters on, CPython searches forwards in linear time unless the needle has under 6.
        """
        needle = max(needle, 1)
        if length < 30_000 or backwards:
            self.spend(length * needle >> 7)
        else:
            self.spend((length * min(needle, 16) + needle) >> 7)

    def room(self, length: int) -> None:
        """Refuse to make a text of so many characters."""
        if length > MAX_TEXT:
            raise TemplateLimit("the length of a text", MAX_TEXT)

    def made(self, text: str) -> str:
        """Count a text that was made."""
        length = len(text)
        if length > MAX_TEXT:
            raise TemplateLimit("the length of a text", MAX_TEXT)
        self.work -= length >> 8
        self.memory -= getsizeof(text) if length > 100 else 200
        if self.work < 0 or self.memory < 0:
            self._exhausted()
        return text

    def items(self, count: int, each: int = 8) -> None:
        """Count a list of so many items of so many bytes each, before it is made."""
        if count > MAX_ITEMS:
            raise TemplateLimit("the length of a list", MAX_ITEMS)
        self.spend(1 + (count >> 3), 56 + count * each)

    def integer(self, value: int) -> int:
        """An integer that is not too large."""
        if value.bit_length() > MAX_BITS:
            raise TemplateLimit("the bits of an integer", MAX_BITS)
        return value

    def measure(self, value: object, depth: int = 0) -> int:
        """An upper bound on the characters of `repr(value)`.

        Counts each item as often as it would be visited, so lists that share their parts cost what they would cost to
        print, compare or hash. Lists and dictionaries have no cycles: nothing that a template can do changes one.
        """
        kind = type(value)
        if kind is str:
            text: str = value  # type: ignore[assignment]
            self.spend(2 + (len(text) >> 6))
            return len(text) * (2 if text.isprintable() else 10) + 2
        if kind is dict:
            self._deeper(depth)
            table: dict[object, object] = value  # type: ignore[assignment]
            return 2 + sum(self.measure(k, depth + 1) + self.measure(v, depth + 1) + 4 for k, v in table.items())
        if kind in LISTS or kind in VIEWS:
            self._deeper(depth)
            items: Iterable[object] = value  # type: ignore[assignment]
            return 16 + sum(self.measure(item, depth + 1) + 2 for item in items)
        self.spend(2)
        if kind is int:
            return self.integer(value).bit_length() // 3 + 3  # type: ignore[arg-type]
        return 80 + len(value.name or "") if isinstance(value, Macro) else 80

    def weight(self, value: object) -> int:
        """The steps that looking at all of `value` once would take; counts them too."""
        before = self.work
        self.measure(value)
        return before - self.work

    def text(self, value: object) -> str:
        """`str(value)`, as output and `~` make it."""
        kind = type(value)
        if kind is str:
            return value  # type: ignore[return-value]
        if isinstance(value, Undefined):
            return ""
        self.room(self.measure(value))
        return self.made(str(value))

    def repr(self, value: object) -> str:
        """`repr(value)`."""
        self.room(self.measure(value))
        return self.made(repr(value))

    def _deeper(self, depth: int) -> None:
        self.spend(3)
        if depth >= MAX_DATA_DEPTH:
            raise TemplateLimit("the depth of data", MAX_DATA_DEPTH)
