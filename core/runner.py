"""Runner: executes step plans: page operations, forward, sampling, verification, moves of accepted KV."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from attrs import evolve, field, frozen
from numpy.typing import NDArray
from torch import Tensor

from tokloom.core.attend import Attend
from tokloom.core.batch import StepRows, adapter_rows, flatten
from tokloom.core.composition import Composition
from tokloom.core.device import Handle
from tokloom.core.graphs import DecodeGraphs
from tokloom.core.plan import RowBegin, Span, StepPlan
from tokloom.core.pooling import pool
from tokloom.core.pools import PagePools
from tokloom.core.rows import Rows
from tokloom.core.sampling import (
    MaskTimes,
    Sampler,
    ScoreRows,
    ScoreSample,
    SpanRows,
    SpanSample,
    TokenLogprobs,
    stream,
    uniform,
)
from tokloom.core.sequence import Sequence as CoreSequence
from tokloom.core.speculation import DeviceSpeculation
from tokloom.sdk import (
    NO_DRAFT,
    AdapterRows,
    Draft,
    DraftPages,
    ForwardBatch,
    Grammar,
    GrammarSpec,
    GroupId,
    Hidden,
    IngestBatch,
    LoadedModel,
    OnDevice,
    PluginFault,
    SeqId,
    TokloomError,
)


@frozen
class SpanResult:
    """What became of a span.

    Attributes:
        start: exact first position.
        rows: leading rows that stand; their KV is final.
        tokens: per child drawn in this span (usually one) the tokens emitted.
        drafted: draft tokens verified.
        accepted: nodes of the draft that stand, root side first.
        ended: the grammar has ended the sequence.
        pooled: `[H]`, what the span adds to an embedding; None unless it pools.
    """

    seq_id: SeqId
    epoch: int
    start: int
    rows: int
    tokens: tuple[tuple[int, ...], ...] = ()
    drafted: int = 0
    accepted: tuple[int, ...] = ()
    logprobs: tuple[tuple[TokenLogprobs, ...], ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    ended: bool = False
    error: TokloomError | None = None
    pooled: NDArray[np.float64] | None = field(default=None, eq=False)


@frozen
class StepResult:
    """Results in the order of the plan's spans, the committed rows for a host speculator, and what masks took."""

    step: int
    spans: tuple[SpanResult, ...]
    ingest: IngestBatch | None = field(default=None, eq=False)
    masks: MaskTimes = field(factory=MaskTimes)


class PagesLost(Exception):
    """A page operation raised, `__cause__` says why: pages that it and later ones should have filled hold garbage."""


class Runner:
    """Owns pools, rows and sampling state. `launch` may run ahead of the host by the depth of the engine."""

    def __init__(self, composition: Composition, model: LoadedModel, pools: PagePools) -> None:
        settings = composition.settings
        self._composition = composition
        self._device = composition.device
        self._model = model
        self._ops = composition.ops.plugin
        self._pools = pools
        self.rows = Rows(
            composition.layout, settings.max_sequences, settings.max_model_tokens, settings.max_draft_tokens
        )
        spec = composition.model.spec
        mode = "rejection" if settings.verification == "rejection" else "match"
        block = {} if composition.device.is_host else {"block_elements": 0}
        self.sampler = Sampler(spec.vocab_size, spec.eos_ids, mode, threads=settings.threads, **block)  # type: ignore[arg-type]
        self._attend = Attend(composition, self.rows, pools)
        self.graphs = DecodeGraphs(composition, model, self.rows, self._attend)
        self._live: dict[SeqId, CoreSequence] = {}
        self._begins: dict[SeqId, int] = {}
        self._refused: dict[SeqId, TokloomError] = {}
        self._features = composition.needs.features
        self._draft_groups = [group for group in composition.layout.groups if group.owner == "speculator"]
        part = composition.speculator
        self._host_ingest = part is not None and part.caps.placement == "host"
        self.on_device: DeviceSpeculation | None = None
        if part is not None and part.caps.placement == "device":
            self.on_device = DeviceSpeculation(part.plugin, self.rows, self.sampler)
        composition.context.bind_sampling(_plugin_uniform, self._sample_draft)

    def register(self, seq: CoreSequence) -> None:
        """A sequence will begin in the next plan. It may still have to end in one that was launched before."""
        self._live[seq.seq_id] = seq
        self._begins[seq.seq_id] = self._begins.get(seq.seq_id, 0) + 1

    def unregister(self, seq_id: SeqId) -> None:
        """An announced begin will not happen, or its row has ended."""
        self._begins[seq_id] -= 1
        if not self._begins[seq_id]:
            del self._begins[seq_id], self._live[seq_id]

    def close(self) -> None:
        """End the threads that make masks; nothing is in flight."""
        self.sampler.close()

    def launch(self, plan: StepPlan) -> Handle[StepResult]:
        """Queue a step."""
        return self._device.stream.submit(lambda: self._execute(plan))

    def _execute(self, plan: StepPlan) -> StepResult:
        with torch.inference_mode():
            self._end(plan.ends)
            for begin in plan.begins:
                self._begin(begin)
            self.rows.apply(plan.deltas)
            try:
                self._pools.execute(plan.ops)
            except Exception as error:
                raise PagesLost(f"step {plan.step}") from error
            if not plan.spans:
                return StepResult(plan.step, ())
            only_decode = plan.num_decode == len(plan.spans)
            drafts = [NO_DRAFT] * plan.num_decode if only_decode else [self._draft(span) for span in plan.spans]
            step = flatten(self.rows, plan.spans, drafts, plan.num_decode, plan.num_verify)
            try:
                self.sampler.start_masks(
                    (span.seq_id, draft) for span, draft in zip(plan.spans, step.drafts, strict=True) if span.samples
                )
                hidden = self._forward(plan.step, step, self._adapter_rows(plan.spans, step))
                drawn, scored = self._draw(plan.spans, step, hidden)
            finally:
                masks = self.sampler.finish_masks()
            results = self._results(plan.spans, step, drawn, scored)
            for b, total in pool(plan.spans, step, hidden.last).items():
                results[b] = evolve(results[b], pooled=total)
            ingest = self._ingest(plan.spans, step, results, hidden)
            if self.on_device is not None and ingest is not None:
                self.on_device.after(plan.spans, results, ingest)
                ingest = None
            return StepResult(plan.step, tuple(results), ingest, masks)

    def _end(self, seq_ids: Sequence[SeqId]) -> None:
        for seq_id in self.rows.end(seq_ids):
            self.sampler.end(seq_id)
            self.unregister(seq_id)
            self._refused.pop(seq_id, None)
            if self.on_device is not None:
                self.on_device.end(seq_id)

    def _begin(self, begin: RowBegin) -> None:
        self.rows.begin(begin)
        seq = self._live[begin.seq_id]
        params = seq.request.sampling
        try:
            self.sampler.begin(
                begin.seq_id,
                seq.request,
                child=seq.child,
                num_prompt=seq.num_prompt,
                seed=seq.seed,
                processors=[(name, self._composition.processors[name]) for name in params.processors],
                grammar=self._grammar(params.grammar),
                tokens=begin.tokens,
            )
        except TokloomError as error:
            self._refused[begin.seq_id] = error
        except Exception as error:
            self._refused[begin.seq_id] = PluginFault(
                f"the request's sampling cannot start: {type(error).__name__}: {error}",
                subject=f"request {seq.request.request_id!r}",
                remedy="See the grammar and the logits processors that the request names",
            )
        if self.on_device is not None:
            self.on_device.begin(seq, begin)

    def _grammar(self, wanted: GrammarSpec | None) -> Grammar | None:
        if wanted is None:
            return None
        spec = self._composition.model.spec
        return self._composition.grammars[wanted.offer].start(wanted, spec.vocab_size, spec.eos_ids)

    def _draft(self, span: Span) -> Draft:
        if span.drafts is None:
            return NO_DRAFT
        if isinstance(span.drafts, OnDevice):
            return self.rows.drafts[self.rows.of(span.seq_id)].prefix(span.drafts.k)
        return span.drafts

    def _adapter_rows(self, spans: Sequence[Span], step: StepRows) -> tuple[AdapterRows, ...]:
        if not self._composition.adapters:
            return ()
        return adapter_rows([self._live[span.seq_id].request.scope.adapter for span in spans], step.indptr)

    def _forward(self, number: int, step: StepRows, adapters: tuple[AdapterRows, ...]) -> Hidden:
        if not adapters and self.graphs.apply_to(step):
            return self.graphs.run(step)
        self._attend.prepare(number, step)
        batch = ForwardBatch(
            token_ids=self._device.upload(self.rows.tokens[step.flat_rows, step.slots]),
            positions=self._device.upload(step.positions),
            q_indptr=step.indptr,
            features=self._features,
            adapters=adapters,
        )
        return self._model.forward(batch, self._attend, self._ops)

    def _results(
        self,
        spans: Sequence[Span],
        step: StepRows,
        drawn: Mapping[int, SpanSample],
        scored: Mapping[int, ScoreSample],
    ) -> list[SpanResult]:
        places = zip(spans, step.rows.tolist(), step.start.tolist(), step.counts.tolist(), strict=True)
        return [
            self._settle(span, row, start, count, step.drafts[b], drawn.get(b), scored.get(b))
            for b, (span, row, start, count) in enumerate(places)
        ]

    def _logits(self, hidden: Hidden, wanted: Mapping[int, tuple[int, int]]) -> Tensor | None:
        if not wanted:
            return None
        last = hidden.last
        if sum(stop - first for first, stop in wanted.values()) < last.shape[0]:
            index = np.concatenate([np.arange(first, stop) for first, stop in wanted.values()])
            last = last[self._device.upload(index)]
        return self._model.logits(last)

    def _draw(
        self, spans: Sequence[Span], step: StepRows, hidden: Hidden
    ) -> tuple[dict[int, SpanSample], dict[int, ScoreSample]]:
        """What each span draws and scores, by its place in the plan."""
        wanted = _wanted_rows(spans, step)
        logits = self._logits(hidden, wanted)
        if logits is None:
            return {}, {}
        sampling: dict[int, SpanRows] = {}
        scoring: dict[int, ScoreRows] = {}
        offset = 0
        rows = step.rows.tolist()
        for b, (first, stop) in wanted.items():
            span, row = spans[b], rows[b]
            end = offset + stop - first
            if span.scores and span.seq_id not in self._refused:
                targets = self._targets(span, step, b)
                if targets:
                    scoring[b] = ScoreRows(span.seq_id, offset, targets)
            if span.samples and span.seq_id not in self._refused:
                draft = step.drafts[b]
                tokens = self.rows.tokens[row, : self.rows.length[row]]
                sampling[b] = SpanRows(span.seq_id, tokens, end - 1 - len(draft.tokens), draft, span.samples)
            offset = end
        samples = self.sampler.sample(list(sampling.values()), logits) if sampling else []
        scores = self.sampler.prompt_logprobs(list(scoring.values()), logits) if scoring else []
        return dict(zip(sampling, samples, strict=True)), dict(zip(scoring, scores, strict=True))

    def _targets(self, span: Span, step: StepRows, b: int) -> list[int]:
        """Prompt tokens that the span's rows predict."""
        row, start = int(step.rows[b]), int(step.start[b])
        prompt = self._live[span.seq_id].num_prompt
        stop = min(start + int(step.counts[b]), prompt - 1)
        targets: list[int] = self.rows.tokens[row, start + 1 : stop + 1].tolist()
        return targets

    def _settle(
        self,
        span: Span,
        row: int,
        start: int,
        count: int,
        draft: Draft,
        sample: SpanSample | None,
        score: ScoreSample | None,
    ) -> SpanResult:
        """Advance a row by what stands of the `count` rows from `start`, and describe it."""
        error = self._refused.get(span.seq_id) or (score.error if score else None) or (sample.error if sample else None)
        accepted = sample.accepted if sample else ()
        standing = count - len(draft.tokens) + len(accepted)
        if accepted and accepted != tuple(range(len(accepted))):
            self._move(row, start + 1, accepted)
        self.rows.computed[row] = start + standing
        self.rows.drafts[row] = NO_DRAFT
        tokens = sample.tokens if sample else ()
        ended = False
        if tokens and tokens[0]:
            self.rows.append(row, tokens[0])
            try:
                ended = self.sampler.commit(span.seq_id, tokens[0])
            except TokloomError as fault:
                error = error or fault
        elif sample is not None and not error:
            ended = True
        return SpanResult(
            span.seq_id,
            span.epoch,
            start,
            standing,
            tokens,
            len(draft.tokens),
            accepted,
            sample.logprobs if sample else (),
            score.logprobs if score else (),
            ended,
            error,
        )

    def _move(self, row: int, first: int, accepted: Sequence[int]) -> None:
        """Gather the KV of accepted tree nodes behind the root, in every layer of the model's groups."""
        codec = self._composition.codec.plugin
        for group in self._composition.layout.groups:
            if group.owner != "model":
                continue
            pool = "main" if group.open is None else "open"
            src = self._slots(group.id, row, [first + node for node in accepted])
            dst = self._slots(group.id, row, list(range(first, first + len(accepted))))
            source, target = self._device.upload(src), self._device.upload(dst)
            for layer, pages in zip(group.layers, self._pools.layers(group.id, pool), strict=True):  # type: ignore[arg-type]
                codec.move(layer, pages, source, target)

    def _slots(self, group: GroupId, row: int, positions: Sequence[int]) -> NDArray[np.int64]:
        spec = self._composition.layout.groups[group]
        table = self.rows.tables[group, "main" if spec.open is None else "open"]
        index = np.asarray(positions, dtype=np.int64)
        page = spec.page_tokens
        slots: NDArray[np.int64] = table[row, index // page].astype(np.int64) * page + index % page
        return slots

    def _ingest(
        self, spans: Sequence[Span], step: StepRows, results: Sequence[SpanResult], hidden: Hidden
    ) -> IngestBatch | None:
        """The rows that stand, for the speculator. A span that was launched before the host knew that its sequence had
        ended may have a row behind the last token: that row is none.
        """
        if not self._host_ingest and self.on_device is None:
            return None
        counts = np.array([result.rows for result in results], dtype=np.int64)
        counts = np.minimum(counts, self.rows.length[step.rows] - step.start)
        indptr = np.zeros(len(spans) + 1, dtype=np.int32)
        np.cumsum(counts, out=indptr[1:])
        flat = np.repeat(step.rows, counts)
        within = np.arange(indptr[-1], dtype=np.int64) - np.repeat(indptr[:-1].astype(np.int64), counts)
        positions = np.repeat(step.start, counts) + within
        after = np.where(positions + 1 < self.rows.length[flat], self.rows.tokens[flat, positions + 1], -1)
        return IngestBatch(
            seq_ids=tuple(span.seq_id for span in spans),
            indptr=indptr,
            ids=self.rows.tokens[flat, positions],
            next_ids=after,
            positions=positions,
            features=self._standing_features(step, results, counts, hidden),
            pages={group.id: self._draft_pages(group.id, step.rows, flat, positions) for group in self._draft_groups},
        )

    def _standing_features(
        self, step: StepRows, results: Sequence[SpanResult], counts: NDArray[np.int64], hidden: Hidden
    ) -> dict[int, Tensor]:
        if not self._features:
            return {}
        rows: list[int] = []
        for b, result in enumerate(results):
            first = int(step.indptr[b])
            fixed = int(step.counts[b]) - len(step.drafts[b].tokens)
            standing = [*range(first, first + fixed), *(first + fixed + node for node in result.accepted)]
            rows += standing[: counts[b]]
        index = self._device.upload(np.array(rows, dtype=np.int64))
        return {layer: feature[index] for layer, feature in hidden.features.items()}

    def _draft_pages(
        self, group: GroupId, rows: NDArray[np.int64], flat: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> DraftPages:
        page = self._composition.layout.groups[group].page_tokens
        table = self.rows.tables[group, "main"]
        slots = table[flat, positions // page].astype(np.int64) * page + positions % page
        return DraftPages(self._pools.layers(group, "main"), slots, table[rows].copy())

    def propose_pages(self, seq_ids: Sequence[SeqId]) -> dict[GroupId, DraftPages]:
        """A speculator's own pages of some sequences, for proposing; `slots` are empty."""
        if not self._draft_groups:
            return {}
        rows = np.array([self.rows.of(seq_id) for seq_id in seq_ids], dtype=np.int64)
        none = np.zeros(0, dtype=np.int64)
        return {group.id: self._draft_pages(group.id, rows, none, none) for group in self._draft_groups}

    def _sample_draft(self, seq_id: SeqId, depth: int, q_logits: Tensor) -> int:
        position = int(self.rows.length[self.rows.of(seq_id)]) - 1 + depth
        return self.sampler.sample_draft(seq_id, depth, position, q_logits)


def _plugin_uniform(seed: int, position: int, number: int) -> float:
    """Draws for plugins, apart from those of the sampler."""
    return uniform(seed, position, stream("plugin", number))


def _wanted_rows(spans: Sequence[Span], step: StepRows) -> dict[int, tuple[int, int]]:
    """Per span that needs logits: flat rows `[first, stop)`: all when scoring, else the last one and its drafts."""
    wanted: dict[int, tuple[int, int]] = {}
    indptr = step.indptr.tolist()
    for b, span in enumerate(spans):
        first, stop = indptr[b], indptr[b + 1]
        if span.scores:
            wanted[b] = (first, stop)
        elif span.samples:
            wanted[b] = (stop - 1 - len(step.drafts[b].tokens), stop)
    return wanted
