"""PrefixIndex: which published page has which key. `longest_hit`: the longest prefix that every group can supply."""

from collections.abc import Sequence
from math import lcm

from tokloom.plugins.kvcache.allocators.paged.pool import NONE, PagePool
from tokloom.sdk import CacheKey, PageId, Scope


class PrefixIndex:
    """Keys of one group's main pool.

    The core chains keys (a key covers its ancestors), so equal keys mean equal prefixes. In a group without a window
    (`chained`) a page is of use only with its ancestors and is linked to its parent; a window group uses any
    page alone.
    """

    def __init__(self, pool: PagePool, *, chained: bool) -> None:
        self.pool = pool
        self.chained = chained
        self.pages: dict[CacheKey, PageId] = {}
        self.scopes: list[Scope | None] = [None] * pool.size
        self._stamps = [0] * pool.size

    def find(self, key: CacheKey) -> PageId:
        """The page published under `key`, or NONE."""
        return self.pages.get(key, NONE)

    def resident(self, keys: Sequence[CacheKey]) -> list[PageId]:
        """The page of each index: up to the first gap if chained, else up to the last page, with NONE in gaps."""
        found: list[PageId] = []
        for key in keys:
            page = self.pages.get(key, NONE)
            if page == NONE and self.chained:
                break
            found.append(page)
        while found and found[-1] == NONE:
            found.pop()
        return found

    def current(self, page: PageId, receipt: int) -> bool:
        """Whether `page` is still published under the key it had when the clock showed `receipt`."""
        return 0 <= page < self.pool.size and self.pool.keys[page] is not None and self._stamps[page] <= receipt

    def publish(self, page: PageId, key: CacheKey, parent: PageId, scope: Scope, stamp: int) -> None:
        """Make a held page findable. `key` must be free, `stamp` the time on the allocator's clock."""
        self.pages[key] = page
        self.scopes[page] = scope
        self._stamps[page] = stamp
        self.pool.link(page, key, parent if self.chained else NONE)

    def forget(self, key: CacheKey) -> None:
        """The page of `key` was evicted."""
        self.scopes[self.pages.pop(key)] = None

    def invalidate(self, scope: Scope | None) -> int:
        """Unpublish all pages, or those of one scope. O(published pages)."""
        gone = {key: page for key, page in self.pages.items() if scope is None or self.scopes[page] == scope}
        for key, page in gone.items():
            del self.pages[key]
            self.scopes[page] = None
            self.pool.unlink(page)
        dead = set(gone.values())
        for page in self.pages.values():
            if self.pool.parents[page] in dead:
                self.pool.orphan(page)
        return len(gone)


def first_visible(tokens: int, window: int | None, page_tokens: int) -> int:
    """Index of the first page that a query at position `tokens` can see."""
    return 0 if window is None else max(0, tokens - window + 1) // page_tokens


def longest_hit(
    found: Sequence[Sequence[PageId]], page_tokens: Sequence[int], windows: Sequence[int | None], max_tokens: int
) -> int:
    """The largest page-aligned length whose needed pages every group has.

    A group without a window needs all pages below the length; a window group needs those that the first query after
    the hit still sees. Each miss rules out every length up to the page that was missing, so the search only descends.
    """
    align = lcm(*page_tokens)
    bound = min((len(pages) * size for pages, size in zip(found, page_tokens, strict=True)), default=0)
    tokens = min(max_tokens, bound) // align * align
    group = 0
    while tokens > 0 and group < len(found):
        size, window = page_tokens[group], windows[group]
        missing = NONE
        if window is not None:
            needed = range(tokens // size - 1, first_visible(tokens, window, size) - 1, -1)
            missing = next((index for index in needed if found[group][index] == NONE), NONE)
        if missing == NONE:
            group += 1
        else:
            tokens, group = missing * size // align * align, 0
    return max(tokens, 0)
