"""Committer: takes a launch's results into the host's state. Nothing in here may fail for lack of space."""

from collections.abc import Sequence as Items
from typing import Final

from tokloom.core.events import TokenLogprobs
from tokloom.core.plan import Span, StepPlan
from tokloom.core.pooling import embedding
from tokloom.core.runner import PagesLost, SpanResult, StepResult
from tokloom.core.sampling import AdaptiveK
from tokloom.core.sampling import TokenLogprobs as RowLogprobs
from tokloom.core.sequence import Sequence
from tokloom.core.speculation import subset
from tokloom.core.state import EngineState
from tokloom.sdk import Allocation, FinishReason, IngestBatch, PluginFault, SchedEvent, StepStats, Task, TokloomError

#: why a sequence ends whose prompt is all it wanted
_ENDS: Final[dict[Task, FinishReason]] = {"generate": "length", "score": "scored", "embed": "embedded"}


class Committer:
    """Per span, in the order of the plan: drop if stale; advance; fork; append and stop; truncate; publish; slide. Then
    the host speculator ingests what stands, sequences that ended leave, and observers are told.
    """

    def __init__(self, state: EngineState, controller: AdaptiveK) -> None:
        self._state = state
        self._controller = controller
        self._eos = frozenset(state.composition.model.spec.eos_ids)
        self._lookahead = max((group.key_lookahead for group in state.layout.groups), default=0)
        self._windowed = [group for group in state.layout.groups if group.window is not None]
        self._draft_kv = any(group.owner == "speculator" for group in state.layout.groups)
        self._last: tuple[int, ...] = (0,) * 7
        self._observed = bool(state.composition.observers)
        self._gaps: list[float] = []
        self._ended: list[tuple[Sequence, FinishReason]] = []

    def commit(self, plan: StepPlan, result: StepResult, started: float, launched: float) -> None:
        state = self._state
        state.settled = plan.step
        state.allocator.settle(plan.step)
        self._take_device_faults()
        known = [self._commit_span(span, outcome) for span, outcome in zip(plan.spans, result.spans, strict=True)]
        if state.host_spec is not None and result.ingest is not None:
            self._ingest(result.ingest, known)
        for seq, reason in self._ended:
            self._publish(seq)
            state.finish(seq, reason)
        self._ended.clear()
        self._count(plan, result, started, launched)

    def _take_device_faults(self) -> None:
        """What a device speculator did wrong inside the launch."""
        device, part = self._state.runner.on_device, self._state.composition.speculator
        if device is None or part is None:
            return
        for method, what in device.errors:
            self._state.faults.record(part.id, method, what)
        device.errors.clear()

    def fail(self, plan: StepPlan, error: Exception) -> None:
        """The launch raised: its sequences end with an error, everyone else goes on."""
        state = self._state
        state.settled = plan.step
        state.allocator.settle(plan.step)
        lost = isinstance(error, PagesLost)
        cause = error.__cause__ if lost and isinstance(error.__cause__, Exception) else error
        fault = cause if isinstance(cause, TokloomError) else _launch_fault(cause)
        for span in plan.spans:
            seq = state.live.get(span.seq_id)
            if seq is not None and seq.epoch == span.epoch:
                state.finish(seq, "error", fault)
        if lost:
            self._distrust(plan.step)

    def _distrust(self, step: int) -> None:
        """Anything may share the pages that were lost: forget what is cached, and let everyone compute again."""
        state = self._state
        state.allocator.invalidate(None)
        state.tiers.forget(step)
        for seq in list(state.running.values()):
            state.preempt(seq)
        for seq in list(state.loading.values()):
            state.drop_pages(seq)
            state.waiting[seq.seq_id] = seq

    def loaded(self, seq: Sequence, tokens: int, complete: bool) -> None:
        """A tier filled the pages up to `tokens`, or did not."""
        state = self._state
        if not complete:
            state.drop_pages(seq)
            state.waiting[seq.seq_id] = seq
            return
        del state.loading[seq.seq_id]
        state.running[seq.seq_id] = seq
        seq.tier_tokens += tokens - seq.num_computed
        seq.num_computed = seq.num_scheduled = tokens
        state.take_row(seq)
        self._slide(seq)
        self._publish(seq)

    def _commit_span(self, span: Span, result: SpanResult) -> int:
        """Returns how many rows a speculator may learn from. A sequence that ends keeps its pages until then: what it
        publishes holds a speculator's KV too.
        """
        state = self._state
        seq = state.live.get(span.seq_id)
        if seq is None or seq.epoch != span.epoch:
            return 0
        seq.num_computed = result.start + result.rows
        seq.num_scheduled -= span.stop - span.start - result.rows
        if span.samples:
            seq.pending -= span.k + 1
        seq.note_drafts(result.drafted, len(result.accepted))
        self._score(seq, result)
        error = result.error or self._pool(seq, result)
        if error is not None:
            state.finish(seq, "error", error)
            return 0
        logprobs = [_logprobs(own, logs) for own, logs in zip(result.tokens, result.logprobs, strict=False)]
        if len(result.tokens) > 1 and not seq.forked:
            self._fork(seq, result, logprobs)
        reason = self._append(seq, result.tokens[0], logprobs[0] if logprobs else ()) if result.tokens else None
        if reason is None and result.ended:
            reason = "stop"
        if reason is None and not seq.generates and seq.num_computed == len(seq.tokens):
            reason = _ENDS[seq.request.task]
        # behind a stop, verified rows continue with tokens that do not stand
        known = min(result.rows, len(seq.tokens) - (1 if result.tokens else 0) - result.start)
        if reason is not None:
            self._ended.append((seq, reason))
            return known
        if result.rows < span.stop - span.start:
            state.deltas += state.allocator.truncate(seq.seq_id, seq.num_scheduled, state.launched)
            seq.allocated = seq.num_scheduled
        self._publish(seq)
        self._slide(seq)
        return known

    def _score(self, seq: Sequence, result: SpanResult) -> None:
        if not seq.scores_prompt:
            return
        if not seq.prompt_logprobs:
            seq.prompt_logprobs.append(TokenLogprobs(seq.tokens[0], float("nan")))
        start = len(seq.prompt_logprobs)
        targets = seq.tokens[start : start + len(result.prompt_logprobs)]
        seq.prompt_logprobs += _logprobs(targets, result.prompt_logprobs)
        if seq.num_computed >= seq.num_prompt:
            seq.prompt_scored = True
            self._state.emit(seq, prompt_logprobs=tuple(seq.prompt_logprobs))

    def _pool(self, seq: Sequence, result: SpanResult) -> TokloomError | None:
        """Add a span's rows to the sequence's sum; at the end of the prompt it becomes the embedding."""
        if result.pooled is None:
            return None
        seq.pooled = result.pooled if seq.pooled is None else seq.pooled + result.pooled
        if seq.num_computed < len(seq.tokens):
            return None
        rows = len(seq.tokens) if seq.request.pooling == "mean" else 1
        vector = embedding(seq.pooled, rows, normalize=seq.request.normalize)
        if vector is None:
            return PluginFault(
                "the model gave hidden states that are NaN or infinite",
                subject=f"request {seq.request.request_id!r}",
                remedy="Check the weights, or compute in a wider model.dtype",
            )
        seq.embedding = vector
        return None

    def _append(self, seq: Sequence, tokens: Items[int], logprobs: tuple[TokenLogprobs, ...]) -> FinishReason | None:
        """Append tokens up to the first that ends the sequence."""
        state = self._state
        if seq.first_token < 0:
            seq.first_token = state.now()
            state.policy.observe(SchedEvent(kind="first_token", at=seq.first_token, seq_id=seq.seq_id))
        limit = seq.length_limit(state.settings.max_model_tokens)
        reason: FinishReason | None = None
        taken = 0
        for token in tokens:
            seq.tokens.append(token)
            taken += 1
            reason = self._ends(seq, token, limit)
            if reason is not None:
                break
        state.totals.generated_tokens += taken
        if self._observed:
            self._note_gap(seq)
        seq.keys.extend(seq.tokens)
        state.emit(seq, tokens=tuple(tokens[:taken]), logprobs=logprobs[:taken])
        return reason

    def _note_gap(self, seq: Sequence) -> None:
        now = self._state.now()
        if seq.last_token >= 0:
            self._gaps.append(now - seq.last_token)
        seq.last_token = now

    def _ends(self, seq: Sequence, token: int, limit: int) -> FinishReason | None:
        params = seq.request.sampling
        if seq.num_output >= params.min_tokens and (
            token in params.stop_token_ids or (token in self._eos and not params.ignore_eos)
        ):
            return "stop"
        return "length" if len(seq.tokens) >= limit else None

    def _fork(self, seq: Sequence, result: SpanResult, logprobs: list[tuple[TokenLogprobs, ...]]) -> None:
        """Children share the prompt's pages, before anything is sealed or published over them."""
        state = self._state
        seq.forked = True
        for child in range(1, len(result.tokens)):
            tokens = list(seq.tokens)
            other = state.create(seq.request, child, tokens, seq.arrival, seq.seed)
            other.first_scheduled = seq.first_scheduled
            other.hit_tokens = seq.hit_tokens
            own = logprobs[child] if logprobs else ()
            reason = self._append(other, result.tokens[child], own)
            if reason is not None:
                state.finish(other, reason)
            elif not self._share(seq, other):
                state.waiting[other.seq_id] = other

    def _share(self, seq: Sequence, other: Sequence) -> bool:
        """Give a child its parent's pages, less the positions whose bytes depend on tokens that may differ."""
        state = self._state
        tokens = seq.num_computed - self._lookahead
        if not state.free_rows or tokens <= 0:
            return False
        answer = state.allocator.fork(seq.seq_id, other.seq_id, tokens)
        if not isinstance(answer, Allocation):
            return False
        other.num_computed = other.num_scheduled = other.allocated = tokens
        state.running[other.seq_id] = other
        state.take_row(other, seq.seq_id)
        state.take_pages(answer)
        return True

    def _publish(self, seq: Sequence) -> None:
        """Make full pages findable, when there are new ones. Not where a host speculator's own KV is behind: it is told
        of nothing after a fault.
        """
        state = self._state
        host = state.host_spec
        if host is not None and self._draft_kv and not host.follows(seq.seq_id):
            return
        keys = seq.keys.groups
        ready = 0
        for group in state.layout.groups:
            pages = max(0, seq.num_computed - group.residual_tokens) // group.page_tokens
            ready += min(pages, len(keys[group.id]))
        if ready == seq.published:
            return
        seq.published = ready
        published = state.allocator.publish(seq.view, seq.num_computed, keys)
        state.deltas += published.deltas
        for group_id, key, _ in published.pages:
            if group_id == 0:
                state.computing.pop(key, None)
        state.tiers.published(published.pages, state.launched + 1 if state.allocator.pending_ops() else state.settled)

    def _slide(self, seq: Sequence) -> None:
        """Drop pages that windows cannot see any more."""
        for group in self._windowed:
            assert group.window is not None
            page = max(0, seq.num_computed - group.window + 1) // group.page_tokens
            if page > seq.slid:
                state = self._state
                state.deltas += state.allocator.slide(seq.seq_id, seq.num_computed, state.launched)
                seq.slid = page
                return

    def _ingest(self, batch: IngestBatch, known: Items[int]) -> None:
        host = self._state.host_spec
        assert host is not None
        counts = [rows if host.follows(seq_id) else 0 for rows, seq_id in zip(known, batch.seq_ids, strict=True)]
        host.ingest(subset(batch, counts))

    def _count(self, plan: StepPlan, result: StepResult, started: float, launched: float) -> None:
        state = self._state
        if not plan.spans:
            return
        now = state.now()
        drafted = [span.drafted for span in result.spans]
        accepted = [len(span.accepted) for span in result.spans]
        rows = sum(span.rows for span in result.spans) + sum(drafted) - sum(accepted)
        decoding = plan.num_decode + plan.num_verify
        totals = state.totals
        totals.steps += 1
        totals.prefill_tokens += sum(span.stop - span.start for span in plan.spans[decoding:])
        totals.drafted += sum(drafted)
        totals.accepted += sum(accepted)
        if decoding == len(plan.spans) and state.composition.speculator is not None:
            self._controller.observe(rows, decoding, now - started, drafted, accepted)
        state.policy.observe(SchedEvent(kind="step", at=now, rows=rows, seconds=now - launched))
        if state.composition.observers:
            self._tell(plan, result, (started, launched, now), rows)

    def _tell(self, plan: StepPlan, result: StepResult, times: tuple[float, float, float], rows: int) -> None:
        state = self._state
        accepted = [len(span.accepted) for span in result.spans]
        drafted = [span.drafted for span in result.spans]
        totals = (
            state.preempted,
            state.hit_tokens,
            state.tiers.loaded_tokens,
            state.faults.total,
            state.no_space,
            state.totals.prefill_tokens,
            state.totals.generated_tokens,
        )
        fresh = [total - before for total, before in zip(totals, self._last, strict=True)]
        self._last = totals
        held, unused = self._slots()
        stats = StepStats(
            step=plan.step,
            started=times[0],
            launched=times[1],
            finished=times[2],
            rows=rows,
            prefill_rows=fresh[5],
            sequences=len(plan.spans),
            waiting=len(state.waiting),
            running=len(state.running),
            generated=fresh[6],
            gaps=tuple(self._gaps),
            drafted=sum(drafted),
            accepted=sum(accepted),
            drafted_by_depth=_by_depth(drafted),
            accepted_by_depth=_by_depth(accepted),
            preempted=fresh[0],
            hit_tokens=fresh[1],
            tier_tokens=fresh[2],
            faults=fresh[3],
            no_space=fresh[4],
            rejected=dict(state.rejected),
            faults_of=state.faults.counts,
            held_slots=held,
            unused_slots=unused,
            mask_seconds=result.masks.spent,
            mask_wait_seconds=result.masks.waited,
            kv=state.allocator.stats(),
            tiers=state.tiers.report(),
        )
        self._gaps.clear()
        for part in state.composition.observers:
            try:
                part.plugin.on_step(stats)
            except Exception as error:
                state.faults.record(part.id, "on_step", error)

    def _slots(self) -> tuple[int, int]:
        """Slots in the pages of running sequences, and those without a token."""
        groups = self._state.layout.groups
        page = groups[0].page_tokens if groups else 1
        held = unused = 0
        for seq in self._state.running.values():
            slots = -(-seq.allocated // page) * page
            held += slots
            unused += slots - seq.num_computed
        return held, unused


def _by_depth(counts: Items[int]) -> tuple[int, ...]:
    return tuple(sum(count > depth for count in counts) for depth in range(max(counts, default=0)))


def _logprobs(tokens: Items[int], logs: Items[RowLogprobs]) -> tuple[TokenLogprobs, ...]:
    return tuple(
        TokenLogprobs(token, log.chosen, tuple(zip(log.ids, log.values, strict=True)))
        for token, log in zip(tokens, logs, strict=False)
    )


def _launch_fault(error: Exception) -> PluginFault:
    fault = PluginFault(
        f"the step failed: {type(error).__name__}: {error}", remedy="See the log for the plugin that raised"
    )
    fault.__cause__ = error
    return fault
