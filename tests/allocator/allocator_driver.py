"""A core in miniature over content-tagged pages, and everything an allocator must not do to it.

The driver plays the engine: it plans spans, launches steps that execute late and in order, commits, forks, leases and
loads pages from outside. A slot of a fake page holds the tag `(group, scope, tokens it was computed from)`; a page that
nobody needs is overwritten with garbage at once. The model knows who holds what only from the deltas, publications and
evictions the allocator returned, so it is independent of the allocator's own books. A violation raises `Broken`, which
names the invariant.
"""

import copy
import pickle
import random
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import count

from attrs import define, field

from tokloom.plugins.kvcache.allocators.paged.allocator import PagedAllocator
from tokloom.sdk import (
    Allocation,
    CacheKey,
    CopyPage,
    Hit,
    KVFormat,
    KVGroup,
    KVLayout,
    Lease,
    NoSpace,
    PageOp,
    PluginFault,
    Pool,
    Request,
    Scope,
    SealPage,
    SlotRequest,
    TableDelta,
    TokenSegment,
    ZeroPage,
)

Place = tuple[int, Pool, int]  # group, pool, page
ZERO = ("zero",)


class Broken(AssertionError):
    """The allocator violated an invariant."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant


def require(invariant: str, ok: bool, message: str) -> None:
    if not ok:
        raise Broken(invariant, message)


def group(
    id: int, page_tokens: int, *, window: int | None = None, residual: int | None = None, lookahead: int = 0
) -> KVGroup:
    """A KV group; with `residual` it has an open pool."""
    format = KVFormat.pack("f", page_tokens, [("k", "uint8", (page_tokens, 1))])
    return KVGroup(
        id,
        "speculator" if lookahead else "model",
        (0,),
        format,
        None if residual is None else format,
        window,
        lookahead,
        residual or 0,
    )


def layout(*groups: KVGroup, main: Sequence[int], open: Sequence[int] = (), zero: bool = False) -> KVLayout:
    return KVLayout(groups, tuple(main), tuple(open) or (0,) * len(groups), b"test", zero)


@define(eq=False)
class FakeSequence:
    """A SequenceView with a token list that the driver extends."""

    seq_id: int
    request: Request
    tokens: list[int]
    num_computed: int = 0
    num_scheduled: int = 0
    num_allocated: int = 0
    child: int = 0
    num_prompt: int = 1
    pending: int = 0
    epoch: int = 0
    arrival: float = 0.0
    first_token: float = -1.0
    preemptions: int = 0
    running: bool = False
    tainted: bool = False
    fork_next: bool = False
    behind_fork: bool = False

    @property
    def scope(self) -> Scope:
        return self.request.scope


def fake_sequence(seq_id: int, tokens: Iterable[int], scope: Scope | None = None) -> FakeSequence:
    ids = list(tokens)
    request = Request(request_id=str(seq_id), segments=(TokenSegment(ids),), scope=scope or Scope())
    return FakeSequence(seq_id, request, ids, num_prompt=len(ids))


@define
class Span:
    seq: FakeSequence
    epoch: int
    start: int
    stop: int
    drafts: int
    tokens: tuple[int, ...] = ()
    tables: dict[tuple[int, Pool], dict[int, int]] = field(factory=dict)


@define(slots=False)
class Step:
    number: int
    ops: tuple[PageOp, ...]
    spans: list[Span]

    @cached_property
    def touched(self) -> set[Place]:
        """Pages the step reads or writes."""
        places = {(g, pool, page) for s in self.spans for (g, pool), t in s.tables.items() for page in t.values()}
        return places | {place for op in self.ops for place in places_of(op)}


def places_of(op: PageOp) -> list[Place]:
    """The pages an operation touches."""
    if isinstance(op, ZeroPage):
        return [(op.group, op.pool, op.page)]
    if isinstance(op, CopyPage):
        return [(op.group, op.pool, op.src), (op.group, op.pool, op.dst)]
    return [(op.group, "open", op.src), (op.group, "main", op.dst)]


class Driver:
    """See the module. Random choices come from `rng` alone."""

    def __init__(self, spec: KVLayout, make: Callable[[KVLayout], PagedAllocator], rng: random.Random) -> None:
        self.spec, self.rng = spec, rng
        self.alloc = make(spec)
        self.garbage = count()
        self.memory: dict[Place, list[object]] = {}
        for g in spec.groups:
            for pool, pages in (("main", spec.main_pages[g.id]), ("open", spec.open_pages[g.id])):
                for page in range(pages):
                    self.memory[g.id, "main" if pool == "main" else "open", page] = self._garbage(g)
        self.seqs: list[FakeSequence] = []
        self.tables: dict[int, dict[tuple[int, Pool], dict[int, int]]] = {}
        self.published: list[dict[CacheKey, int]] = [{} for _ in spec.groups]
        self.paths: dict[CacheKey, tuple[int, Scope, tuple[int, ...]]] = {}
        self.leases: list[tuple[Lease, dict[tuple[Place, int], object]]] = []
        self.flight: list[Step] = []
        self.executed: list[Step] = []
        self.plan: list[Span] = []
        self.next_step, self.settled = 0, -1
        self._ids = count()

    # -- vocabulary --------------------------------------------------------------------------------------------------

    def _garbage(self, g: KVGroup) -> list[object]:
        return [("garbage", next(self.garbage)) for _ in range(g.page_tokens)]

    def tag(self, g: KVGroup, scope: Scope, tokens: Sequence[int], position: int) -> object:
        return (g.id, scope, tuple(tokens[: position + 1 + g.key_lookahead]))

    def keys(self, seq: FakeSequence) -> list[list[CacheKey]]:
        """Per group, the keys of the full pages whose lookahead is known."""
        keys: list[list[CacheKey]] = []
        for g in self.spec.groups:
            keys.append([])
            for stop in range(g.page_tokens, len(seq.tokens) - g.key_lookahead + 1, g.page_tokens):
                prefix = tuple(seq.tokens[: stop + g.key_lookahead])
                key = repr((g.id, seq.scope.salt, prefix)).encode()
                self.paths[key] = (g.id, seq.scope, prefix)
                keys[-1].append(key)
        return keys

    def write_pool(self, g: KVGroup) -> Pool:
        return "open" if g.open is not None else "main"

    def last_launch(self) -> int:
        return self.next_step - 1

    def live(self) -> list[FakeSequence]:
        return [seq for seq in self.seqs if seq.running]

    def idle(self, seq: FakeSequence) -> bool:
        """Nothing in flight for the sequence."""
        spans = [span for step in self.flight for span in step.spans]
        return all(span.seq is not seq or span.epoch != seq.epoch for span in spans)

    def frozen(self) -> bytes:
        """The allocator's whole state."""
        return pickle.dumps(self.alloc)

    def holders(self, place: Place) -> list[str]:
        """Rows and leases that hold a page."""
        g, pool, page = place
        rows = [f"sequence {seq_id}" for seq_id, t in self.tables.items() if page in t.get((g, pool), {}).values()]
        return rows + [
            f"lease {lease.lease_id}" for lease, _ in self.leases if pool == "main" and (g, page) in lease.pages
        ]

    def in_flight(self, place: Place) -> bool:
        return any(place in step.touched for step in self.flight + self.executed)

    # -- deltas, evictions -------------------------------------------------------------------------------------------

    def apply(self, deltas: Iterable[TableDelta], *, rewritable: Callable[[TableDelta], bool]) -> None:
        for delta in deltas:
            table = self.tables.setdefault(delta.seq_id, {}).setdefault((delta.group, delta.pool), {})
            if delta.index in table:
                require("KV-09", rewritable(delta), f"{delta} rewrites an entry outside what the call may rewrite")
            if delta.page < 0:
                table.pop(delta.index, None)
            else:
                table[delta.index] = delta.page

    def note_allocation(self, result: Allocation, want: SlotRequest, hit: Hit, waiting: set[Place]) -> None:
        hit_places = set()
        for g in self.spec.groups:
            first = 0 if g.window is None else max(0, hit.tokens - g.window + 1) // g.page_tokens
            hit_places |= {(g.id, page) for page in hit.pages[g.id][first : hit.tokens // g.page_tokens]}
        for evicted in result.evicted:
            self._evict(evicted.group, evicted.key, evicted.page)
            require("KV-08", (evicted.group, evicted.page) not in hit_places, "a page of the hit was evicted")
        for delta in result.deltas:
            place = (delta.group, delta.pool, delta.page)
            if delta.pool == "main" and (delta.group, delta.page) in hit_places:
                continue
            require("I9", not self.holders(place), f"{place} was given out while {self.holders(place)} hold it")
            require("KV-14", not self.in_flight(place), f"{place} was given out while a launched step touches it")
            require("KV-05", place not in waiting, f"{place} was given out while an operation on it waits")
            published = delta.pool == "main" and delta.page in self.published[delta.group].values()
            require("I4", not published, f"{place} was given out while it can be found")

        def overlaps(delta: TableDelta) -> bool:
            size = self.spec.groups[delta.group].page_tokens
            return delta.index * size < want.stop and (delta.index + 1) * size > want.write_from

        self.apply(result.deltas, rewritable=overlaps)

    def _evict(self, g: int, key: CacheKey, page: int) -> None:
        require("KV-17", self.published[g].get(key) == page, "a page was reported evicted that could not be found")
        require("KV-17", not self.holders((g, "main", page)), "a held page was evicted")
        require("KV-14", not self.in_flight((g, "main", page)), "a page was evicted while a launched step touches it")
        del self.published[g][key]
        if self.spec.groups[g].window is None:
            _, scope, prefix = self.paths[key]
            for other in self.published[g]:
                _, other_scope, path = self.paths[other]
                child = other_scope == scope and len(path) > len(prefix) and path[: len(prefix)] == prefix
                require("KV-17", not child, f"{key!r} was evicted before its descendant {other!r}")

    # -- planning ----------------------------------------------------------------------------------------------------

    def start(self, tokens: Iterable[int], scope: Scope) -> FakeSequence:
        seq = fake_sequence(next(self._ids), tokens, scope)
        seq.tokens.append(self.rng.randrange(2))
        self.seqs.append(seq)
        return seq

    def expected_hit(self, keys: Sequence[Sequence[CacheKey]], max_tokens: int) -> int:
        """Brute force: the longest page-aligned length every group can supply."""
        for tokens in range(max_tokens, 0, -1):
            if all(self._supplies(g, keys[g.id], tokens) for g in self.spec.groups):
                return tokens
        return 0

    def _supplies(self, g: KVGroup, keys: Sequence[CacheKey], tokens: int) -> bool:
        if tokens % g.page_tokens or len(keys) < tokens // g.page_tokens:
            return False
        first = 0 if g.window is None else max(0, tokens - g.window + 1) // g.page_tokens
        return all(keys[index] in self.published[g.id] for index in range(first, tokens // g.page_tokens))

    def lookup(self, seq: FakeSequence, max_tokens: int) -> Hit:
        keys, before = self.keys(seq), self.frozen()
        hit = self.alloc.lookup(seq, keys, max_tokens)
        require("P3", self.alloc.lookup(seq, keys, max_tokens) == hit, "two lookups differ")
        require("P3", self.frozen() == before, "lookup changed the allocator")
        require("P0", hit.tokens <= max_tokens, f"a hit of {hit.tokens} tokens exceeds {max_tokens}")
        for g in self.spec.groups:
            require("P1", hit.tokens % g.page_tokens == 0, "a hit is not page aligned")
            for index, page in enumerate(hit.pages[g.id]):
                if page >= 0:
                    require("KV-10", self.published[g.id].get(keys[g.id][index]) == page, "a hit page has another key")
        expected = self.expected_hit(keys, max_tokens) if self.alloc.prefix_cache else 0
        require("P2", hit.tokens == expected, f"a hit of {hit.tokens} tokens where {expected} are resident")
        for g in self.spec.groups:
            first = 0 if g.window is None else max(0, hit.tokens - g.window + 1) // g.page_tokens
            needed = hit.pages[g.id][first : hit.tokens // g.page_tokens]
            require("P1", all(page >= 0 for page in needed), "a page the hit needs is missing")
        return hit

    def schedule(self, seq: FakeSequence, length: int, *, external: int = 0, drafts: int = 0) -> bool:
        """Plan one span; False for lack of space."""
        hit = Hit(0, ((),) * len(self.spec.groups))
        first = not seq.running
        if first:
            hit = self.lookup(seq, len(seq.tokens) - 1)
            align = max(g.page_tokens for g in self.spec.groups)
            external = min(external, (len(seq.tokens) - 1 - hit.tokens) // align) * align
            seq.num_scheduled = hit.tokens + external
        else:
            external = 0
        start = seq.num_scheduled
        while len(seq.tokens) < start + 2:
            seq.tokens.append(self.rng.randrange(2))
        stop = min(start + length, len(seq.tokens) - 1)
        for _ in range(drafts):
            if len(seq.tokens) - 1 == stop:
                seq.tokens.append(self.rng.randrange(2))
            stop += 1
        want = SlotRequest(write_from=start, stop=stop, external=external, tokens=stop)
        if not self.allocate(seq, want, hit):
            return False
        if first:
            seq.running, seq.num_computed, seq.tainted = True, start, False
            self._load(seq, hit.tokens, hit.tokens + external)
        seq.num_scheduled = stop
        self.plan.append(Span(seq, seq.epoch, start, stop, drafts))
        return True

    def allocate(self, seq: FakeSequence, want: SlotRequest, hit: Hit) -> bool:
        before = self.frozen()
        waiting = {place for op, _ in self.alloc.pending for place in places_of(op)}
        quote = self.alloc.quote(seq, want, hit)
        require("P3", self.frozen() == before, "quote changed the allocator")
        result = self.alloc.allocate(seq, want, hit)
        if isinstance(result, NoSpace):
            require("KV-07", not quote.fits_now, "a quote said fits_now and allocate refused")
            require("KV-06", self.frozen() == before, "NoSpace changed the allocator")
            require("KV-06", result.short > 0, "nothing is missing")
            return False
        require("KV-07", quote.fits_now, "a quote said it does not fit and allocate succeeded")
        self.note_allocation(result, want, hit, waiting)
        for g in self.spec.groups:
            table = self.tables.get(seq.seq_id, {}).get((g.id, self.write_pool(g)), {})
            for index in range(want.write_from // g.page_tokens, -(-want.stop // g.page_tokens)):
                require("KV-04", index in table, f"position {index * g.page_tokens} is not addressable")
                self._require_exclusive(seq, g, table[index])
        return True

    def _require_exclusive(self, seq: FakeSequence, g: KVGroup, page: int) -> None:
        place = (g.id, self.write_pool(g), page)
        others = [name for name in self.holders(place) if name != f"sequence {seq.seq_id}"]
        require("KV-04", not others, f"{place} is written by {seq.seq_id} and held by {others}")
        found = place[1] == "main" and page in self.published[g.id].values()
        require("KV-04", not found, f"{place} is written and can be found")

    def _load(self, seq: FakeSequence, start: int, stop: int) -> None:
        """An outside writer fills the loaded pages at once, outside the order of steps."""
        for g in self.spec.groups:
            table = self.tables.get(seq.seq_id, {}).get((g.id, "main"), {})
            for position in range(start, stop):
                page = table.get(position // g.page_tokens)
                if page is not None:
                    self.memory[g.id, "main", page][position % g.page_tokens] = self.tag(
                        g, seq.scope, seq.tokens, position
                    )

    # -- launching and committing ------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Freeze the plan. Nothing runs before `finish`."""
        pending = self.alloc.pending_ops()
        ops = self.alloc.drain(self.next_step)
        require("H6", pending == bool(ops), "pending_ops and drain disagree")
        require("H6", not self.alloc.drain(self.next_step), "an operation was drained twice")
        spans = [span for span in self.plan if span.epoch == span.seq.epoch]
        for span in spans:
            span.tokens = tuple(span.seq.tokens)
            span.tables = {at: dict(table) for at, table in self.tables.get(span.seq.seq_id, {}).items()}
        self.plan = []
        self.flight.append(Step(self.next_step, ops, spans))
        self.next_step += 1

    def finish(self, accept: float = 1.0, *, settle: bool = True) -> None:
        """Execute and commit the oldest launched step."""
        step = self.flight.pop(0)
        for op in step.ops:
            self._run(op)
        for span in step.spans:
            self._forward(span)
        self.executed.append(step)
        for span in step.spans:
            if span.epoch == span.seq.epoch and span.seq.running:
                self._commit(span, accept)
        self.check()
        if settle:
            self.settle()
            self.check()

    def settle(self) -> None:
        """The executed steps have finished; every page that nobody needs turns into garbage."""
        if self.executed:
            self.settled = self.executed[-1].number
            self.executed = []
            self.alloc.settle(self.settled)
        if not self.alloc.pending_ops():
            for (g, pool, page), slots in self.memory.items():
                found = pool == "main" and page in self.published[g].values()
                if not (found or self.holders((g, pool, page)) or self.in_flight((g, pool, page))):
                    slots[:] = self._garbage(self.spec.groups[g])

    def _run(self, op: PageOp) -> None:
        if isinstance(op, ZeroPage):
            self.memory[op.group, op.pool, op.page] = [ZERO] * self.spec.groups[op.group].page_tokens
        elif isinstance(op, CopyPage):
            self.memory[op.group, op.pool, op.dst] = list(self.memory[op.group, op.pool, op.src])
        elif isinstance(op, SealPage):
            self.memory[op.group, "main", op.dst] = list(self.memory[op.group, "open", op.src])

    def _forward(self, span: Span) -> None:
        """Write the span's rows through the table it was launched with, then read all its queries can see."""
        for g in self.spec.groups:
            size, pool = g.page_tokens, self.write_pool(g)
            table = span.tables.get((g.id, pool), {})
            for position in range(span.start, span.stop):
                slots = self.memory[g.id, pool, table[position // size]]
                slots[position % size] = self.tag(g, span.seq.scope, span.tokens, position)
            if self.spec.zero_new_pages:
                for index in range(span.start // size, -(-span.stop // size)):
                    clean = all(slot == ZERO or slot[0] != "garbage" for slot in self.memory[g.id, pool, table[index]])  # type: ignore[index]
                    require("KV-18", clean, "a page with garbage is read by a kernel that reads tails")
            first = 0 if g.window is None else max(0, span.start - g.window + 1)
            self._read(g, span.seq.scope, span.tokens, span.tables, first, span.stop, "K1")

    def _read(
        self,
        g: KVGroup,
        scope: Scope,
        tokens: Sequence[int],
        tables: dict[tuple[int, Pool], dict[int, int]],
        start: int,
        stop: int,
        invariant: str,
    ) -> None:
        main, open = tables.get((g.id, "main"), {}), tables.get((g.id, "open"), {})
        for position in range(start, stop):
            index = position // g.page_tokens
            both = index in main and index in open
            require("KV-09", not both, f"page {index} of group {g.id} is both sealed and open")
            pool: Pool = "open" if index in open else "main"
            page = open.get(index, main.get(index))
            if page is None:
                raise Broken("KV-16", f"position {position} of group {g.id} is visible and has no page")
            content = self.memory[g.id, pool, page][position % g.page_tokens]
            expected = self.tag(g, scope, tokens, position)
            require(invariant, content == expected, f"{(g.id, pool, page)} holds {content}, not {expected}")

    def _commit(self, span: Span, accept: float) -> None:
        seq = span.seq
        kept = span.stop - span.drafts + round(span.drafts * accept)
        seq.num_computed = max(seq.num_computed, kept)
        if kept < span.stop:
            seq.num_scheduled = kept
            seq.tokens = seq.tokens[: kept + 1]
            self.apply(
                self.alloc.truncate(seq.seq_id, kept, self.last_launch()), rewritable=lambda delta: delta.page < 0
            )
            self._require_kept(seq)
        child = None
        if seq.fork_next and seq.num_scheduled == seq.num_computed:
            child = self._fork(seq)
        order = [seq] if child is None else [child, seq] if self.rng.random() < 0.5 else [seq, child]
        for each in order:
            self.publish(each)
        for each in order:
            self._slide(each)

    def _require_kept(self, seq: FakeSequence) -> None:
        for g in self.spec.groups:
            tables = self.tables.get(seq.seq_id, {})
            names = {
                index
                for pool in ("main", "open")
                for index in tables.get((g.id, "main" if pool == "main" else "open"), {})
            }
            past = [i for i in tables.get((g.id, self.write_pool(g)), {}) if i * g.page_tokens >= seq.num_computed]
            require("KV-01", not past, f"truncate kept pages {past} past {seq.num_computed} tokens")
            first = 0 if g.window is None else max(0, seq.num_computed - g.window + 1) // g.page_tokens
            needed = set(range(first, -(-seq.num_computed // g.page_tokens)))
            require("KV-11", needed <= names, "truncate gave back a page that is needed")

    def _fork(self, seq: FakeSequence) -> FakeSequence | None:
        seq.fork_next = False
        tokens, lookahead = seq.num_computed, max(g.key_lookahead for g in self.spec.groups)
        child = fake_sequence(next(self._ids), seq.tokens[: tokens + lookahead], seq.scope)
        result = self.alloc.fork(seq.seq_id, child.seq_id, tokens)
        if isinstance(result, NoSpace):
            return None
        self.seqs.append(child)
        child.tokens += [self.rng.randrange(2) for _ in range(2)]
        child.num_computed = child.num_scheduled = tokens
        child.running, child.tainted, child.behind_fork = True, seq.tainted, True
        self.apply(result.deltas, rewritable=lambda _: False)
        for g in self.spec.groups:
            for pool in (self.write_pool(g), "main"):
                at: tuple[int, Pool] = (g.id, "open" if pool == "open" else "main")
                mine, theirs = self.tables.get(child.seq_id, {}).get(at, {}), self.tables[seq.seq_id].get(at, {})
                need = {i: p for i, p in theirs.items() if i * g.page_tokens < tokens}
                require("KV-02", mine == need, "a fork does not share the parent's pages")
        return child

    def publish(self, seq: FakeSequence) -> None:
        keys = self.keys(seq)
        result = self.alloc.publish(seq, seq.num_computed, keys)
        for g_id, key, page in result.pages:
            require("P7", key not in self.published[g_id], "a key was published twice")
            require("KV-19", not seq.tainted, "a sequence of an invalidated scope published a page")
            self.published[g_id][key] = page
        for delta in result.deltas:
            if delta.pool == "open":
                g = self.spec.groups[delta.group]
                final = (delta.index + 1) * g.page_tokens + g.residual_tokens <= seq.num_computed
                require("KV-11", final, f"page {delta.index} was sealed before {g.residual_tokens} tokens followed it")
        self.apply(result.deltas, rewritable=lambda _: True)
        again = self.alloc.publish(seq, seq.num_computed, keys)
        require("P7", not again.pages and not again.deltas, "publishing again did something")
        for g_id, key, page in result.pages:
            g, path = self.spec.groups[g_id], self.paths[key][2]
            index = (len(path) - g.key_lookahead) // g.page_tokens - 1
            require(
                "KV-11", (index + 1) * g.page_tokens <= seq.num_computed, "a page was published before it was final"
            )
            named = self.tables[seq.seq_id][g_id, "main"].get(index) == page
            require("KV-10", named, "a page was published under a key that is not its own")
        self._require_published(seq, keys)

    def _require_published(self, seq: FakeSequence, keys: Sequence[Sequence[CacheKey]]) -> None:
        if not self.alloc.prefix_cache or seq.tainted:
            return
        for g in self.spec.groups:
            main = self.tables[seq.seq_id].get((g.id, "main"), {})
            full = max(0, seq.num_computed - g.residual_tokens) // g.page_tokens
            for index, key in enumerate(keys[g.id][:full]):
                open = self.tables[seq.seq_id].get((g.id, "open"), {})
                if index in open and seq.behind_fork:
                    break
                require("KV-21", index not in open, f"page {index} of group {g.id} should be sealed by now")
                if index in main:
                    same = self.published[g.id].get(key) == main[index]
                    require("P7", same, f"page {index} of {seq.seq_id} is not the one published under its key")

    def _slide(self, seq: FakeSequence) -> None:
        deltas = self.alloc.slide(seq.seq_id, seq.num_computed, self.last_launch())
        self.apply(deltas, rewritable=lambda delta: delta.page < 0)
        for g in self.spec.groups:
            if g.window is None:
                continue
            first = max(0, seq.num_computed - g.window + 1) // g.page_tokens
            for pool in ("main", "open"):
                table = self.tables[seq.seq_id].get((g.id, "main" if pool == "main" else "open"), {})
                require("KV-16", all(index >= first for index in table), "a page that nobody can see was kept")

    # -- everything else ---------------------------------------------------------------------------------------------

    def release(self, seq: FakeSequence, *, again: bool) -> None:
        """Abort, or preempt (`again`): nothing of the sequence stands any more."""
        if seq.running:
            shadow = copy.deepcopy(self.alloc)
            promised, before = self.alloc.reclaimable(seq.seq_id), shadow.stats()
            shadow.release(seq.seq_id, self.settled)
            after = shadow.stats()
            gain = after.free_pages + after.cached_pages - before.free_pages - before.cached_pages
            require("KV-15", promised == gain, f"reclaimable says {promised}, the gain is {gain}")
            held = sum(len(table) for table in self.tables.get(seq.seq_id, {}).values())
            dropped = self.alloc.release(seq.seq_id, self.last_launch())
            require("KV-02", dropped >= held, f"{dropped} pages were dropped of {held}")
        state = self.frozen()
        require("KV-03", self.alloc.release(seq.seq_id, self.last_launch()) == 0, "a second release dropped pages")
        require("KV-03", self.frozen() == state, "a second release changed the allocator")
        self.tables.pop(seq.seq_id, None)
        seq.epoch += 1
        seq.running = seq.behind_fork = False
        seq.num_computed = seq.num_scheduled = 0
        if not again:
            self.seqs.remove(seq)
        self.check()

    def rewind(self, seq: FakeSequence, back: int) -> bool:
        """Compute the last positions once more, with the same content."""
        floor = 0
        for g in self.spec.groups:
            if g.window is not None:
                return False
            if g.open is not None:
                floor = max(floor, len(self.tables[seq.seq_id].get((g.id, "main"), {})) * g.page_tokens)
        start, stop = max(floor, seq.num_computed - back), seq.num_computed
        if start >= stop or not self.idle(seq) or not seq.running:
            return False
        want = SlotRequest(write_from=start, stop=stop, tokens=stop)
        if not self.allocate(seq, want, Hit(0, ((),) * len(self.spec.groups))):
            return False
        self.plan.append(Span(seq, seq.epoch, start, stop, 0))
        return True

    def lease(self, seq: FakeSequence, start: int) -> None:
        lease = self.alloc.lease(seq.seq_id, start, seq.num_computed)
        reads: dict[tuple[Place, int], object] = {}
        for g in self.spec.groups:
            table = self.tables[seq.seq_id].get((g.id, "main"), {})
            for position in range(start, seq.num_computed):
                page = table.get(position // g.page_tokens)
                if page is None:
                    continue
                require("KV-02", (g.id, page) in lease.pages, "a lease left out a page of its positions")
                place: Place = (g.id, "main", page)
                tag = self.tag(g, seq.scope, seq.tokens, position)
                if self.memory[place][position % g.page_tokens] == tag:
                    reads[place, position % g.page_tokens] = tag
        self.leases.append((lease, reads))

    def lease_published(self, g_id: int, key: CacheKey) -> None:
        page = self.published[g_id][key]
        lease = self.alloc.lease_pages([(g_id, page)])
        require("KV-02", lease.pages == ((g_id, page),), "lease_pages leased something else")
        place: Place = (g_id, "main", page)
        g, (_, scope, prefix) = self.spec.groups[g_id], self.paths[key]
        start = len(prefix) - g.key_lookahead - g.page_tokens
        tags = [self.tag(g, scope, prefix, start + slot) for slot in range(g.page_tokens)]
        there = [slot for slot, tag in enumerate(tags) if self.memory[place][slot] == tag]  # a seal may be waiting
        self.leases.append((lease, {(place, slot): tags[slot] for slot in there}))

    def end_lease(self, index: int) -> None:
        lease, _ = self.leases.pop(index)
        self.alloc.end_lease(lease, self.rng.choice([self.settled, self.last_launch()]))
        state = self.frozen()
        try:
            self.alloc.end_lease(lease, self.last_launch())
        except PluginFault:
            require("I14", self.frozen() == state, "a refused end_lease changed the allocator")
            return
        raise Broken("I14", "a lease ended twice")

    def invalidate(self, scope: Scope | None) -> None:
        gone = 0
        for pages in self.published:
            for key in [key for key in pages if scope is None or self.paths[key][1] == scope]:
                del pages[key]
                gone += 1
        for seq in self.live():
            seq.tainted |= scope is None or seq.scope == scope
        require("KV-19", self.alloc.invalidate(scope) == gone, "invalidate forgot another number of pages")

    def check(self) -> None:
        """What must hold at any moment."""
        self.alloc.audit()
        stats = self.alloc.stats()
        total = stats.free_pages + stats.cached_pages + stats.held_pages + stats.fenced_pages
        require("I11", total == stats.total_pages == len(self.memory), "the regions do not add up to the pools")
        needed = sum(bool(self.holders(place)) or self.in_flight(place) for place in self.memory)
        takeable = stats.free_pages + stats.cached_pages
        require(
            "KV-14", takeable + needed <= len(self.memory), "a page that someone holds or a step touches may be taken"
        )
        for _, reads in self.leases:
            for (place, slot), tag in reads.items():
                require("K1", self.memory[place][slot] == tag, f"leased {place} changed")

    def quiesce(self) -> None:
        """Run everything down, then compare every live row and every published page with what it must hold."""
        while self.plan or self.flight or self.alloc.pending_ops():
            if self.plan or (not self.flight and self.alloc.pending_ops()):
                self.launch()
            self.finish()
        self.settle()
        self.check()
        require("KV-01", self.alloc.stats().fenced_pages == 0, "pages stay fenced with nothing in flight")
        for seq in self.live():
            for g in self.spec.groups:
                first = 0 if g.window is None else max(0, seq.num_computed - g.window + 1)
                self._read(g, seq.scope, seq.tokens, self.tables.get(seq.seq_id, {}), first, seq.num_computed, "K1")
        for g in self.spec.groups:
            for key, page in self.published[g.id].items():
                _, scope, prefix = self.paths[key]
                stop = len(prefix) - g.key_lookahead
                tables: dict[tuple[int, Pool], dict[int, int]] = {(g.id, "main"): {stop // g.page_tokens - 1: page}}
                self._read(g, scope, prefix, tables, stop - g.page_tokens, stop, "K2")

    def close(self) -> None:
        """Give everything back: nothing stays held, and forgetting all pages frees all pages."""
        self.quiesce()
        for seq in list(self.seqs):
            self.release(seq, again=False)
        while self.leases:
            self.end_lease(0)
        self.quiesce()
        stats = self.alloc.stats()
        require("I12", stats.held_pages == 0, f"{stats.held_pages} pages stay held with nobody left")
        found = sum(map(len, self.published))
        require("I12", stats.cached_pages == found, "the cached pages are not the published ones")
        self.invalidate(None)
        require("I12", self.alloc.stats().free_pages == stats.total_pages, "not every page came back")
        self.alloc.audit()
