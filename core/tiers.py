"""Tiers: the core's side of connectors: matching, loading, storing, and exactly one end per job."""

import math
from collections.abc import Callable, Sequence

from attrs import define, field, frozen

from tokloom.core.composition import Composition, Part
from tokloom.core.faults import Faults
from tokloom.core.sequence import Sequence as CoreSequence
from tokloom.sdk import (
    Allocation,
    Block,
    CacheKey,
    ConnectorCaps,
    Done,
    Evicted,
    GroupId,
    Hit,
    Job,
    KVConnector,
    KVGroup,
    Lease,
    Match,
    PageId,
    Pending,
    SeqId,
    TierStats,
)

ConnectorPart = Part[KVConnector, ConnectorCaps]
BlockId = tuple[GroupId, CacheKey]


@frozen
class TierHit:
    """Tokens that tiers can supply beyond a local hit, and which connector holds each page."""

    tokens: int
    sources: tuple[tuple[GroupId, int, int], ...]


@define
class _Load:
    """One sequence's loads.

    Attributes:
        failed: blocks that the tier could not supply.
        declined: blocks of jobs that the tier ended early for reasons of its own: nothing is known against them.
    """

    seq: CoreSequence
    tokens: int
    jobs: set[int]
    failed: list[BlockId] = field(factory=list)
    declined: list[BlockId] = field(factory=list)


@define
class _Job:
    part: ConnectorPart
    blocks: tuple[Block, ...]
    lease: Lease
    load: _Load | None


@define
class _Store:
    """Published pages waiting until their operations have settled."""

    after: int
    blocks: list[Block]


class Tiers:
    """All connectors of an engine.

    Args:
        fence: gives the step after which nothing launched so far runs any more.
    """

    def __init__(self, composition: Composition, faults: Faults, fence: Callable[[], int]) -> None:
        self._parts = composition.connectors
        self._allocator = composition.allocator.plugin
        self._groups = composition.layout.groups
        self._faults = faults
        self._fence = fence
        self._next_job = 1
        self._jobs: dict[int, _Job] = {}
        self._stores: list[tuple[_Store, Lease]] = []
        self._loads: dict[SeqId, _Load] = {}
        self.loaded_tokens = 0

    @property
    def active(self) -> bool:
        """Whether any job or postponed store is outstanding."""
        return bool(self._jobs or self._stores)

    @property
    def empty(self) -> bool:
        """Whether there are no connectors at all."""
        return not self._parts

    def match(self, seq: CoreSequence, hit: Hit, limit: int) -> TierHit | Pending:
        """How far tiers could carry the prefix beyond a local hit, at most to `limit` tokens."""
        keys = seq.keys.groups
        start = min((hit.tokens // group.page_tokens for group in self._groups), default=0)
        held: dict[tuple[GroupId, int], int] = {}
        for index, part in enumerate(self._parts):
            answer = self._lookup(part, seq, keys, start)
            if isinstance(answer, Pending):
                return answer
            for group, pages in enumerate(answer.pages):
                for page in pages:
                    if (
                        isinstance(page, int)
                        and 0 <= page < len(keys[group])
                        and _wanted(seq, (group, keys[group][page]))
                    ):
                        held.setdefault((group, page), index)
        step = math.lcm(*(group.page_tokens for group in self._groups))
        tokens = limit // step * step
        while tokens > hit.tokens:
            needed = [
                (group.id, page)
                for group in self._groups
                for page in range(_first_page(group, hit.tokens, tokens), tokens // group.page_tokens)
            ]
            if all(place in held for place in needed):
                return TierHit(tokens, tuple((group, page, held[group, page]) for group, page in needed))
            tokens -= step
        return TierHit(hit.tokens, ())

    def _lookup(
        self, part: ConnectorPart, seq: CoreSequence, keys: Sequence[Sequence[CacheKey]], start: int
    ) -> Match | Pending:
        nothing = Match(tuple(frozenset() for _ in self._groups))
        if not self._healthy(part):
            return nothing
        try:
            answer = part.plugin.lookup(seq.view, keys, start)
        except Exception as error:
            self._faults.record(part.id, "lookup", error)
            return nothing
        if isinstance(answer, Pending):
            return answer
        if (
            not isinstance(answer, Match)
            or len(answer.pages) != len(self._groups)
            or not all(isinstance(pages, frozenset) for pages in answer.pages)
        ):
            self._faults.record(part.id, "lookup", f"invalid answer {answer!r}")
            return nothing
        return answer

    def _healthy(self, part: ConnectorPart) -> bool:
        try:
            return bool(part.plugin.health().ok)
        except Exception as error:
            self._faults.record(part.id, "health", error)
            return False

    def load(self, seq: CoreSequence, found: TierHit, allocation: Allocation) -> None:
        """Start loading into freshly allocated pages. The sequence waits until `poll` returns it."""
        pages = {(delta.group, delta.index): delta.page for delta in allocation.deltas if delta.pool == "main"}
        load = _Load(seq, found.tokens, set())
        self._loads[seq.seq_id] = load
        for index, part in enumerate(self._parts):
            blocks = tuple(
                Block(group, seq.keys.groups[group][page], pages[group, page])
                for group, page, source in found.sources
                if source == index
            )
            if not blocks:
                continue
            job_id = self._open(part, blocks, load)
            load.jobs.add(job_id)
            try:
                part.plugin.load(Job(job_id, seq.seq_id, blocks))
            except Exception as error:
                self._faults.record(part.id, "load", error)
                self._finish(Done(job_id, "failed", tuple(range(len(blocks)))))

    def _open(self, part: ConnectorPart, blocks: tuple[Block, ...], load: _Load | None) -> int:
        job_id, self._next_job = self._next_job, self._next_job + 1
        lease = self._allocator.lease_pages([(block.group, block.page) for block in blocks])
        self._jobs[job_id] = _Job(part, blocks, lease, load)
        return job_id

    def is_loading(self, seq_id: SeqId) -> bool:
        return seq_id in self._loads

    def cancel(self, seq_id: SeqId) -> None:
        """The sequence does not want its pages any more; they stay leased until each job's Done."""
        load = self._loads.pop(seq_id, None)
        if load is None:
            return
        for job_id in load.jobs:
            part = self._jobs[job_id].part
            try:
                part.plugin.cancel(job_id)
            except Exception as error:
                self._faults.record(part.id, "cancel", error)

    def poll(self) -> list[tuple[CoreSequence, int, bool]]:
        """Sequences whose loads are over: (sequence, tokens, whether all blocks arrived)."""
        for part in self._parts:
            try:
                done = list(part.plugin.poll())
            except Exception as error:
                self._faults.record(part.id, "poll", error)
                continue
            for end in done:
                known = isinstance(end, Done) and isinstance(end.job_id, int)
                job = self._jobs.get(end.job_id) if known else None
                if job is None or job.part is not part:
                    self._faults.record(part.id, "poll", f"{end!r} ends no live job of this connector")
                else:
                    self._finish(end)
        over = [load for load in self._loads.values() if not load.jobs]
        for load in over:
            del self._loads[load.seq.seq_id]
            load.seq.bad_blocks.update(load.failed)
            load.seq.declined_blocks.update(load.declined)
            if not (load.failed or load.declined):
                self.loaded_tokens += load.tokens - load.seq.num_computed
        return [(load.seq, load.tokens, not (load.failed or load.declined)) for load in over]

    def _finish(self, done: Done) -> None:
        job = self._jobs.pop(done.job_id)
        self._allocator.end_lease(job.lease, self._fence())
        if job.load is None:
            return
        job.load.jobs.discard(done.job_id)
        if done.status == "ok":
            return
        blocks = [(block.group, block.key) for block in job.blocks]
        if done.status == "cancelled":
            job.load.declined += blocks
        elif done.failed and _are_indices(done.failed, len(blocks)):
            job.load.failed += [blocks[i] for i in done.failed]
        else:
            job.load.failed += blocks
            if done.failed or done.status != "failed":
                self._faults.record(job.part.id, "poll", f"{done!r} ends a job of {len(blocks)} blocks")

    def published(self, pages: Sequence[tuple[GroupId, CacheKey, PageId]], after: int) -> None:
        """Pages became findable; tiers may keep a copy once step `after` has settled."""
        if not pages or not any(part.caps.stores for part in self._parts):
            return
        lease = self._allocator.lease_pages([(group, page) for group, _, page in pages])
        self._stores.append((_Store(after, [Block(*page) for page in pages]), lease))

    def settle(self, step: int) -> None:
        """Submit stores whose operations are over."""
        ready = [(store, lease) for store, lease in self._stores if store.after <= step]
        if not ready:
            return
        self._stores = [(store, lease) for store, lease in self._stores if store.after > step]
        for store, lease in ready:
            for part in self._parts:
                if part.caps.stores and self._healthy(part):
                    self._store(part, tuple(store.blocks))
            self._allocator.end_lease(lease, self._fence())

    def report(self) -> tuple[TierStats, ...]:
        """What the tiers say of themselves; nothing of one whose methods fail."""
        found = []
        for part in self._parts:
            try:
                found.append(TierStats(part.id, dict(part.plugin.stats()), tuple(part.plugin.events())))
            except Exception as error:
                self._faults.record(part.id, "stats, events", error)
                found.append(TierStats(part.id))
        return tuple(found)

    def forget(self, step: int) -> None:
        """Operations of `step` and later ones failed: drop stores that wait for them."""
        for store, lease in self._stores:
            if store.after >= step:
                self._allocator.end_lease(lease, self._fence())
        self._stores = [(store, lease) for store, lease in self._stores if store.after < step]

    def _store(self, part: ConnectorPart, blocks: tuple[Block, ...]) -> None:
        job_id = self._open(part, blocks, None)
        try:
            part.plugin.store(Job(job_id, -1, blocks))
        except Exception as error:
            self._faults.record(part.id, "store", error)
            self._finish(Done(job_id, "failed"))

    def evicted(self, evicted: Sequence[Evicted]) -> None:
        for part in self._parts:
            try:
                part.plugin.on_evict(evicted)
            except Exception as error:
                self._faults.record(part.id, "on_evict", error)

    def preempted(self, seq_id: SeqId) -> None:
        for part in self._parts:
            try:
                part.plugin.on_preempt(seq_id)
            except Exception as error:
                self._faults.record(part.id, "on_preempt", error)

    def finished(self, seq_id: SeqId) -> None:
        for part in self._parts:
            try:
                part.plugin.on_finish(seq_id)
            except Exception as error:
                self._faults.record(part.id, "on_finish", error)

    def close(self) -> None:
        """Close every connector, then account for every job's end."""
        for part in self._parts:
            try:
                part.plugin.close()
            except Exception as error:
                self._faults.record(part.id, "close", error)
        self.poll()
        for job_id in list(self._jobs):
            self._faults.record(self._jobs[job_id].part.id, "close", f"job {job_id} has no Done")
            self._finish(Done(job_id, "cancelled"))
        for _, lease in self._stores:
            self._allocator.end_lease(lease, self._fence())
        self._stores.clear()


def _is_index(value: object, size: int) -> bool:
    return isinstance(value, int) and 0 <= value < size


def _are_indices(values: object, size: int) -> bool:
    return isinstance(values, tuple) and all(_is_index(value, size) for value in values)


def _wanted(seq: CoreSequence, block: BlockId) -> bool:
    """Whether to ask a tier for a block: a failed one never again, a declined one not before the sequence has run."""
    return block not in seq.bad_blocks and block not in seq.declined_blocks


def _first_page(group: KVGroup, hit_tokens: int, tokens: int) -> int:
    """First page that a prefix of `tokens` needs beyond a hit: what a window cannot see any more is not loaded."""
    first = hit_tokens // group.page_tokens
    if group.window is not None:
        first = max(first, (tokens - group.window + 1) // group.page_tokens)
    return first
