"""Sampler: tokens from the logits of one step, with drafts verified; all sequences of one engine."""

from collections.abc import Callable, Sequence
from typing import Final, Literal

import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor

from tokloom.core.sampling import rng
from tokloom.core.sampling.drafts import DraftBook, clean
from tokloom.core.sampling.laws import Filters, draw, law
from tokloom.core.sampling.logprobs import TokenLogprobs, token_logprobs
from tokloom.core.sampling.pipeline import Batch, Faults, GrammarView, grammar_fault, process, view_grammar
from tokloom.core.sampling.state import Ids, Row, SequenceState
from tokloom.core.sampling.verify import Law, Verdict, verify_match, verify_rejection
from tokloom.sdk import (
    NO_DRAFT,
    Draft,
    Grammar,
    LogitsProcessor,
    PluginFault,
    Request,
    RequestError,
    SeqId,
    TokloomError,
)

VerifyMode = Literal["match", "rejection"]

_NOTHING: Final = -1


@frozen(eq=False)
class SpanRows:
    """The sampling rows of one span.

    Attributes:
        tokens: `[n]` int64, the committed tokens up to and including the root (the last committed one).
        row_start: row of the logits that follows the root; the rows of the draft's nodes come after it, in order.
        draft: what was verified in this span.
        samples: first tokens to draw from the root row, one per child 0, 1, …; more than 1 only without a draft.
    """

    seq_id: SeqId
    tokens: Ids = field()
    row_start: int
    draft: Draft = NO_DRAFT
    samples: int = 1


@frozen
class SpanSample:
    """What a span yields.

    Attributes:
        tokens: per child (one, unless `samples` asked for more) the tokens emitted: the accepted drafts, then the
            token after them. That last one is missing where nothing may follow: the grammar has ended, or `error`.
        accepted: the draft's nodes that stand, root side first.
        logprobs: aligned with `tokens`; empty tuples unless the request asks for them.
        error: why this sequence cannot go on after `tokens`; other sequences are not affected.
    """

    tokens: tuple[tuple[int, ...], ...]
    accepted: tuple[int, ...] = ()
    logprobs: tuple[tuple[TokenLogprobs, ...], ...] = ()
    error: TokloomError | None = None


@frozen
class ScoreRows:
    """Rows whose next token is known: row `row_start + i` of the logits is followed by `targets[i]`."""

    seq_id: SeqId
    row_start: int
    targets: Sequence[int]


@frozen
class ScoreSample:
    """`logprobs[i]` belongs to `targets[i]`. With an `error` it is empty."""

    logprobs: tuple[TokenLogprobs, ...] = ()
    error: TokloomError | None = None


class Sampler:
    """Call order for a sequence: `begin`; per step `sample` with its span, then `commit` with what stands of the
    tokens; `end` once. Nothing else is needed after a preemption or a fork: `begin` with the tokens so far.

    Args:
        vocab_size: V.
        eos_ids: the model's own end-of-sequence ids.
        mode: `rejection` uses the laws of drafts drawn through `sample_draft` (equal in law to no speculation);
            `match` ignores them (equal token by token). Drafts without laws, and greedy sequences, are matched.
    """

    def __init__(self, vocab_size: int, eos_ids: Sequence[int] = (), mode: VerifyMode = "match") -> None:
        self._vocab_size = vocab_size
        self._eos_ids = tuple(eos_ids)
        self._mode: VerifyMode = mode
        self._states: dict[SeqId, SequenceState] = {}
        self._book = DraftBook()

    def begin(
        self,
        seq_id: SeqId,
        request: Request,
        *,
        child: int = 0,
        num_prompt: int,
        seed: int,
        processors: Sequence[tuple[str, LogitsProcessor]] = (),
        grammar: Grammar | None = None,
        tokens: Sequence[int] = (),
    ) -> None:
        """A sequence starts, with `tokens` committed so far (prompt first; empty means the prompt alone).

        Args:
            seed: of the request: `sampling.seed`, or one that the caller chose; the same for all children.
            processors: (offer name, processor) in the request's order.
            grammar: a fresh one. It is advanced over the output in `tokens`, so a child or a preempted sequence needs
                no copy of another's grammar.

        Raises:
            PluginFault: the grammar refuses the output that was drawn under it.
        """
        assert seq_id not in self._states
        state = SequenceState(
            seq_id,
            request,
            child,
            num_prompt,
            self._vocab_size,
            self._eos_ids,
            rng.derive(seed, child),
            processors,
            grammar,
        )
        state.siblings = tuple(rng.derive(seed, c) for c in range(request.sampling.n)) if child == 0 else ()
        self._states[seq_id] = state
        try:
            self.commit(seq_id, tuple(tokens)[num_prompt:])
        except PluginFault:
            self.end(seq_id)
            raise

    def end(self, seq_id: SeqId) -> None:
        """The sequence is gone. Unknown ids are ignored, so that a sequence which never began can end."""
        self._states.pop(seq_id, None)
        self._book.end(seq_id)

    def __len__(self) -> int:
        """Sequences that something is kept of."""
        return max(len(self._states), len(self._book))

    def commit(self, seq_id: SeqId, tokens: Sequence[int]) -> bool:
        """`tokens` were appended, after truncation at stops and maxima. True: the grammar has ended the sequence.

        Raises:
            PluginFault: the grammar refuses a token that its mask allowed.
        """
        state = self._states[seq_id]
        grammar = state.grammar
        if grammar is None:
            return False
        row = Row(state, np.zeros(0, np.int64), ())
        for token in tokens:
            try:
                taken = grammar.advance(token)
                ended = grammar.terminated
            except Exception as error:
                raise grammar_fault(row, error) from error
            if not taken and token not in state.closing:
                raise grammar_fault(row, f"advance refused token {token}, which its mask allowed")
            if ended or not taken:
                return True
        return False

    def clean_draft(self, seq_id: SeqId, draft: Draft, k: int) -> tuple[Draft, str]:
        """Bound what a speculator proposed for a sequence, right after `propose`. The text says what was wrong with it;
        empty if nothing was. The result may still be cut to a prefix, without looking at its tokens.
        """
        cleaned = clean(draft, self._vocab_size, k)
        whole = NO_DRAFT if cleaned.draft is NO_DRAFT else draft
        return self._book.claim(seq_id, cleaned.draft, cleaned.kept, whole), cleaned.fault

    def sample_draft(self, seq_id: SeqId, depth: int, position: int, q_logits: Tensor) -> int:
        """Draw a draft token from `softmax(q_logits)` `[V]` for a speculator and keep the law until it is verified.

        Args:
            depth: 1 for a child of the last committed token.
            position: absolute position of the token drawn.

        Raises:
            PluginFault: `q_logits` is no law over the vocabulary.
        """
        seed = self._states[seq_id].seed
        return self._book.draw(seq_id, seed, depth, position, q_logits, self._vocab_size)

    def sample(self, spans: Sequence[SpanRows], logits: Tensor) -> list[SpanSample]:
        """Draw and verify. `logits` `[R, V]` float32 or float64 are left unchanged; rows in no span are ignored."""
        assert all(span.samples == 1 or not span.draft.tokens for span in spans)
        step = _Step(logits, [self._states[span.seq_id] for span in spans], spans)
        plain = [s.greedy and s.plain(len(span.tokens)) for s, span in zip(step.states, spans, strict=True)]
        if any(plain):
            step.argmax([span for span, is_plain in zip(spans, plain, strict=True) if is_plain])
        laws = [self._book.laws(span.seq_id, span.draft) for span in spans]
        rejection = self._mode == "rejection"
        proposals = [None if s.greedy or not rejection else q for s, q in zip(step.states, laws, strict=True)]
        work = [i for i, is_plain in enumerate(plain) if not is_plain]
        if work:
            step.work(work, proposals)
        verdicts = [step.verdict(i, proposals[i]) for i in range(len(spans))]
        return step.results(verdicts)

    def prompt_logprobs(self, spans: Sequence[ScoreRows], logits: Tensor) -> list[ScoreSample]:
        """Log-probabilities of prompt tokens, with the `prompt_logprobs` best of each request (none if it is None)."""
        rows = [span.row_start + i for span in spans for i in range(len(span.targets))]
        if not rows:
            return [ScoreSample() for _ in spans]
        best = logits[torch.tensor(rows, device=logits.device)].amax(-1)
        fine = dict(zip(rows, torch.isfinite(best).tolist(), strict=True))
        good = [s for s in spans if all(fine[s.row_start + i] for i in range(len(s.targets)))]
        found = iter(
            token_logprobs(
                logits,
                [s.row_start + i for s in good for i in range(len(s.targets))],
                [t for s in good for t in s.targets],
                [self._states[s.seq_id].params.prompt_logprobs or 0 for s in good for _ in s.targets],
            )
        )
        answers = {id(s): ScoreSample(tuple(next(found) for _ in s.targets)) for s in good}
        return [answers.get(id(s)) or ScoreSample(error=_model_fault(self._states[s.seq_id])) for s in spans]


class _Step:
    """One call of `sample`: tokens, laws and faults per row of the logits."""

    def __init__(self, logits: Tensor, states: Sequence[SequenceState], spans: Sequence[SpanRows]) -> None:
        self.logits = logits
        self.states = states
        self.spans = spans
        self._drawn: dict[int, tuple[int, ...]] = {}
        self._laws: dict[int, Law] = {}
        self._faults: Faults = {}
        self._grammars: dict[int, GrammarView] = {}

    def argmax(self, spans: Sequence[SpanRows]) -> None:
        """Greedy rows that nothing else applies to: one argmax over all rows, lowest id on ties."""
        ids = self.logits.argmax(-1)
        finite = torch.isfinite(self.logits.gather(1, ids[:, None]))[:, 0].tolist()
        tokens = ids.tolist()
        for span in spans:
            for row in range(span.row_start, span.row_start + len(span.draft.tokens) + 1):
                self._drawn[row] = (tokens[row] if finite[row] else _NOTHING,) * span.samples

    def work(self, members: Sequence[int], proposals: Sequence[Sequence[Law | None] | None]) -> None:
        """All other rows: the pipeline, then argmax, draws or laws."""
        rows: list[Row] = []
        places: list[int] = []
        owners: list[int] = []
        masks: list[np.ndarray[tuple[int, ...], np.dtype[np.bool_]] | None] = []
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
        faults: Faults = {i: _model_fault(rows[i].state) for i in _unusable(raw)}
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
            for i, token in zip(greedy, _pick(x, greedy).argmax(-1).tolist(), strict=True):
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
        filters = Filters.of([self.states[owners[i]].params for i in drawn], x.device)
        tokens = draw(_pick(x, drawn), filters, torch.from_numpy(u).to(x.device)).tolist()
        for i, own, count in zip(drawn, tokens, counts, strict=True):
            self._drawn[places[i]] = tuple(own[:count])

    def _position(self, member: int, place: int) -> int:
        """Absolute position of the token drawn from a row."""
        span = self.spans[member]
        depth, node = 0, place - span.row_start - 1
        while node >= 0:
            depth, node = depth + 1, span.draft.parents[node]
        return len(span.tokens) + depth

    def _grammar(
        self, member: int, rows: Sequence[Row]
    ) -> "tuple[frozenset[int], Sequence[np.ndarray[tuple[int, ...], np.dtype[np.bool_]] | None]]":
        span = self.spans[member]
        if self.states[member].grammar is None:
            return frozenset(), [None] * len(rows)
        try:
            view = view_grammar(rows[0], span.draft.tokens, span.draft.parents, self.logits.shape[1])
        except PluginFault as fault:
            self._faults.update(dict.fromkeys(range(span.row_start, span.row_start + len(rows)), fault))
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
            return fault or _model_fault(state)
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


def _positions(step: _Step, member: int, start: int) -> Callable[[int], int]:
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


def _model_fault(state: SequenceState) -> PluginFault:
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
