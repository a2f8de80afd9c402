"""EngineState: who is live and where, what the next plan must carry, and the single exit of every sequence."""

from collections.abc import Callable

from tokloom.core.composition import Composition
from tokloom.core.events import OutputEvent, TokenLogprobs, Usage
from tokloom.core.faults import Faults
from tokloom.core.keys import KeyChain
from tokloom.core.logs import get_logger
from tokloom.core.numbers import Numbers, Totals
from tokloom.core.plan import RowBegin
from tokloom.core.policy import GuardedPolicy
from tokloom.core.runner import Runner
from tokloom.core.sequence import Sequence
from tokloom.core.speculation import HostSpeculation
from tokloom.core.tiers import Tiers
from tokloom.sdk import (
    Allocation,
    FinishReason,
    Request,
    RequestStats,
    RequestSummary,
    SchedEvent,
    SeqId,
    TableDelta,
    TokloomError,
)


class EngineState:
    """Containers say where a sequence is: `waiting`, `loading` or `running`; `live` has them all.

    Attributes:
        deltas, begins, ends: what the next plan carries to the runner, in order.
        launched: id of the last launched step; `settled`: of the last one whose result was taken.
        computing: key of a page that a running sequence is about to compute -> that sequence.
    """

    def __init__(self, composition: Composition, runner: Runner, now: Callable[[], float]) -> None:
        self.composition = composition
        self.settings = composition.settings
        self.layout = composition.layout
        self.allocator = composition.allocator.plugin
        self.runner = runner
        self.now = now
        self.faults = Faults()
        self.policy = GuardedPolicy(composition.scheduler, self.faults)
        self.tiers = Tiers(composition, self.faults, lambda: self.launched)
        self.host_spec: HostSpeculation | None = None
        if composition.speculator is not None and composition.speculator.caps.placement == "host":
            self.host_spec = HostSpeculation(composition.speculator, runner.sampler, self.faults)
        self.live: dict[SeqId, Sequence] = {}
        self.waiting: dict[SeqId, Sequence] = {}
        self.loading: dict[SeqId, Sequence] = {}
        self.running: dict[SeqId, Sequence] = {}
        self.requests: dict[str, dict[int, Sequence]] = {}
        self.free_rows = list(range(composition.settings.max_sequences - 1, -1, -1))
        self.deltas: list[TableDelta] = []
        self.begins: list[RowBegin] = []
        self.ends: list[SeqId] = []
        self.events: dict[tuple[str, int], OutputEvent] = {}
        self.launched = 0
        self.settled = 0
        self.computing: dict[bytes, SeqId] = {}
        self.totals = Totals()
        self.preempted = 0
        self.hit_tokens = 0
        self.no_space = 0
        self._log = get_logger("engine")
        self.rejected: dict[str, int] = {}
        self._held: dict[SeqId, tuple[TableDelta, ...]] = {}
        self._next_seq = 1

    def numbers(self) -> Numbers:
        """Everything that is counted, now."""
        return Numbers(
            running=len(self.running),
            waiting=len(self.waiting) + len(self.loading),
            steps=self.totals.steps,
            prefill_tokens=self.totals.prefill_tokens,
            hit_tokens=self.hit_tokens,
            tier_tokens=self.tiers.loaded_tokens,
            generated_tokens=self.totals.generated_tokens,
            drafted=self.totals.drafted,
            accepted=self.totals.accepted,
            preemptions=self.preempted,
            faults=self.faults.counts,
            kv=self.allocator.stats(),
        )

    def create(self, request: Request, child: int, tokens: list[int], arrival: float, seed: int) -> Sequence:
        """A new live sequence, in no container yet."""
        keys = KeyChain(self.layout, request.scope)
        keys.extend(tokens)
        seq = Sequence(self._next_seq, request, child, tokens, keys, arrival, seed)
        self._next_seq += 1
        self.live[seq.seq_id] = seq
        self.requests.setdefault(request.request_id, {})[child] = seq
        return seq

    def take_row(self, seq: Sequence, parent: SeqId = -1) -> None:
        """Give the sequence a row and let the next plan begin it."""
        if seq.row < 0:
            seq.row = self.free_rows.pop()
        seq.begun = self.launched + 1
        seq.declined_blocks.clear()
        self.runner.register(seq)
        self.begins.append(RowBegin(seq.seq_id, seq.row, tuple(seq.tokens), seq.num_computed, parent))
        if self.host_spec is not None:
            self.host_spec.begin(seq, parent)
        self.deltas += self._held.pop(seq.seq_id, ())
        for key in self._prompt_keys(seq):
            self.computing.setdefault(key, seq.seq_id)

    def hold_row(self, seq: Sequence, allocation: Allocation) -> None:
        """Reserve a row for a sequence whose pages are being loaded; its table entries follow when it begins."""
        seq.row = self.free_rows.pop()
        self._held[seq.seq_id] = allocation.deltas
        if allocation.evicted:
            self.tiers.evicted(allocation.evicted)

    def _prompt_keys(self, seq: Sequence) -> list[bytes]:
        first = seq.num_computed // self.layout.groups[0].page_tokens if self.layout.groups else 0
        return seq.keys.groups[0][first:] if self.layout.groups else []

    def take_pages(self, allocation: Allocation) -> None:
        """Forward what the allocator did."""
        self.deltas += allocation.deltas
        if allocation.evicted:
            self.tiers.evicted(allocation.evicted)

    def drop_pages(self, seq: Sequence) -> None:
        """The sequence leaves its row and its pages; results in flight become stale."""
        self.allocator.release(seq.seq_id, self.launched)
        self.tiers.cancel(seq.seq_id)
        if self.host_spec is not None:
            self.host_spec.end(seq.seq_id)
        self._held.pop(seq.seq_id, None)
        for container in (self.waiting, self.loading, self.running):
            container.pop(seq.seq_id, None)
        if seq.row >= 0:
            self.free_rows.append(seq.row)
            self.deltas = [delta for delta in self.deltas if delta.seq_id != seq.seq_id]
            begun = [begin for begin in self.begins if begin.seq_id != seq.seq_id]
            if len(begun) == len(self.begins):
                self.ends.append(seq.seq_id)
            else:
                self.runner.unregister(seq.seq_id)
            self.begins = begun
        for key in seq.keys.groups[0] if seq.keys.groups else ():
            if self.computing.get(key) == seq.seq_id:
                del self.computing[key]
        seq.restart()

    def preempt(self, seq: Sequence) -> None:
        """Back to waiting; everything is computed again later."""
        self.drop_pages(seq)
        seq.preemptions += 1
        self.preempted += 1
        now = self.now()
        if self.composition.observers:
            seq.preempted.append(now)
        self.tiers.preempted(seq.seq_id)
        self.policy.observe(SchedEvent(kind="preempted", at=now, seq_id=seq.seq_id))
        self.waiting[seq.seq_id] = seq
        self._log.info("preempted", request_id=seq.request.request_id, child=seq.child, times=seq.preemptions)

    def finish(self, seq: Sequence, reason: FinishReason, error: TokloomError | None = None) -> None:
        """The single exit. The sequence's last event is emitted here, its resources return."""
        self.drop_pages(seq)
        self.tiers.finished(seq.seq_id)
        del self.live[seq.seq_id]
        siblings = self.requests[seq.request.request_id]
        del siblings[seq.child]
        if not siblings:
            del self.requests[seq.request.request_id]
        now = self.now()
        usage = self._usage(seq, now)
        embedding = seq.embedding if reason == "embedded" else ()
        self.emit(seq, embedding=embedding, reason=reason, error=error, usage=usage)
        if not seq.forked:
            self._end_unborn(seq, reason, error, usage)
        self.policy.observe(SchedEvent(kind="finished", at=now, seq_id=seq.seq_id))
        self._observe(seq, reason, error, now)
        self._report(seq, reason, error, usage)

    def _report(self, seq: Sequence, reason: FinishReason, error: TokloomError | None, usage: Usage) -> None:
        said = {} if error is None else {"error": str(error)}
        self._log.info(
            "finished",
            request_id=seq.request.request_id,
            child=seq.child,
            reason=reason,
            prompt_tokens=usage.prompt_tokens,
            output_tokens=usage.output_tokens,
            seconds=round(usage.total, 3),
            **said,
        )

    def _end_unborn(self, seq: Sequence, reason: FinishReason, error: TokloomError | None, usage: Usage) -> None:
        """Children that were never forked end as their parent did: a caller gets one last event for each of n."""
        for child in range(1, seq.request.sampling.n):
            self.events[seq.request.request_id, child] = OutputEvent(
                request_id=seq.request.request_id, child=child, finish_reason=reason, error=error, usage=usage
            )

    def _usage(self, seq: Sequence, now: float) -> Usage:
        return Usage(
            prompt_tokens=seq.num_prompt,
            output_tokens=seq.num_output,
            hit_tokens=seq.hit_tokens,
            tier_tokens=seq.tier_tokens,
            drafted=seq.drafted,
            accepted=seq.accepted,
            preemptions=seq.preemptions,
            queued=_since(seq.first_scheduled, seq.arrival),
            ttft=_since(seq.first_token, seq.arrival),
            total=now - seq.arrival,
        )

    def _observe(self, seq: Sequence, reason: FinishReason, error: TokloomError | None, now: float) -> None:
        if not self.composition.observers:
            return
        stats = RequestStats(
            request_id=seq.request.request_id,
            tenant=seq.request.tenant,
            seq_id=seq.seq_id,
            finish_reason=reason,
            prompt_tokens=seq.num_prompt,
            output_tokens=seq.num_output,
            hit_tokens=seq.hit_tokens,
            tier_tokens=seq.tier_tokens,
            queued=_since(seq.first_scheduled, seq.arrival),
            ttft=_since(seq.first_token, seq.arrival),
            total=now - seq.arrival,
            preemptions=seq.preemptions,
            drafted=seq.drafted,
            accepted=seq.accepted,
            objectives=seq.request.objectives,
            child=seq.child,
            remaining=len(self.requests.get(seq.request.request_id, ())),
            preempted=tuple(moment - seq.arrival for moment in seq.preempted),
            error="" if error is None else error.code,
            asked=self._summary(seq.request),
            trace=seq.request.trace,
        )
        for part in self.composition.observers:
            try:
                part.plugin.on_request(stats)
            except Exception as fault:
                self.faults.record(part.id, "on_request", fault)

    def _summary(self, request: Request) -> RequestSummary:
        params, digest = request.sampling, request.scope.adapter
        adapters = self.composition.adapters.items() if digest else ()
        return RequestSummary(
            task=request.task,
            chat=request.chat,
            adapter=next((name for name, entry in adapters if entry.info.digest == digest), ""),
            grammar="" if params.grammar is None else params.grammar.syntax,
            max_tokens=params.max_tokens,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            n=params.n,
            seed=params.seed,
        )

    def emit(
        self,
        seq: Sequence,
        tokens: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprobs, ...] = (),
        prompt_logprobs: tuple[TokenLogprobs, ...] = (),
        embedding: tuple[float, ...] = (),
        reason: FinishReason | None = None,
        error: TokloomError | None = None,
        usage: Usage | None = None,
    ) -> None:
        """Add to the sequence's event of this step."""
        last = self.events.get((seq.request.request_id, seq.child))
        if last is not None:
            tokens = last.tokens + tokens
            logprobs = last.logprobs + logprobs
            prompt_logprobs = last.prompt_logprobs + prompt_logprobs
        self.events[seq.request.request_id, seq.child] = OutputEvent(
            request_id=seq.request.request_id,
            child=seq.child,
            tokens=tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            embedding=embedding,
            finish_reason=reason,
            error=error,
            usage=usage,
        )


def _since(moment: float, arrival: float) -> float:
    return moment - arrival if moment >= 0 else -1.0
