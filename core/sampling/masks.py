"""Masks of a step's rows, made by worker threads beside the forward pass."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import Final

import numpy as np
from attrs import frozen

from tokloom.core.sampling.pipeline import GrammarView, view_grammar
from tokloom.core.sampling.state import Row, SequenceState
from tokloom.sdk import Draft, SeqId, TokloomError

#: worker threads at the most: masks of one step are few and short
MAX_THREADS: Final = 4

Answer = GrammarView | TokloomError
Wanted = tuple[SequenceState, Draft]


@frozen
class MaskTimes:
    """Of one step, in seconds: what workers spent on masks, and how long the step waited for them."""

    spent: float = 0.0
    waited: float = 0.0


NO_MASKS: Final = MaskTimes()


class MaskWorkers:
    """Between `start` and `finish` of a step the grammars that were given belong to the workers; one of them has all
    rows of a sequence, so a grammar is never used by two threads at once. Nothing runs outside of that: no thread
    exists before the first `start`.
    """

    def __init__(self, threads: int, vocab_size: int) -> None:
        self._threads = max(1, min(threads, MAX_THREADS))
        self._vocab_size = vocab_size
        self._executor: ThreadPoolExecutor | None = None
        self._futures: list[Future[tuple[dict[SeqId, Answer], float]]] = []
        self._answers: dict[SeqId, Answer] = {}
        self._spent = 0.0
        self._waited = 0.0

    def start(self, wanted: Sequence[Wanted]) -> None:
        """Ask for the rows of some sequences with the drafts that the step verifies."""
        assert not self._futures
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix="tokloom-masks")
        for first in range(min(self._threads, len(wanted))):
            self._futures.append(self._executor.submit(self._work, wanted[first :: self._threads]))

    def _work(self, wanted: Sequence[Wanted]) -> tuple[dict[SeqId, Answer], float]:
        begun = perf_counter()
        return {state.seq_id: self._view(state, draft) for state, draft in wanted}, perf_counter() - begun

    def _view(self, state: SequenceState, draft: Draft) -> Answer:
        try:
            root = Row(state, np.zeros(0, np.int64), ())
            return view_grammar(root, draft.tokens, draft.parents, self._vocab_size)
        except TokloomError as error:
            return error

    def answers(self) -> Mapping[SeqId, Answer]:
        """Wait for all that was started."""
        if self._futures:
            begun = perf_counter()
            futures, self._futures = self._futures, []
            for future in futures:
                answers, spent = future.result()
                self._answers.update(answers)
                self._spent += spent
            self._waited += perf_counter() - begun
        return self._answers

    def finish(self) -> MaskTimes:
        """The step is over, whether or not it got to its logits: the grammars belong to the loop thread again."""
        if not self.answers():
            return NO_MASKS
        times = MaskTimes(self._spent, self._waited)
        self._answers = {}
        self._spent = self._waited = 0.0
        return times

    def close(self) -> None:
        """End the threads."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None
