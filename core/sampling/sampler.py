"""Sampler: tokens from the logits of one step, with drafts verified; all sequences of one engine."""

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tokloom.core.sampling import rng
from tokloom.core.sampling.drafts import DraftBook, clean
from tokloom.core.sampling.logprobs import token_logprobs
from tokloom.core.sampling.masks import MaskTimes, MaskWorkers
from tokloom.core.sampling.pipeline import grammar_fault
from tokloom.core.sampling.spans import ScoreRows, ScoreSample, SpanRows, SpanSample
from tokloom.core.sampling.state import Row, SequenceState
from tokloom.core.sampling.step import Step, model_fault
from tokloom.sdk import (
    NO_DRAFT,
    Draft,
    Grammar,
    LogitsProcessor,
    Request,
    RequestError,
    SeqId,
    TokloomError,
)

VerifyMode = Literal["match", "rejection"]


class Sampler:
    """Call order for a sequence: `begin`; per step `sample` with its span, then `commit` with what stands of the
    tokens; `end` once. Nothing else is needed after a preemption or a fork: `begin` with the tokens so far. Around the
    `sample` of a step that has sequences under a grammar: `start_masks`, `finish_masks`.

    Args:
        vocab_size: V.
        eos_ids: the model's own end-of-sequence ids.
        mode: `rejection` uses the laws of drafts drawn through `sample_draft` (equal in law to no speculation);
            `match` ignores them (equal token by token). Drafts without laws, and greedy sequences, are matched.
        block_elements: rows are drawn in blocks of about this many logits, so that intermediate results stay in a
            processor's cache; 0: all at once, as an accelerator wants it. No result depends on it.
        threads: host threads that may make grammars' masks.
    """

    def __init__(
        self,
        vocab_size: int,
        eos_ids: Sequence[int] = (),
        mode: VerifyMode = "match",
        block_elements: int = 1 << 18,
        threads: int = 1,
    ) -> None:
        self._block = block_elements
        self._vocab_size = vocab_size
        self._eos_ids = tuple(eos_ids)
        self._mode: VerifyMode = mode
        self._states: dict[SeqId, SequenceState] = {}
        self._constrained: set[SeqId] = set()
        self._masks = MaskWorkers(threads, vocab_size)
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
            RequestError: the grammar raised it.
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
        if grammar is not None:
            self._constrained.add(seq_id)
        try:
            self.commit(seq_id, tuple(tokens)[num_prompt:])
        except TokloomError:
            self.end(seq_id)
            raise

    def end(self, seq_id: SeqId) -> None:
        """The sequence is gone. Unknown ids are ignored, so that a sequence which never began can end."""
        self._states.pop(seq_id, None)
        self._constrained.discard(seq_id)
        self._book.end(seq_id)

    def __len__(self) -> int:
        """Sequences that something is kept of."""
        return max(len(self._states), len(self._book))

    def commit(self, seq_id: SeqId, tokens: Sequence[int]) -> bool:
        """`tokens` were appended, after truncation at stops and maxima. True: the grammar has ended the sequence.

        Raises:
            PluginFault: the grammar refuses a token that its mask allowed.
            RequestError: the grammar raised it.
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
            except RequestError:
                raise
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

    def start_masks(self, drafts: Iterable[tuple[SeqId, Draft]]) -> None:
        """Let worker threads make the masks of the rows that `sample` will be asked for: of each sequence the root and
        its draft's nodes. Sequences without a grammar are ignored. Until `finish_masks`, which must follow whatever
        happens, only `sample` may be called.
        """
        if not self._constrained:
            return
        wanted = [(self._states[seq_id], draft) for seq_id, draft in drafts if seq_id in self._constrained]
        if wanted:
            self._masks.start(wanted)

    def finish_masks(self) -> MaskTimes:
        """Wait until no worker uses a grammar any more; what the masks took."""
        return self._masks.finish()

    def close(self) -> None:
        """End the worker threads."""
        self._masks.close()

    def sample(self, spans: Sequence[SpanRows], logits: Tensor) -> list[SpanSample]:
        """Draw and verify. `logits` `[R, V]` float32 or float64 are left unchanged; rows in no span are ignored."""
        assert all(span.samples == 1 or not span.draft.tokens for span in spans)
        step = Step(logits, [self._states[span.seq_id] for span in spans], spans, self._masks.answers(), self._block)
        if not self._book and all(s.simple and not x.draft.tokens for s, x in zip(step.states, spans, strict=True)):
            return step.greedy()
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
        return [answers.get(id(s)) or ScoreSample(error=model_fault(self._states[s.seq_id])) for s in spans]
