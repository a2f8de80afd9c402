"""Seeded bugs: each is the engine with one change of a few lines, plausible on an ordinary prompt.

`BUGS` maps a name to (what is wrong, a function that applies it through pytest's monkeypatch).
"""

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from tokloom.core import batch, commit, keys, planner, rows, runner, state, tiers
from tokloom.core.attend import merge
from tokloom.core.sequence import Sequence
from tokloom.sdk import Hit

Patch = pytest.MonkeyPatch
BUGS: dict[str, tuple[str, Callable[[Patch], None]]] = {}


def bug(what: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def register(function: Callable[[Patch], None]) -> Callable[[Patch], None]:
        BUGS[function.__name__] = (what, function)
        return function

    return register


@bug("rejected rows stay scheduled")
def rejected_rows_stay_scheduled(patch: Patch) -> None:
    original = commit.Committer._commit_span

    def forgetful(self: Any, span: Any, result: Any) -> int:
        seq = self._state.live.get(span.seq_id)
        before = seq.num_scheduled if seq else 0
        known = original(self, span, result)
        if known and seq is not None and result.drafted > len(result.accepted):
            seq.num_scheduled = before
        return known

    patch.setattr(commit.Committer, "_commit_span", forgetful)


@bug("an abort forgets the pages")
def pages_are_not_released(patch: Patch) -> None:
    original = state.EngineState.finish

    def leaky(self: Any, seq: Any, reason: Any, error: Any = None) -> None:
        release, self.allocator.release = self.allocator.release, lambda *_: 0
        try:
            original(self, seq, reason, error)
        finally:
            self.allocator.release = release

    patch.setattr(state.EngineState, "finish", leaky)


@bug("accepted rows of a tree are not gathered")
def tree_rows_are_not_moved(patch: Patch) -> None:
    patch.setattr(runner.Runner, "_move", lambda *_: None)


@bug("siblings of a tree see each other")
def tree_mask_is_causal(patch: Patch) -> None:
    patch.setattr(batch, "tree_mask", lambda *_: None)


@bug("tree rows are positioned by slot instead of depth")
def tree_positions_are_slots(patch: Patch) -> None:
    import numpy as np

    patch.setattr(batch, "depths", lambda draft: np.arange(1, len(draft.tokens) + 1))


@bug("the salt is left out of cache keys")
def salt_is_left_out(patch: Patch) -> None:
    original = keys.root_key
    patch.setattr(keys, "root_key", lambda namespace, scope: original(namespace, attrs.evolve(scope, salt="")))


@bug("keys do not look ahead where draft KV depends on the next token")
def keys_do_not_look_ahead(patch: Patch) -> None:
    original = keys.KeyChain.__init__

    def shortsighted(self: Any, layout: Any, scope: Any) -> None:
        groups = tuple(attrs.evolve(group, key_lookahead=0) for group in layout.groups)
        original(self, attrs.evolve(layout, groups=groups), scope)

    patch.setattr(keys.KeyChain, "__init__", shortsighted)


@bug("table deltas of commits are dropped")
def deltas_of_publish_are_dropped(patch: Patch) -> None:
    original = commit.Committer._publish

    def dropping(self: Any, seq: Any) -> None:
        before = list(self._state.deltas)
        original(self, seq)
        self._state.deltas = before

    patch.setattr(commit.Committer, "_publish", dropping)


@bug("a failed block is used as if it had arrived")
def failed_blocks_are_used(patch: Patch) -> None:
    original = tiers.Tiers._finish

    def trusting(self: Any, done: Any) -> None:
        original(self, attrs.evolve(done, status="ok", failed=()))

    patch.setattr(tiers.Tiers, "_finish", trusting)


@bug("stores are submitted before the page's operations ran")
def stores_run_ahead(patch: Patch) -> None:
    original = tiers.Tiers.published
    patch.setattr(tiers.Tiers, "published", lambda self, pages, after: original(self, pages, -1))


@bug("children are forked one token short")
def children_fork_short(patch: Patch) -> None:
    original = commit.Committer._share

    def short(self: Any, seq: Any, other: Any) -> bool:
        shared = original(self, seq, other)
        if shared and other.num_computed > 1:
            other.num_computed -= 1
            other.num_scheduled -= 1
        return shared

    patch.setattr(commit.Committer, "_share", short)


@bug("sealed keys are not counted as a segment")
def sealed_length_is_stale(patch: Patch) -> None:
    original = rows.Rows.apply

    def stale(self: Any, deltas: Any) -> None:
        before = {group: sealed.copy() for group, sealed in self.sealed.items()}
        original(self, deltas)
        for group, sealed in self.sealed.items():
            grown = sealed > before[group] + 1
            sealed[grown] -= 1

    patch.setattr(rows.Rows, "apply", stale)


@bug("segments are averaged instead of merged by log-sum-exp")
def segments_are_averaged(patch: Patch) -> None:
    import torch

    from tokloom.core import attend

    assert attend.merge is merge
    patch.setattr(attend, "merge", lambda outs, lses: torch.stack(list(outs)).mean(0))


@bug("windows slide one page too far")
def windows_slide_too_far(patch: Patch) -> None:
    original = commit.Committer._slide

    def eager(self: Any, seq: Any) -> None:
        real = self._state.allocator.slide
        self._state.allocator.slide = lambda seq_id, tokens, fence: real(seq_id, tokens + 4, fence)
        try:
            original(self, seq)
        finally:
            self._state.allocator.slide = real

    patch.setattr(commit.Committer, "_slide", eager)


@bug("a prefix hit may cover the whole prompt")
def hits_cover_the_prompt(patch: Patch) -> None:
    from tokloom.plugins.kvcache.allocators.paged import allocator

    original = allocator.PagedAllocator.lookup

    def greedy_lookup(self: Any, seq: Any, chain: Any, max_tokens: int) -> Hit:
        return original(self, seq, chain, max_tokens + 1)

    patch.setattr(allocator.PagedAllocator, "lookup", greedy_lookup)


@bug("sequences in flight are preempted")
def victims_are_in_flight(patch: Patch) -> None:
    from tokloom.sdk import Candidate

    def anyone(self: Any, step: Any, requester: Any) -> list[Candidate]:
        found = self._state.running.values()
        return [Candidate(seq.view, 99) for seq in found if seq is not requester]

    patch.setattr(planner.Planner, "_candidates", anyone)


@bug("the last draft stands unseen")
def the_last_draft_stands_unseen(patch: Patch) -> None:
    original = runner.Runner._settle

    def trusting(self: Any, span: Any, row: int, start: int, count: int, draft: Any, sample: Any, score: Any) -> Any:
        if sample is not None and draft.is_chain and len(sample.accepted) == len(draft.tokens) - 1 and draft.tokens:
            stand = (*sample.tokens[0][:-1], draft.tokens[-1])
            sample = attrs.evolve(sample, tokens=(stand,))
        return original(self, span, row, start, count, draft, sample, score)

    patch.setattr(runner.Runner, "_settle", trusting)


@bug("results of an earlier life are taken in")
def epochs_are_ignored(patch: Patch) -> None:
    original = commit.Committer._commit_span

    def credulous(self: Any, span: Any, result: Any) -> int:
        seq = self._state.live.get(span.seq_id)
        if seq is not None and seq.seq_id in self._state.running:
            span = attrs.evolve(span, epoch=seq.epoch)
        return original(self, span, result)

    patch.setattr(commit.Committer, "_commit_span", credulous)


@bug("pages of a sequence that leaves are free at once, launched steps or not")
def fences_are_forgotten(patch: Patch) -> None:
    original = state.EngineState.drop_pages

    def hasty(self: Any, seq: Any) -> None:
        launched, self.launched = self.launched, -1
        try:
            original(self, seq)
        finally:
            self.launched = launched

    patch.setattr(state.EngineState, "drop_pages", hasty)


@bug("drafts cross the boundary at which a page would be sealed")
def drafts_cross_seals(patch: Patch) -> None:
    patch.setattr(planner.Planner, "_until_seal", lambda self, start: 10**6)


@bug("pages that a tier filled are not entered in the row's tables")
def loaded_pages_are_not_entered(patch: Patch) -> None:
    original = state.EngineState.take_row

    def forgetful(self: Any, seq: Any, parent: int = -1) -> None:
        self._held.pop(seq.seq_id, None)
        original(self, seq, parent)

    patch.setattr(state.EngineState, "take_row", forgetful)


@bug("pages are published when they are scheduled, not when they are computed")
def pages_are_published_early(patch: Patch) -> None:
    original = planner.Planner._commit_span

    def eager(self: Any, step: Any, seq: Any, span: Any, where: Any) -> None:
        original(self, step, seq, span, where)
        computed, seq.num_computed = seq.num_computed, min(span.stop, len(seq.tokens))
        self._state.allocator.publish(seq.view, seq.num_computed, seq.keys.groups)
        seq.num_computed = computed

    patch.setattr(planner.Planner, "_commit_span", eager)


@bug("copies on write are forgotten")
def copies_are_forgotten(patch: Patch) -> None:
    from tokloom.core.pools import PagePools
    from tokloom.sdk import CopyPage

    original = PagePools.execute
    patch.setattr(
        PagePools, "execute", lambda self, ops: original(self, [op for op in ops if not isinstance(op, CopyPage)])
    )


@bug("features are those of the first rows instead of the accepted ones")
def features_are_by_slot(patch: Patch) -> None:
    original = runner.Runner._standing_features

    def by_slot(self: Any, step: Any, results: Any, counts: Any, hidden: Any) -> Any:
        straight = [attrs.evolve(result, accepted=tuple(range(len(result.accepted)))) for result in results]
        return original(self, step, straight, counts, hidden)

    patch.setattr(runner.Runner, "_standing_features", by_slot)


@bug("a speculator is not told that a sequence ended")
def speculators_do_not_hear_of_ends(patch: Patch) -> None:
    from tokloom.core.speculation import HostSpeculation

    patch.setattr(HostSpeculation, "end", lambda *_: None)


@bug("log-probabilities of a prompt are kept over a preemption")
def prompt_logprobs_are_doubled(patch: Patch) -> None:
    original = Sequence.restart

    def keeping(self: Any) -> None:
        kept = list(self.prompt_logprobs)
        original(self)
        self.prompt_logprobs = kept

    patch.setattr(Sequence, "restart", keeping)


@bug("after a page operation failed, what it should have filled is trusted")
def lost_pages_are_trusted(patch: Patch) -> None:
    patch.setattr(commit.Committer, "_distrust", lambda *_: None)


@bug("a sequence that ends is gone before a speculator saw its last rows")
def last_rows_are_not_ingested(patch: Patch) -> None:
    original = commit.Committer._commit_span

    def early(self: Any, span: Any, result: Any) -> int:
        known = original(self, span, result)
        for seq, reason in self._ended:
            self._state.finish(seq, reason)
        self._ended.clear()
        return known

    patch.setattr(commit.Committer, "_commit_span", early)


@bug("a host speculator is asked while rows are in flight that it has not seen")
def speculators_are_asked_too_early(patch: Patch) -> None:
    original = planner.Planner._draft_limit

    def early(self: Any, seq: Any) -> int:
        scheduled, seq.num_scheduled = seq.num_scheduled, seq.num_computed
        if seq.pending:
            seq.num_scheduled = scheduled
        try:
            return original(self, seq)
        finally:
            seq.num_scheduled = scheduled

    patch.setattr(planner.Planner, "_draft_limit", early)


@bug("a prefix hit may leave nothing to compute")
def hits_leave_nothing(patch: Patch) -> None:
    original = planner.Planner._start

    def full(self: Any, step: Any, seq: Any, now: float) -> bool:
        lookup = self._state.allocator.lookup
        more = 0 if seq.generates or seq.scores_prompt else 1
        self._state.allocator.lookup = lambda view, keys, limit: lookup(view, keys, limit + more)
        try:
            return original(self, step, seq, now)
        finally:
            self._state.allocator.lookup = lookup

    patch.setattr(planner.Planner, "_start", full)


@bug("the sum of an embedding outlives its pages")
def sums_of_an_earlier_life_stay(patch: Patch) -> None:
    original = Sequence.restart

    def keeping(self: Any) -> None:
        kept = self.pooled
        original(self)
        self.pooled = kept

    patch.setattr(Sequence, "restart", keeping)


@bug("a mean leaves out what the prefix cache has")
def means_take_hits(patch: Patch) -> None:
    patch.setattr(Sequence, "needs_all_rows", property(lambda self: self.scores_prompt))


@bug("adapters share prefixes with the base")
def adapters_share_prefixes(patch: Patch) -> None:
    original = keys.root_key
    patch.setattr(keys, "root_key", lambda namespace, scope: original(namespace, attrs.evolve(scope, adapter="")))


@bug("the adapter of the first row counts for its neighbours")
def rows_take_their_neighbours_adapter(patch: Patch) -> None:
    original = batch.adapter_rows
    patch.setattr(runner, "adapter_rows", lambda digests, indptr: original([digests[0]] * len(digests), indptr))
