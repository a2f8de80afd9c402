"""What `publish` does to one table: deduplicate, seal, make findable."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokloom.plugins.kvcache.allocators.paged.pool import NONE
from tokloom.plugins.kvcache.allocators.paged.tables import Group, Table, set_entry
from tokloom.sdk import CacheKey, GroupId, PageId, Published, Scope, SealPage, SeqId, TableDelta

if TYPE_CHECKING:
    from tokloom.plugins.kvcache.allocators.paged.allocator import PagedAllocator


class Publication:
    """Collects the effects of one `publish` call over all groups.

    A page given up here may still be read by the steps in flight, and `publish` has no fence: the latest drained step
    bounds them, because every step launched with the old table was drained before.
    """

    def __init__(self, allocator: "PagedAllocator") -> None:
        self._allocator = allocator
        self._pages: list[tuple[GroupId, CacheKey, PageId]] = []
        self._deltas: list[TableDelta] = []

    def result(self) -> Published:
        """What happened."""
        return Published(tuple(self._pages), tuple(self._deltas))

    def publish(
        self, seq_id: SeqId, group: Group, table: Table, scope: Scope, tokens: int, keys: Sequence[CacheKey]
    ) -> None:
        """Make the full pages below `tokens` findable, in order, as far as they have keys and are or can be sealed."""
        last = min(tokens // group.page_tokens, len(keys))
        for index in range(table.published, last):
            sealed = group.open is None or index < table.sealed
            entries = table.main if sealed else table.write
            if index >= len(entries) or (not sealed and index >= group.sealable(tokens)):
                break
            page, found = entries[index], group.index.find(keys[index])
            if page != NONE and not (sealed and found == page):
                if found != NONE:
                    self._replace(seq_id, group, table, index, found, sealed=sealed)
                elif sealed or self._seal(seq_id, group, table, index):
                    self._make_findable(group, table, index, keys[index], scope)
                else:
                    break
            table.published = index + 1

    def seal_rest(self, seq_id: SeqId, group: Group, table: Table, tokens: int) -> None:
        """Seal the pages that may be sealed but have no key, or must not be found."""
        for index in range(table.sealed, min(group.sealable(tokens), len(table.write))):
            if table.write[index] != NONE and not self._seal(seq_id, group, table, index):
                break
            table.sealed = index + 1

    def _replace(self, seq_id: SeqId, group: Group, table: Table, index: int, found: PageId, *, sealed: bool) -> None:
        """An equal page is published already: use it and give up the sequence's own."""
        group.main.pin(found)
        entries = table.main if sealed else table.write
        (group.main if sealed else group.write).drop(entries[index], self._allocator.drained)
        entries[index] = NONE
        set_entry(table.main, index, found)
        self._deltas.append(TableDelta(seq_id, group.id, "main", index, found))
        if not sealed:
            table.sealed = index + 1
            self._deltas.append(TableDelta(seq_id, group.id, "open", index, NONE))

    def _seal(self, seq_id: SeqId, group: Group, table: Table, index: int) -> bool:
        """Encode an open page into a reserved main page. A fork that has not allocated yet has none and waits."""
        if not table.reserve:
            return False
        src, dst = table.write[index], table.reserve.pop()
        self._allocator.emit(SealPage(group.id, src, dst), (group.write, src), (group.main, dst))
        self._allocator.seals += 1
        group.write.drop(src, self._allocator.drained)
        table.write[index] = NONE
        set_entry(table.main, index, dst)
        table.sealed = index + 1
        self._deltas.append(TableDelta(seq_id, group.id, "main", index, dst))
        self._deltas.append(TableDelta(seq_id, group.id, "open", index, NONE))
        return True

    def _make_findable(self, group: Group, table: Table, index: int, key: CacheKey, scope: Scope) -> None:
        page = table.main[index]
        if group.main.keys[page] is not None:
            return  # published before under another key: its content cannot be two things
        parent = table.main[index - 1] if index else NONE
        if parent != NONE and group.main.keys[parent] is None:
            parent = NONE
        self._allocator.clock += 1
        group.index.publish(page, key, parent, scope, self._allocator.clock)
        self._pages.append((group.id, key, page))
