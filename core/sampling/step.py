"""One step of sampling: from the logits of all spans to the tokens that stand."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from tokloom.core.device import largest
from tokloom.core.sampling import rng
from tokloom.core.sampling.laws import Filters, draw, law
from tokloom.core.sampling.logprobs import token_logprobs
from tokloom.core.sampling.masks import Answer
from tokloom.core.sampling.pipeline import Batch, Faults, GrammarView, Mask, grammar_fault, process
from tokloom.core.sampling.spans import SpanRows, SpanSample
from tokloom.core.sampling.state import Row, SequenceState
from tokloom.core.sampling.verify import Law, Verdict, verify_match, verify_rejection
from tokloom.sdk import PluginFault, RequestError, SeqId, TokloomError

_NOTHING: Final = -1


class Step:
    """One call of `sample`: tokens, laws and faults per row of the logits. `answers` are those of all grammars."""

    def __init__(
        self,
        logits: Tensor,
        states: Sequence[SequenceState],
        spans: Sequence[SpanRows],
        answers: Mapping[SeqId, Answer],
        block: int = 0,
    ) -> None:
        self.logits = logits
        self.states = states
        self.spans = spans
        self._answers = answers
        self._block = block
        self._drawn: dict[int, tuple[int, ...]] = {}
        self._laws: dict[int, Law] = {}
        self._faults: Faults = {}
        self._grammars: dict[int, GrammarView] = {}

    def greedy(self) -> list[SpanSample]:
        """The whole answer where nothing but the largest logit of one row is wanted of every span."""
        values, tokens = largest(self.logits)
        return [
            SpanSample(((tokens[span.row_start],),), (), ((),))
            if math.isfinite(values[span.row_start])
            else SpanSample(((),), (), ((),), model_fault(state))
            for span, state in zip(self.spans, self.states, strict=True)
        ]

    def argmax(self, spans: Sequence[SpanRows]) -> None:
        """Greedy rows that nothing else applies to: one argmax over all rows, lowest id on ties."""
        values, tokens = largest(self.logits)
        for span in spans:
            for row in range(span.row_start, span.row_start + len(span.draft.tokens) + 1):
                self._drawn[row] = (tokens[row] if math.isfinite(values[row]) else _NOTHING,) * span.samples

    def work(self, members: Sequence[int], proposals: Sequence[Sequence[Law | None] | None]) -> None:
        """All other rows: the pipeline, then argmax, draws or laws."""
        rows: list[Row] = []
        places: list[int] = []
        owners: list[int] = []
        masks: list[Mask | None] = []
        for member in members:
            span, state = self.spans[member], self.states[member]
            own = _rows(state, span)
            over, answers = self._grammar(member, own)
            for at, row in enumerate(own):
                if at not in over:
                    rows.append(row)
                    places.append(span.row_start + at)
                    owners.append(member)
                    masks.append(answers[at])
        if not rows:
            return
        raw = self.logits[torch.tensor(places, device=self.logits.device)]
        faults: Faults = {i: model_fault(rows[i].state) for i in _unusable(raw)}
        for i in faults:
            raw[i] = 0.0
        x = process(Batch(rows, masks), raw, faults)
        for i in _unusable(x):
            faults.setdefault(i, _dead_end(rows[i]))
        for i, fault in faults.items():
            self._faults[places[i]] = fault
        self._decide([i for i in range(len(rows)) if i not in faults], x, places, owners, proposals)

    def _decide(
        self,
        good: Sequence[int],
        x: Tensor,
        places: Sequence[int],
        owners: Sequence[int],
        proposals: Sequence[Sequence[Law | None] | None],
    ) -> None:
        greedy = [i for i in good if self.states[owners[i]].greedy]
        exact = [i for i in good if proposals[owners[i]] is not None]
        drawn = [i for i in good if not self.states[owners[i]].greedy and proposals[owners[i]] is None]
        if greedy:
            for i, token in zip(greedy, largest(_pick(x, greedy))[1], strict=True):
                self._drawn[places[i]] = (token,) * self.spans[owners[i]].samples
        if exact:
            filters = Filters.of([self.states[owners[i]].params for i in exact], x.device)
            for i, own in zip(exact, law(_pick(x, exact), filters).numpy(force=True), strict=True):
                self._laws[places[i]] = own
        if drawn:
            self._draw(drawn, x, places, owners)

    def _draw(self, drawn: Sequence[int], x: Tensor, places: Sequence[int], owners: Sequence[int]) -> None:
        counts = [self.spans[owners[i]].samples for i in drawn]
        seeds: list[int] = []
        positions: list[int] = []
        for i, count in zip(drawn, counts, strict=True):
            state = self.states[owners[i]]
            seeds += state.siblings[:count] if count > 1 else (state.seed,)
            positions += [self._position(owners[i], places[i])] * count
        flat = rng.uniforms(seeds, positions, rng.stream("token"))
        u = np.zeros((len(drawn), max(counts)))
        u[np.arange(max(counts)) < np.array(counts)[:, None]] = flat
        size = max(1, self._block // x.shape[1]) if self._block else len(drawn)
        for low in range(0, len(drawn), size):
            part = drawn[low : low + size]
            filters = Filters.of([self.states[owners[i]].params for i in part], x.device)
            tokens = draw(_pick(x, part), filters, torch.from_numpy(u[low : low + size]).to(x.device)).tolist()
            for i, own, count in zip(part, tokens, counts[low : low + size], strict=True):
                self._drawn[places[i]] = tuple(own[:count])

    def _position(self, member: int, place: int) -> int:
        """Absolute position of the token drawn from a row."""
        span = self.spans[member]
        depth, node = 0, place - span.row_start - 1
        while node >= 0:
            depth, node = depth + 1, span.draft.parents[node]
        return len(span.tokens) + depth

    def _grammar(self, member: int, rows: Sequence[Row]) -> tuple[frozenset[int], Sequence[Mask | None]]:
        span = self.spans[member]
        if self.states[member].grammar is None:
            return frozenset(), [None] * len(rows)
        view = self._answers[span.seq_id]
        if isinstance(view, TokloomError):
            self._faults.update(dict.fromkeys(range(span.row_start, span.row_start + len(rows)), view))
            return frozenset(range(len(rows))), [None] * len(rows)
        self._grammars[member] = view
        return view.over, view.masks

    def verdict(self, member: int, proposals: Sequence[Law | None] | None) -> Verdict:
        """Which drafts of a span stand, and the token after them (of the first child)."""
        span = self.spans[member]
        start, tokens, parents = span.row_start, span.draft.tokens, span.draft.parents
        if proposals is None:
            return verify_match(tokens, parents, lambda row: self._drawn.get(start + row, (_NOTHING,))[0])
        place = _positions(self, member, start)
        chooser = _Chooser(self.states[member].seed, place)
        return verify_rejection(tokens, parents, lambda row: self._laws.get(start + row), proposals, chooser)

    def results(self, verdicts: Sequence[Verdict]) -> list[SpanSample]:
        """Assemble the answers; log-probabilities of all spans that want them in one go."""
        emitted = [self._tokens(span, verdict) for span, verdict in zip(self.spans, verdicts, strict=True)]
        wanted = [m for m, state in enumerate(self.states) if state.params.logprobs is not None]
        rows: list[int] = []
        tokens: list[int] = []
        tops: list[int] = []
        for member in wanted:
            on_the_way = [0, *(node + 1 for node in verdicts[member].accepted)]
            for own in emitted[member]:
                rows += [self.spans[member].row_start + row for row in on_the_way[: len(own)]]
                tokens += own
                tops += [self.states[member].params.logprobs or 0] * len(own)
        found = iter(token_logprobs(self.logits, rows, tokens, tops))
        logs = {m: tuple(tuple(next(found) for _ in own) for own in emitted[m]) for m in wanted}
        return [
            SpanSample(
                emitted[m],
                verdict.accepted,
                logs.get(m, tuple(() for _ in emitted[m])),
                self._error(m, verdict),
            )
            for m, verdict in enumerate(verdicts)
        ]

    def _tokens(self, span: SpanRows, verdict: Verdict) -> tuple[tuple[int, ...], ...]:
        if span.samples > 1:
            drawn = self._drawn.get(span.row_start, (_NOTHING,) * span.samples)
            return tuple((token,) if token >= 0 else () for token in drawn)
        stand = tuple(span.draft.tokens[node] for node in verdict.accepted)
        return ((*stand, verdict.token) if verdict.token >= 0 else stand,)

    def _error(self, member: int, verdict: Verdict) -> TokloomError | None:
        if verdict.token >= 0:
            return None
        span, state = self.spans[member], self.states[member]
        at = verdict.accepted[-1] + 1 if verdict.accepted else 0
        fault = self._faults.get(span.row_start + at)
        view = self._grammars.get(member)
        if fault is not None or view is None:
            return fault or model_fault(state)
        if at in view.refused and span.draft.tokens[at - 1] not in state.closing:
            row = Row(state, span.tokens, ())
            return grammar_fault(row, f"advance refused token {span.draft.tokens[at - 1]}, which its mask allowed")
        return None


@frozen(eq=False)
class _Chooser:
    """Chance in rejection mode: the counter-based generator at a row's position."""

    _seed: int
    _position: Callable[[int], int]

    def accept(self, row: int, candidate: int, probability: float) -> bool:
        return rng.uniform(self._seed, self._position(row), rng.stream("accept", candidate)) < probability

    def draw(self, row: int, law: Law) -> int:
        u = rng.uniform(self._seed, self._position(row), rng.stream("token"))
        cdf = np.cumsum(law)
        return min(int(np.searchsorted(cdf, u * cdf[-1], side="right")), len(law) - 1)


def _positions(step: Step, member: int, start: int) -> Callable[[int], int]:
    return lambda row: step._position(member, start + row)


def _rows(state: SequenceState, span: SpanRows) -> list[Row]:
    """The root row and one per node of the draft, each with the drafts on its path."""
    rows = [Row(state, span.tokens, ())]
    for token, parent in zip(span.draft.tokens, span.draft.parents, strict=True):
        rows.append(Row(state, span.tokens, (*rows[parent + 1].path, token)))
    return rows


def _pick(x: Tensor, rows: Sequence[int]) -> Tensor:
    return x if len(rows) == x.shape[0] else x[torch.tensor(rows, device=x.device)]


def _unusable(x: Tensor) -> list[int]:
    """Rows whose largest value is NaN or infinite: NaN anywhere, or no token left."""
    return [row for row, fine in enumerate(torch.isfinite(x.amax(-1)).tolist()) if not fine]


def model_fault(state: SequenceState) -> PluginFault:
    return PluginFault(
        f"the logits of sequence {state.seq_id} (request {state.request.request_id!r}) are NaN, infinite or all -inf",
        subject="model",
        remedy="Check the checkpoint and the compute dtype",
    )


def _dead_end(row: Row) -> RequestError:
    request = row.state.request
    return RequestError(
        f"no token may follow token {len(row)} of sequence {row.state.seq_id}: its constraints exclude all of them",
        subject=f"request {request.request_id!r}",
        remedy="Loosen logit_bias, bad_words, min_tokens, the processors or the grammar of this request",
    )
