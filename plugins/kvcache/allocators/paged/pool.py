r"""PagePool: the pages of one pool, who holds each, and when it may be taken again.

Every page is in exactly one region; `take` serves from the left two:

    free ----------- cached ---------- fenced ---------- held
    no content       published,        no holder, but    referenced by rows or leases, or
    anyone needs     found by key,     a launched step   pinned by an operation that has
                     LRU first out     may touch it      not been drained, or `kept`

         take              take                 settle            drop
    free ----> held   cached ----> held   fenced -----> free   held ----> fenced (its fence has not settled)
                           (evicted)            \----> cached       \---> free   (never published)
                                                                     \--> cached (published)

`kept`: a published page without a holder whose published child in the hash chain is not cached. While a child may be
used its parent stays, so the pages of a chain become cached child first, and the LRU head is always a leaf.
"""

from collections import OrderedDict
from heapq import heappop, heappush
from typing import Final

from tokloom.sdk import CacheKey, PageId, PluginFault

#: a fence that has settled before the first step
NEVER: Final = -1
#: no page
NONE: Final = -1

SUBJECT: Final = "allocator.paged"


def fault(invariant: str, message: str) -> PluginFault:
    """The error for a broken invariant or a caller that breaks the call order."""
    return PluginFault(
        f"{invariant}: {message}",
        subject=SUBJECT,
        remedy="State and caller disagree: report it with the calls that led here",
    )


class PagePool:
    """Reference counts, fences and the order of reuse. Ids run from 0 to `size - 1`. All calls are O(1) amortised."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.settled = NEVER
        self.refs = [0] * size
        self.holds = [0] * size
        self.fences = [NEVER] * size
        self.keys: list[CacheKey | None] = [None] * size
        self.parents = [NONE] * size
        self.busy = [0] * size  # published children that are not cached
        self.free = list(range(size - 1, -1, -1))
        self.cached: OrderedDict[PageId, None] = OrderedDict()
        self.fenced: set[PageId] = set()
        self._waiting: dict[int, list[PageId]] = {}
        self._fence_heap: list[int] = []

    @property
    def available(self) -> int:
        """Pages that `take` can give at once."""
        return len(self.free) + len(self.cached)

    @property
    def held(self) -> int:
        """Pages in the rightmost region."""
        return self.size - len(self.free) - len(self.cached) - len(self.fenced)

    def take(self) -> tuple[PageId, CacheKey | None]:
        """A page with one reference, and the key it could be found by until now. The caller checks `available`."""
        if self.free:
            page, key = self.free.pop(), None
        else:
            page, _ = self.cached.popitem(last=False)
            key = self.keys[page]
            self.keys[page], self.parents[page] = None, NONE
        self.refs[page] = 1
        return page, key

    def pin(self, page: PageId) -> None:
        """Add a reference to a page that is held or published."""
        self.refs[page] += 1
        if self.refs[page] == 1:
            self._disturb(page)

    def drop(self, page: PageId, fence: int) -> None:
        """Remove a reference; its holder may be read by launched steps up to `fence`."""
        if self.refs[page] <= 0:
            raise fault("KV-02", f"page {page} is dropped more often than it is held")
        self.refs[page] -= 1
        self.fences[page] = max(self.fences[page], fence)
        self._rest(page)

    def hold(self, page: PageId) -> None:
        """An emitted operation reads or writes the page."""
        self.holds[page] += 1
        self._disturb(page)

    def unhold(self, page: PageId, step: int) -> None:
        """The operation runs in `step`."""
        self.holds[page] -= 1
        self.fences[page] = max(self.fences[page], step)
        self._rest(page)

    def settle(self, step: int) -> None:
        """Every step up to `step` has finished."""
        if step <= self.settled:
            return
        self.settled = step
        while self._fence_heap and self._fence_heap[0] <= step:
            for page in self._waiting.pop(heappop(self._fence_heap)):
                if page in self.fenced and self.fences[page] <= step:
                    self.fenced.discard(page)
                    self._rest(page)

    def link(self, page: PageId, key: CacheKey, parent: PageId) -> None:
        """The held `page` is published as a child of `parent`."""
        self.keys[page], self.parents[page] = key, parent
        if parent != NONE:
            self.busy[parent] += 1
            self._disturb(parent)

    def unlink(self, page: PageId) -> None:
        """The page is no longer published. Its own children are the caller's business (`orphan`)."""
        self.keys[page] = None
        if page in self.cached:
            del self.cached[page]
            self.parents[page] = NONE
            self.free.append(page)
        else:
            self.orphan(page)

    def orphan(self, page: PageId) -> None:
        """Cut the link from `page` to its parent."""
        parent, self.parents[page] = self.parents[page], NONE
        if parent != NONE and page not in self.cached:
            self.busy[parent] -= 1
            self._rest(parent)

    def _disturb(self, page: PageId) -> None:
        """The page stops being cached or fenced, and with it every ancestor that was cached."""
        while page in self.cached:
            del self.cached[page]
            page = self.parents[page]
            if page == NONE:
                return
            self.busy[page] += 1
        self.fenced.discard(page)

    def _rest(self, page: PageId) -> None:
        """If nothing needs the page any more it becomes fenced, free or cached; then perhaps its parent does."""
        while page != NONE and not (self.refs[page] or self.holds[page] or self.busy[page]):
            fence = self.fences[page]
            if fence > self.settled:
                self._await(page, fence)
                return
            if self.keys[page] is None:
                self.free.append(page)
                return
            self.cached[page] = None
            page = self.parents[page]
            if page != NONE:
                self.busy[page] -= 1

    def _await(self, page: PageId, fence: int) -> None:
        self.fenced.add(page)
        if fence not in self._waiting:
            self._waiting[fence] = []
            heappush(self._fence_heap, fence)
        self._waiting[fence].append(page)
