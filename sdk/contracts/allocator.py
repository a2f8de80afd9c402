"""KVAllocator: owner of page tables, sharing and eviction. It never sees a tensor."""

from collections.abc import Sequence
from typing import Protocol

from attrs import frozen

from tokloom.sdk.values.kv import (
    Allocation,
    AllocatorStats,
    CacheKey,
    GroupId,
    Hit,
    NoSpace,
    PageOp,
    Published,
    Quote,
    SlotRequest,
    TableDelta,
)
from tokloom.sdk.values.requests import Scope, SeqId, SequenceView


@frozen(kw_only=True)
class AllocatorCaps:
    """What an allocator can do; the composer refuses layouts that need more.

    Attributes:
        max_groups: KV groups it manages; 0 means any number.
        windows: groups with a sliding window (it implements `slide` and window hits).
        seals: groups with an open pool.
        prefix_reuse: `lookup` may return hits.
    """

    max_groups: int = 0
    windows: bool = False
    seals: bool = False
    prefix_reuse: bool = False


@frozen
class Lease:
    """A reference that keeps pages alive for someone outside the sequence, until `end_lease`."""

    lease_id: int
    pages: tuple[tuple[GroupId, int], ...]


class KVAllocator(Protocol):
    """Who owns what: the allocator owns every page and every table entry; the core forwards table deltas to the runner
    in the order they were returned, and executes `drain`ed operations in emission order before the forward of the same
    step. Reference counts are the allocator's. Lengths and positions are in tokens. An exception out of any method
    stops the engine: page ownership is lost then.

    Call order per step: `settle` of finished steps; `lookup` and `quote` for waiting sequences; `allocate` for every
    planned span; `drain` once, when the plan is frozen, also for plans without operations. At commit, per sequence:
    `fork`, `truncate` of rejected rows, `publish`, `slide`; for one that ends `publish`, then `release`. A preemption,
    an abort or a failed load is a `release` at any time.

    A fence is the step id (or transfer id on the same counter) after which nobody launched can touch the page. A page
    whose last holder released it with fence f returns to the free or evictable pages when every step up to f has
    settled; the largest fence of all holders counts. Operations hold their source and destination until the step that
    drained them settles.
    """

    def lookup(self, seq: SequenceView, keys: Sequence[Sequence[CacheKey]], max_tokens: int) -> Hit:
        """Longest resident prefix, whole pages in every group. Pure: twice in a row gives the same and moves no
        counter.

        Args:
            keys: per group, the keys of the full pages of `seq.tokens`, in order; the key covers scope and ancestors.
                A group with `key_lookahead` has one only where the tokens it looks at are known too.
            max_tokens: the hit is at most this long (the core passes `len(tokens) - 1`, and 0 where a prompt is
                scored).
        """
        ...

    def quote(self, seq: SequenceView, want: SlotRequest, hit: Hit) -> Quote:
        """What `allocate` with the same arguments would take. Pure."""
        ...

    def allocate(self, seq: SequenceView, want: SlotRequest, hit: Hit) -> Allocation | NoSpace:
        """Make positions below `want.stop` addressable. Atomic: NoSpace leaves the state identical.

        First pins the hit's pages below `hit.tokens` in all groups (for a sequence without pages yet), then copies
        shared pages that overlap `[write_from, stop)`, then takes new pages, and reserves the main pages that sealing
        up to `stop` may need. For a sequence that has pages already, `hit` is empty.
        """
        ...

    def fork(self, parent: SeqId, child: SeqId, tokens: int) -> Allocation | NoSpace:
        """Give `child`, which has no pages yet, the parent's first `tokens` positions, shared. Copies happen at the
        next `allocate`. NoSpace leaves the child without pages; it then starts from a lookup like any other.
        """
        ...

    def publish(self, seq: SequenceView, tokens: int, keys: Sequence[Sequence[CacheKey]]) -> Published:
        """KV of the first `tokens` positions is final: make its full pages findable. Monotone, idempotent.

        If an equal key is published already, the sequence's duplicate page is replaced by it (a table delta) and
        freed. Groups with an open pool seal pages that `residual_tokens` further tokens follow, with pages reserved
        before; only sealed pages become findable. Cannot fail. `keys` as for `lookup`.
        """
        ...

    def truncate(self, seq_id: SeqId, tokens: int, fence: int) -> tuple[TableDelta, ...]:
        """Give back whole pages past the first `tokens` positions. Never reaches published or sealed pages."""
        ...

    def slide(self, seq_id: SeqId, tokens: int, fence: int) -> tuple[TableDelta, ...]:
        """Positions below `tokens` are committed: window groups drop pages that no query at `tokens` or later can
        see.
        """
        ...

    def release(self, seq_id: SeqId, fence: int) -> int:
        """Drop all pages of a sequence. Idempotent; unknown ids give 0. Returns pages dropped."""
        ...

    def lease(self, seq_id: SeqId, start: int, stop: int) -> Lease:
        """Keep the pages of positions `[start, stop)` alive beyond the sequence."""
        ...

    def lease_pages(self, pages: Sequence[tuple[GroupId, int]]) -> Lease:
        """Keep main pages that are held or published alive: for a tier's job, until its end."""
        ...

    def end_lease(self, lease: Lease, fence: int) -> None:
        """Drop a lease; `fence` as for `release`. A second call raises PluginFault."""
        ...

    def reclaimable(self, seq_id: SeqId) -> int:
        """Pages that would be free or evictable at once if the sequence were released now with a settled fence."""
        ...

    def settle(self, step: int) -> None:
        """Every step up to `step` has finished."""
        ...

    def drain(self, step: int) -> tuple[PageOp, ...]:
        """Operations to run before step `step`'s forward, in emission order, each exactly once."""
        ...

    def pending_ops(self) -> bool:
        """Whether `drain` would return anything."""
        ...

    def invalidate(self, scope: Scope | None) -> int:
        """Forget published pages (of a scope, or all with None): never found again. Returns how many."""
        ...

    def stats(self) -> AllocatorStats:
        """Now. O(groups): read after every step where there is an observer."""
        ...

    def audit(self) -> None:
        """Check every invariant; raise PluginFault naming the first broken one. O(pages); called when idle."""
        ...
