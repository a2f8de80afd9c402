"""What one sequence holds: a row has a table per group.

Regions of a table, by page index. A group without an open pool has one pool, and `sealed` stays 0:

    main  | slid out (-1) | published | private, may be written ............... |
          0             start     published                                  len(main)

A group with an open pool writes open pages and seals them into main pages from the left:

    main  | slid out (-1) | sealed: published or private |
    open  | -1 ........................................ | private, written | ........ |
          0             start                         sealed             len(open)
    reserve: main pages taken ahead, one for each open page that commit may have to seal
"""

from typing import NamedTuple

from attrs import define, field

from tokloom.plugins.kvcache.allocators.paged.index import PrefixIndex, first_visible
from tokloom.plugins.kvcache.allocators.paged.pool import NONE, PagePool
from tokloom.sdk import KVGroup, PageId, Pool, Scope


class Part(NamedTuple):
    """A sequence's entries in one pool."""

    pool: PagePool
    name: Pool
    entries: list[PageId]


def pad(entries: list[PageId], length: int) -> None:
    """Make `entries` at least `length` long."""
    if len(entries) < length:
        entries.extend([NONE] * (length - len(entries)))


def set_entry(entries: list[PageId], index: int, page: PageId) -> None:
    """Write an entry; the entries skipped to reach it have no page."""
    pad(entries, index + 1)
    entries[index] = page


class Group:
    """One KV group: its geometry, its pools and its index."""

    def __init__(self, spec: KVGroup, main_pages: int, open_pages: int) -> None:
        self.id = spec.id
        self.page_tokens = spec.main.page_tokens
        self.window = spec.window
        self.residual = spec.residual_tokens
        self.main = PagePool(main_pages)
        self.open = PagePool(open_pages) if spec.open is not None else None
        self.index = PrefixIndex(self.main, chained=spec.window is None)
        self.write: PagePool = self.open if self.open is not None else self.main
        self.write_name: Pool = "open" if self.open is not None else "main"

    def pools(self) -> list[PagePool]:
        """Main, then open."""
        return [self.main] if self.open is None else [self.main, self.open]

    def parts(self, table: "Table") -> list[Part]:
        """The table's entries per pool; the last part is the one that spans write to."""
        main = Part(self.main, "main", table.main)
        if self.open is None or table.open is None:
            return [main]
        return [main, Part(self.open, "open", table.open)]

    def pages(self, tokens: int) -> int:
        """Pages that cover `tokens` positions."""
        return -(-tokens // self.page_tokens)

    def first_visible(self, tokens: int) -> int:
        """Index of the first page that a query at position `tokens` can see."""
        return first_visible(tokens, self.window, self.page_tokens)

    def sealable(self, tokens: int) -> int:
        """How many leading pages are full and followed by enough tokens to be sealed (or, without seals, full)."""
        return max(0, tokens - self.residual) // self.page_tokens

    def needed_ever(self, tokens: int) -> list[int]:
        """Pages per pool that a lone sequence holds at the most while it grows to `tokens` one token at a time.

        A window group holds `ceil((window - 1) / page) + 1`. An open pool holds one page being sealed and the
        residual; a page that slides out before it can be sealed needs no main page.
        """
        size, window, all_pages = self.page_tokens, self.window, self.pages(tokens)
        visible = all_pages if window is None else min(all_pages, -(-(window - 1) // size) + 1)
        if self.open is None:
            return [visible]
        sealed = self.sealable(tokens)
        if window is not None:
            sealed = min(sealed, max(0, -(-(window - self.residual) // size)))
        return [sealed, min(visible, 1 + -(-self.residual // size))]


@define(slots=True)
class Table:
    """The pages of one sequence in one group; -1 where it has none. See the drawing above."""

    main: list[PageId] = field(factory=list)
    open: list[PageId] | None = None
    start: int = 0
    sealed: int = 0
    published: int = 0
    reserve: list[PageId] = field(factory=list)

    @property
    def write(self) -> list[PageId]:
        """The table that spans write to."""
        return self.main if self.open is None else self.open


@define(slots=True)
class Row:
    """All tables of a sequence.

    Attributes:
        scope: of its request; remembered for the pages it publishes.
        stop: one past the last position that has a page.
        tainted: its scope was invalidated while it lived. It keeps its pages and publishes nothing more, because what
            it computes from now on depends on the pages that were forgotten.
    """

    tables: list[Table]
    scope: Scope
    stop: int = 0
    tainted: bool = False
