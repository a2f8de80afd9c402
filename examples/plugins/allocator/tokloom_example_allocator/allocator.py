"""ExclusiveAllocator: no sharing, no cache, no eviction: each sequence's pages are its own."""

from collections.abc import Callable, Sequence

from tokloom.sdk import (
    Allocation,
    AllocatorStats,
    CacheKey,
    Context,
    Hit,
    Lease,
    NoOptions,
    NoSpace,
    PageOp,
    PluginFault,
    Published,
    Quote,
    Scope,
    SeqId,
    SequenceView,
    SlotRequest,
    TableDelta,
)


class ExclusiveAllocator:
    """Implements `tokloom.sdk.KVAllocator` in the simplest way that is right. Forks and leases are refused: without
    a prefix cache and tiers nobody needs them."""

    def __init__(self, options: NoOptions, context: Context) -> None:
        self._layout = context.layout
        self._free = [set(range(pages)) for pages in self._layout.main_pages]
        self._held: dict[SeqId, list[dict[int, int]]] = {}
        self._fenced: list[tuple[int, int, int]] = []
        self._settled = -1

    def lookup(self, seq: SequenceView, keys: Sequence[Sequence[CacheKey]], max_tokens: int) -> Hit:
        return Hit(0, tuple(() for _ in self._layout.groups))

    def _missing(self, seq_id: SeqId, stop: int) -> list[list[int]]:
        held = self._held.get(seq_id) or [{} for _ in self._layout.groups]
        missing = []
        for group, own in zip(self._layout.groups, held, strict=True):
            first = max(own, default=-1) + 1
            missing.append(list(range(first, -(-stop // group.page_tokens))))
        return missing

    def quote(self, seq: SequenceView, want: SlotRequest, hit: Hit) -> Quote:
        missing = self._missing(seq.seq_id, want.stop)
        worst = min(range(len(missing)), key=lambda g: len(self._free[g]) - len(missing[g]))
        ever = max(-(-want.tokens // group.page_tokens) for group in self._layout.groups)
        total = min(self._layout.main_pages)
        fits = all(len(pages) <= len(free) for pages, free in zip(missing, self._free, strict=True))
        return Quote(len(missing[worst]), 0, len(self._free[worst]), total, ever, fits, ever <= total)

    def allocate(self, seq: SequenceView, want: SlotRequest, hit: Hit) -> Allocation | NoSpace:
        missing = self._missing(seq.seq_id, want.stop)
        short = max(len(pages) - len(free) for pages, free in zip(missing, self._free, strict=True))
        if short > 0:
            return NoSpace(short)
        held = self._held.setdefault(seq.seq_id, [{} for _ in self._layout.groups])
        deltas = []
        for group, pages in enumerate(missing):
            for index in pages:
                page = held[group][index] = self._free[group].pop()
                deltas.append(TableDelta(seq.seq_id, group, "main", index, page))
        return Allocation(tuple(deltas))

    def fork(self, parent: SeqId, child: SeqId, tokens: int) -> Allocation | NoSpace:
        return NoSpace(1)

    def publish(self, seq: SequenceView, tokens: int, keys: Sequence[Sequence[CacheKey]]) -> Published:
        return Published()

    def _drop(self, seq_id: SeqId, group: int, index: int, fence: int) -> TableDelta:
        self._fenced.append((fence, group, self._held[seq_id][group].pop(index)))
        return TableDelta(seq_id, group, "main", index, -1)

    def truncate(self, seq_id: SeqId, tokens: int, fence: int) -> tuple[TableDelta, ...]:
        return self._drop_where(seq_id, fence, lambda group, index: index * group >= tokens)

    def slide(self, seq_id: SeqId, tokens: int, fence: int) -> tuple[TableDelta, ...]:
        deltas: list[TableDelta] = []
        for group in self._layout.groups:
            if group.window is not None and seq_id in self._held:
                low = tokens - group.window + 1
                own = self._held[seq_id][group.id]
                gone = [index for index in own if (index + 1) * group.page_tokens <= low]
                deltas += [self._drop(seq_id, group.id, index, fence) for index in gone]
        self.settle(self._settled)
        return tuple(deltas)

    def _drop_where(self, seq_id: SeqId, fence: int, gone: Callable[[int, int], bool]) -> tuple[TableDelta, ...]:
        deltas: list[TableDelta] = []
        for group in self._layout.groups:
            own = self._held.get(seq_id, [{} for _ in self._layout.groups])[group.id]
            pages = [index for index in own if gone(group.page_tokens, index)]
            deltas += [self._drop(seq_id, group.id, index, fence) for index in pages]
        self.settle(self._settled)
        return tuple(deltas)

    def release(self, seq_id: SeqId, fence: int) -> int:
        count = len(self._drop_where(seq_id, fence, lambda group, index: True))
        self._held.pop(seq_id, None)
        return count

    def lease(self, seq_id: SeqId, start: int, stop: int) -> Lease:
        raise PluginFault("leases are not supported", subject="allocator.exclusive")

    def lease_pages(self, pages: Sequence[tuple[int, int]]) -> Lease:
        raise PluginFault("leases are not supported", subject="allocator.exclusive")

    def end_lease(self, lease: Lease, fence: int) -> None:
        raise PluginFault("leases are not supported", subject="allocator.exclusive")

    def reclaimable(self, seq_id: SeqId) -> int:
        return sum(len(own) for own in self._held.get(seq_id, ()))

    def settle(self, step: int) -> None:
        self._settled = max(self._settled, step)
        for _, group, page in [entry for entry in self._fenced if entry[0] <= self._settled]:
            self._free[group].add(page)
        self._fenced = [entry for entry in self._fenced if entry[0] > self._settled]

    def drain(self, step: int) -> tuple[PageOp, ...]:
        return ()

    def pending_ops(self) -> bool:
        return False

    def invalidate(self, scope: Scope | None) -> int:
        return 0

    def stats(self) -> AllocatorStats:
        held = sum(len(own) for groups in self._held.values() for own in groups)
        free = sum(len(pages) for pages in self._free)
        return AllocatorStats(sum(self._layout.main_pages), free, 0, held, len(self._fenced))

    def audit(self) -> None:
        stats = self.stats()
        if stats.free_pages + stats.held_pages + stats.fenced_pages != stats.total_pages:
            raise PluginFault("KV-01: pages were lost", subject="allocator.exclusive")
