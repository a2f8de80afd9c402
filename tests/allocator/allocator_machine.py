"""The hypothesis state machine: random programs over `Driver`."""

import random
import sys
from collections import Counter
from typing import ClassVar

import hypothesis.strategies as st
from allocator_driver import Driver, group, layout
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tokloom.plugins.kvcache.allocators.paged.allocator import PagedAllocator
from tokloom.sdk import KVLayout, Scope

LAYOUTS: dict[str, KVLayout] = {
    "one group, pages of 1": layout(group(0, 1), main=[16]),
    "one group, pages of 2": layout(group(0, 2), main=[12]),
    "one group, pages of 4, zeroed": layout(group(0, 4), main=[12], zero=True),
    "full and window": layout(group(0, 2), group(1, 2, window=4), main=[14, 12]),
    "full and window, other pages": layout(group(0, 4), group(1, 1, window=3), main=[12, 14]),
    "model and draft": layout(group(0, 2), group(1, 2, lookahead=1), main=[14, 14]),
    "sealing, no residual": layout(group(0, 2, residual=0), main=[14], open=[12]),
    "sealing, residual 2": layout(group(0, 2, residual=2), main=[12], open=[14], zero=True),
    "sealing window": layout(group(0, 2, residual=1), group(1, 2, window=5, residual=2), main=[14, 12], open=[14, 12]),
}
SCOPES = [Scope(), Scope(salt="other")]
PATTERN = [0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 1]
LONGEST = 15
small = st.integers(0, 7)


class AllocatorMachine(RuleBasedStateMachine):
    """Random programs. `allocator` is the class under test."""

    allocator: type[PagedAllocator] = PagedAllocator
    #: what the programs so far made the allocator do
    totals: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.driver: Driver | None = None

    @property
    def d(self) -> Driver:
        assert self.driver is not None
        return self.driver

    @initialize(name=st.sampled_from(sorted(LAYOUTS)), seed=st.integers(0, 2**16), cache=st.integers(0, 9))
    def compose(self, name: str, seed: int, cache: int) -> None:
        self.driver = Driver(
            LAYOUTS[name], lambda spec: self.allocator(spec, prefix_cache=cache != 0), random.Random(seed)
        )

    @precondition(lambda self: len(self.d.seqs) < 4)
    @rule(common=st.integers(1, 11), tail=st.lists(st.integers(0, 1), max_size=3), scope=st.sampled_from([0, 0, 0, 1]))
    def start(self, common: int, tail: list[int], scope: int) -> None:
        """Most prompts share a prefix: without hits little can go wrong."""
        self.d.start([*PATTERN[:common], *tail], SCOPES[scope])

    @precondition(lambda self: self.d.seqs)
    @rule(
        chunk=st.sampled_from([1, 1, 2, 3, 5, 9]),
        drafts=st.integers(0, 3),
        external=st.sampled_from([0, 0, 0, 2, 4]),
        depth=st.integers(0, 1),
        rounds=st.integers(1, 5),
    )
    def step(self, chunk: int, drafts: int, external: int, depth: int, rounds: int) -> None:
        """Plan a span for everybody who fits, launch, and commit down to the depth; a few times over."""
        for _ in range(rounds):
            self._plan(chunk, drafts, external)
            self.d.launch()
            while len(self.d.flight) > depth:
                self.d.finish(drafts / 4, settle=depth == 0)
            self.d.settle()

    def _plan(self, chunk: int, drafts: int, external: int) -> None:
        for seq in list(self.d.seqs):
            idle = self.d.idle(seq)
            if idle and seq.num_computed >= LONGEST:
                self.d.release(seq, again=False)
                continue
            speculating = any(span.seq is seq and span.drafts for step in self.d.flight for span in step.spans)
            if not speculating and not any(span.seq is seq for span in self.d.plan):
                self.d.schedule(seq, chunk, external=external, drafts=drafts if idle else 0)
        if not self.d.plan and not self.d.flight and self.d.live():
            self.d.release(self.d.live()[-1], again=True)

    @precondition(lambda self: self.d.flight)
    @rule(accept=small, settle=st.booleans())
    def finish(self, accept: int, settle: bool) -> None:
        self.d.finish(accept / 7, settle=settle)

    @precondition(lambda self: self.d.seqs)
    @rule(which=small, again=st.booleans())
    def release(self, which: int, again: bool) -> None:
        self.d.release(self.d.seqs[which % len(self.d.seqs)], again=again)

    @precondition(lambda self: self.d.live() and len(self.d.seqs) < 5)
    @rule(which=small)
    def fork(self, which: int) -> None:
        self.d.live()[which % len(self.d.live())].fork_next = True

    @precondition(lambda self: self.d.live())
    @rule(which=small, back=st.integers(1, 5))
    def rewind(self, which: int, back: int) -> None:
        self.d.rewind(self.d.live()[which % len(self.d.live())], back)

    @precondition(lambda self: len(self.d.leases) < 3)
    @rule(which=small, skip=small, published=st.booleans())
    def lease(self, which: int, skip: int, published: bool) -> None:
        found = [(g, key) for g, pages in enumerate(self.d.published) for key in sorted(pages)]
        if published and found:
            self.d.lease_published(*found[(which * 8 + skip) % len(found)])
        elif self.d.live():
            seq = self.d.live()[which % len(self.d.live())]
            if self.d.idle(seq):
                self.d.lease(seq, min(skip, seq.num_computed))

    @precondition(lambda self: self.d.leases)
    @rule(which=small)
    def end_lease(self, which: int) -> None:
        self.d.end_lease(which % len(self.d.leases))

    @rule(scope=st.sampled_from([0, 1, 2]), sure=st.integers(0, 7))
    def invalidate(self, scope: int, sure: int) -> None:
        if sure == 7:
            self.d.invalidate([*SCOPES, None][scope])

    @rule()
    def quiesce(self) -> None:
        self.d.quiesce()

    def teardown(self) -> None:
        failing = sys.exc_info()[0] is not None
        if self.driver is not None and not failing:
            stats = self.driver.alloc.stats()
            for name in ("hit_tokens", "evictions", "copies", "seals"):
                self.totals[name] += getattr(stats, name)
            self.driver.close()
