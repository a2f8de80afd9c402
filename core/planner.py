"""Planner: who runs in the next step. Every decision is made anew each step; nothing is latched.

Order: running sequences that decode (with drafts where they pay), running sequences with prompt left, waiting ones.
"""

from collections.abc import Sequence as Items

from attrs import define, field

from tokloom.core.plan import Span, StepPlan
from tokloom.core.sampling import AdaptiveK
from tokloom.core.sequence import Sequence
from tokloom.core.state import EngineState
from tokloom.core.tiers import TierHit
from tokloom.sdk import (
    NO_DRAFT,
    Allocation,
    Budget,
    Candidate,
    CapacityError,
    Defer,
    Draft,
    Hit,
    NoSpace,
    OnDevice,
    OversizeError,
    Pending,
    Proposal,
    Reject,
    SchedEvent,
    SeqId,
    SlotRequest,
)

#: longest wait for a tier that answers Pending, seconds
TIER_PATIENCE = 5.0
#: empty steps with servable work after which the policy is overruled for a step
STALL_STEPS = 256


@define
class _Step:
    """A plan in the making."""

    rows: int
    decoding: int = 0
    decode: list[Span] = field(factory=list)
    verify: list[Span] = field(factory=list)
    prefill: list[Span] = field(factory=list)
    planned: set[SeqId] = field(factory=set)
    preempted: bool = False
    starved: bool = False
    patient: bool = False

    @property
    def spans(self) -> tuple[Span, ...]:
        return (*self.decode, *self.verify, *self.prefill)


class Planner:
    """Turns the engine's state into a StepPlan, allocating pages on the way."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._settings = state.settings
        self._no_hit = Hit(0, tuple(() for _ in state.layout.groups))
        self._sealing = [group for group in state.layout.groups if group.open is not None]
        composition = state.composition
        self._grid = state.settings.page_tokens if composition.codec.caps.equivalence == "stepwise" else 0
        self._max_k = min(composition.needs.max_k, state.settings.max_draft_tokens) if composition.speculator else 0
        self._device_spec = composition.speculator is not None and composition.speculator.caps.placement == "device"
        self.controller = AdaptiveK()
        self._empty_steps = 0

    def plan(self, in_flight: int) -> StepPlan | None:
        """The next step, or None if nothing can be launched now."""
        state = self._state
        step = _Step(rows=self._settings.max_batch_tokens)
        now = state.now()
        if state.live:
            order = state.policy.order(
                [seq.view for seq in state.waiting.values()], [seq.view for seq in state.running.values()], now
            )
            running = [state.running[seq_id] for seq_id in order.running]
            self._plan_decodes(step, [seq for seq in running if self._decodes(seq)])
            self._plan_prefills(step, [seq for seq in running if not self._decodes(seq)], now)
            if not step.preempted:
                self._plan_waiting(step, [state.waiting[seq_id] for seq_id in order.waiting], now)
            self._watch(step, in_flight)
        return self._freeze(step)

    def _freeze(self, step: _Step) -> StepPlan | None:
        state = self._state
        spans = step.spans
        if not spans and not state.allocator.pending_ops():
            return None
        state.launched += 1
        plan = StepPlan(
            step=state.launched,
            spans=spans,
            num_decode=len(step.decode),
            num_verify=len(step.verify),
            ends=tuple(state.ends),
            begins=tuple(state.begins),
            deltas=tuple(state.deltas),
            ops=state.allocator.drain(state.launched),
        )
        for begin in state.begins:
            state.live[begin.seq_id].begun = state.launched
        state.ends, state.begins, state.deltas = [], [], []
        return plan

    # -- running ---------------------------------------------------------------------------------------------------

    def _decodes(self, seq: Sequence) -> bool:
        return seq.unscheduled == 1 and not seq.scores_prompt and not seq.embeds

    def _wants_rows(self, seq: Sequence) -> bool:
        """Whether another span is useful: not if the tokens in flight may already be the last."""
        if seq.unscheduled <= 0:
            return False
        if not seq.pending:
            return True
        if seq.request.sampling.n > 1 and not seq.forked:
            return False
        return len(seq.tokens) + seq.pending < seq.length_limit(self._settings.max_model_tokens)

    def _plan_decodes(self, step: _Step, sequences: Items[Sequence]) -> None:
        ready = [seq for seq in sequences if self._wants_rows(seq)][: step.rows]
        step.decoding = len(ready)
        room = step.rows - len(ready)
        limits = {seq.seq_id: self._draft_limit(seq) for seq in ready}
        best = self.controller.choose(len(ready), max(limits.values(), default=0))
        wanted: dict[SeqId, int] = {}
        for seq in ready:
            k = min(limits[seq.seq_id], best, room)
            if k > 0:
                k = self._state.policy.draft_k(seq.view, seq.draft_stats, len(ready), k)
            if k > 0:
                wanted[seq.seq_id] = k
                room -= k
        drafts = self._propose([seq for seq in ready if seq.seq_id in wanted], wanted)
        for seq in ready:
            if seq.seq_id in self._state.running:
                self._plan_decode(step, seq, drafts.get(seq.seq_id, NO_DRAFT), wanted.get(seq.seq_id, 0))

    def _draft_limit(self, seq: Sequence) -> int:
        """How many tokens could be drafted for a sequence: what its state, its length and seals leave."""
        if not self._max_k or not seq.generates or (seq.request.sampling.n > 1 and not seq.forked):
            return 0
        host = self._state.host_spec
        if host is not None and (seq.num_scheduled > seq.num_computed or not host.follows(seq.seq_id)):
            return 0  # it has not seen the rows in flight
        if host is not None and seq.begun > self._state.settled:
            return 0  # forked or loaded: the runner may not know the row yet
        limit = seq.length_limit(self._settings.max_model_tokens)
        k = min(self._max_k, limit - len(seq.tokens) - seq.pending - 1)
        return max(0, min(k, self._until_seal(seq.num_scheduled)))

    def _until_seal(self, start: int) -> int:
        """Drafts that a span from `start` may carry without crossing a seal boundary: a plain decode would have sealed
        the page before its next row.
        """
        room = self._settings.max_model_tokens
        for group in self._sealing:
            sealed = max(0, (start - group.residual_tokens) // group.page_tokens)
            boundary = (sealed + 1) * group.page_tokens + group.residual_tokens
            room = min(room, boundary - 1 - start)
        return room

    def _propose(self, sequences: Items[Sequence], wanted: dict[SeqId, int]) -> dict[SeqId, Draft]:
        host = self._state.host_spec
        if host is None or not sequences:
            return {}
        proposals = [Proposal(seq.seq_id, wanted[seq.seq_id], seq.tokens[-1], len(seq.tokens) - 1) for seq in sequences]
        pages = self._state.runner.propose_pages([seq.seq_id for seq in sequences])
        return dict(zip((seq.seq_id for seq in sequences), host.propose(proposals, pages), strict=True))

    def _plan_decode(self, step: _Step, seq: Sequence, draft: Draft, k: int) -> None:
        start = seq.num_scheduled
        drafts: Draft | OnDevice | None = draft if draft.tokens else None
        if self._device_spec and seq.device_k:
            allowed = min(seq.device_k, step.rows - 1, self._length_room(seq), self._until_seal(start))
            drafts = OnDevice(allowed) if allowed > 0 else None
        count = 0 if drafts is None else drafts.k if isinstance(drafts, OnDevice) else len(drafts.tokens)
        propose = k if self._device_spec else 0
        if not self._allocate(step, seq, start, start + 1 + count, slack=propose):
            count, drafts = 0, None
            if not self._make_room(step, seq, start, start + 1, slack=propose):
                return
        span = Span(seq.seq_id, seq.epoch, start, start + 1 + count, drafts, self._samples(seq), propose=propose)
        self._commit_span(step, seq, span, step.verify if count else step.decode)

    def _length_room(self, seq: Sequence) -> int:
        return seq.length_limit(self._settings.max_model_tokens) - len(seq.tokens) - seq.pending - 1

    def _samples(self, seq: Sequence) -> int:
        if not seq.generates:
            return 0
        return seq.request.sampling.n if not seq.forked else 1

    def _plan_prefills(self, step: _Step, sequences: Items[Sequence], now: float) -> None:
        for seq in sequences:
            if step.rows <= 0:
                return
            if seq.seq_id not in self._state.running or not self._wants_rows(seq):
                continue
            start = seq.num_scheduled
            rows = self._chunk(step, seq, start, now)
            if rows and not self._make_room(step, seq, start, start + rows):
                rows = self._fitting(step, seq, start, rows)
            if rows:
                self._add_prefill(step, seq, start, rows)

    def _fitting(self, step: _Step, seq: Sequence, start: int, rows: int) -> int:
        """A shorter chunk for which there is room, allocated; 0 if there is none."""
        while not self._grid and (rows := rows // 2):
            if self._allocate(step, seq, start, start + rows):
                return rows
        return 0

    def _chunk(self, step: _Step, seq: Sequence, start: int, now: float) -> int:
        remaining = len(seq.tokens) - start
        rows = self._state.policy.chunk(seq.view, remaining, self._budget(step, now))
        if self._grid:
            rows = min(rows, self._grid - start % self._grid)
            if rows < min(remaining, self._grid - start % self._grid):
                return 0
        return rows

    def _budget(self, step: _Step, now: float) -> Budget:
        return Budget(
            rows=step.rows,
            max_rows=self._settings.max_batch_tokens,
            sequences=len(self._state.free_rows),
            decoding=step.decoding,
            now=now,
        )

    def _add_prefill(self, step: _Step, seq: Sequence, start: int, rows: int) -> None:
        final = start + rows == len(seq.tokens)
        span = Span(
            seq.seq_id,
            seq.epoch,
            start,
            start + rows,
            samples=self._samples(seq) if final else 0,
            scores=seq.scores_prompt,
            propose=self._first_proposal(seq, step) if final else 0,
            pools=seq.request.pooling if final or seq.request.pooling == "mean" else "",
        )
        self._commit_span(step, seq, span, step.prefill)

    def _first_proposal(self, seq: Sequence, step: _Step) -> int:
        if not self._device_spec or not seq.generates or seq.request.sampling.n > 1:
            return 0
        return max(0, min(self._max_k, self._length_room(seq) - 1))

    def _commit_span(self, step: _Step, seq: Sequence, span: Span, where: list[Span]) -> None:
        where.append(span)
        step.planned.add(seq.seq_id)
        step.rows -= span.stop - span.start
        seq.num_scheduled = span.stop
        seq.device_k = span.propose
        if span.samples:
            seq.pending += span.k + 1

    # -- pages -----------------------------------------------------------------------------------------------------

    def _allocate(self, step: _Step, seq: Sequence, start: int, stop: int, slack: int = 0) -> bool:
        """Make `[start, stop)` addressable (and `slack` more, for what a device speculator will draft)."""
        limit = self._settings.max_model_tokens + self._settings.max_draft_tokens
        want = SlotRequest(write_from=start, stop=min(stop + slack, limit), tokens=stop)
        answer = self._state.allocator.allocate(seq.view, want, self._no_hit)
        if not isinstance(answer, Allocation):
            self._state.no_space += 1
            return False
        seq.allocated = max(seq.allocated, want.stop)
        self._state.take_pages(answer)
        return True

    def _make_room(self, step: _Step, seq: Sequence, start: int, stop: int, slack: int = 0) -> bool:
        """Allocate, preempting others one by one while the policy names victims."""
        while not self._allocate(step, seq, start, stop, slack):
            want = SlotRequest(write_from=start, stop=stop + slack, tokens=stop)
            quote = self._state.allocator.quote(seq.view, want, self._no_hit)
            candidates = self._candidates(step, seq)
            need = max(1, quote.new - quote.free)
            victim = self._state.policy.victim(candidates, need, seq.view) if candidates else -1
            if victim < 0:
                step.starved = True
                return False
            self._state.preempt(self._state.running[victim])
            step.preempted = True
        return True

    def _candidates(self, step: _Step, requester: Sequence) -> list[Candidate]:
        """Settled sequences whose pages would come free at once."""
        found = []
        for seq in self._state.running.values():
            settled = seq.pending == 0 and seq.num_scheduled == seq.num_computed
            if seq is requester or seq.seq_id in step.planned or not settled:
                continue
            found.append(Candidate(seq.view, self._state.allocator.reclaimable(seq.seq_id)))
        return found

    # -- waiting ---------------------------------------------------------------------------------------------------

    def _plan_waiting(self, step: _Step, sequences: Items[Sequence], now: float) -> None:
        for seq in sequences:
            if step.rows <= 0 or not self._state.free_rows:
                return
            if not self._start(step, seq, now):
                if seq.seq_id in self._state.waiting:
                    step.starved = True
                if self._state.policy.strict:
                    return

    def _start(self, step: _Step, seq: Sequence, now: float) -> bool:
        """Try to start a waiting sequence; False if it is in the way of those behind it."""
        state = self._state
        limit = 0 if seq.needs_all_rows else len(seq.tokens) - 1  # a span has a row
        hit = state.allocator.lookup(seq.view, seq.keys.extend(seq.tokens), limit)
        if self._somebody_computes(seq, hit.tokens, limit):
            return True
        found = TierHit(hit.tokens, ())
        if not state.tiers.empty and limit > hit.tokens:
            answer = state.tiers.match(seq, hit, limit)
            if isinstance(answer, Pending):
                if self._waits_for_tier(seq, now):
                    step.patient = True
                    return True
            else:
                found = answer
        if found.tokens > hit.tokens:
            started = self._load(step, seq, hit, found, now)
            if started is not None:
                return started
        return self._admit(step, seq, hit, now)

    def _waits_for_tier(self, seq: Sequence, now: float) -> bool:
        if seq.tier_wait_since < 0:
            seq.tier_wait_since = now
        waited = now - seq.tier_wait_since
        return waited < TIER_PATIENCE and self._state.policy.wait_for_tier(seq.view, waited)

    def _somebody_computes(self, seq: Sequence, hit_tokens: int, limit: int) -> bool:
        """Whether to wait, for a bounded time, until another sequence commits the next page of the same prefix."""
        groups = self._state.layout.groups
        if not groups or not self._state.composition.allocator.caps.prefix_reuse:
            return False
        page = hit_tokens // groups[0].page_tokens
        if (page + 1) * groups[0].page_tokens > limit or page >= len(seq.keys.groups[0]):
            return False
        owner = self._state.computing.get(seq.keys.groups[0][page])
        if owner is None or owner == seq.seq_id or owner not in self._state.running:
            return False
        seq.prefix_waits += 1
        return seq.prefix_waits <= self._settings.prefix_wait

    def _may_enter(self, step: _Step, seq: Sequence, want: SlotRequest, hit: Hit, now: float) -> bool:
        """Whether it may take pages now. What can never fit, and what the policy rejects, ends here."""
        quote = self._state.allocator.quote(seq.view, want, hit)
        if not quote.fits_ever:
            error: CapacityError = OversizeError(
                f"the sequence may need {quote.needed_ever} pages and the pool has {quote.total}",
                subject=f"request {seq.request.request_id!r}",
                remedy="Ask for fewer tokens, or raise engine.kv_memory",
            )
            self._state.finish(seq, "error", error)
            return False
        decision = self._state.policy.admit(seq.view, quote, self._budget(step, now))
        if isinstance(decision, Reject):
            error = CapacityError(
                f"the scheduler refused it: {decision.reason}",
                subject=f"request {seq.request.request_id!r}",
                remedy=f"Retry after {decision.retry_after:g} s" if decision.retry_after > 0 else "Retry later",
            )
            self._state.finish(seq, "error", error)
            return False
        return not isinstance(decision, Defer)

    def _admit(self, step: _Step, seq: Sequence, hit: Hit, now: float) -> bool:
        state = self._state
        remaining = len(seq.tokens) - hit.tokens
        rows = min(remaining, step.rows)
        longest = max(seq.length_limit(self._settings.max_model_tokens), len(seq.tokens))
        want = SlotRequest(write_from=hit.tokens, stop=hit.tokens + rows, tokens=longest)
        if not self._may_enter(step, seq, want, hit, now):
            return seq.seq_id not in state.live
        start = hit.tokens
        seq.num_scheduled = seq.num_computed = start
        rows = self._chunk(step, seq, start, now)
        answer: Allocation | NoSpace | None = None
        while rows:
            want = SlotRequest(write_from=start, stop=start + rows, tokens=longest)
            answer = state.allocator.allocate(seq.view, want, hit)
            if isinstance(answer, Allocation) or self._grid or state.running:
                break
            rows //= 2  # alone in the pool: start with what fits
        if not isinstance(answer, Allocation):
            seq.num_scheduled = seq.num_computed = 0
            return False
        self._run(seq, hit, answer, want.stop, now)
        self._add_prefill(step, seq, start, rows)
        return True

    def _run(self, seq: Sequence, hit: Hit, allocation: Allocation, allocated: int, now: float) -> None:
        state = self._state
        del state.waiting[seq.seq_id]
        state.running[seq.seq_id] = seq
        self._note_start(seq, hit, now)
        seq.allocated = allocated
        state.take_row(seq)
        state.take_pages(allocation)

    def _note_start(self, seq: Sequence, hit: Hit, now: float) -> None:
        self._state.hit_tokens += hit.tokens
        seq.prefix_waits = 0
        seq.tier_wait_since = -1.0
        if seq.first_scheduled < 0:
            seq.first_scheduled = now
            seq.hit_tokens = hit.tokens
        self._state.policy.observe(SchedEvent(kind="scheduled", at=now, seq_id=seq.seq_id))

    def _load(self, step: _Step, seq: Sequence, hit: Hit, found: TierHit, now: float) -> bool | None:
        """Start loading `[hit, found)` from tiers; None if there is no room for it."""
        state = self._state
        longest = max(seq.length_limit(self._settings.max_model_tokens), len(seq.tokens))
        want = SlotRequest(
            write_from=found.tokens, stop=found.tokens, external=found.tokens - hit.tokens, tokens=longest
        )
        if not self._may_enter(step, seq, want, hit, now):
            return seq.seq_id not in state.live
        answer = state.allocator.allocate(seq.view, want, hit)
        if not isinstance(answer, Allocation):
            return None
        del state.waiting[seq.seq_id]
        state.loading[seq.seq_id] = seq
        seq.num_computed = seq.num_scheduled = hit.tokens
        seq.allocated = found.tokens
        self._note_start(seq, hit, now)
        state.hold_row(seq, answer)
        state.tiers.load(seq, found, answer)
        return True

    # -- liveness --------------------------------------------------------------------------------------------------

    def _watch(self, step: _Step, in_flight: int) -> None:
        """Never hang: with nothing planned, in flight or loading, make room by force, then overrule the policy."""
        state = self._state
        state.policy.overruled = False
        if step.spans or in_flight or step.patient or state.loading or state.tiers.active:
            self._empty_steps = 0
            return
        if not state.running and not state.waiting:
            return
        self._empty_steps += 1
        stuck = [*state.running.values(), *state.waiting.values()]
        if step.starved and len(state.running) > 1 and self._empty_steps > 1:
            state.preempt(max(state.running.values(), key=_last_in_order))
        if self._empty_steps >= 2 * STALL_STEPS:
            error = CapacityError(
                "no pages came free for it although nothing else runs",
                subject=f"request {stuck[0].request.request_id!r}",
                remedy="Raise engine.kv_memory, or report the allocator that keeps pages nobody holds",
            )
            state.finish(stuck[0], "error", error)
            self._empty_steps = 0
        elif self._empty_steps >= STALL_STEPS:
            if self._empty_steps == STALL_STEPS:
                state.policy.stalled()
            state.policy.overruled = True


def _last_in_order(seq: Sequence) -> tuple[int, float, int]:
    return (-seq.request.priority, seq.arrival, seq.seq_id)
