"""MatcherGrammar: the state of one sequence."""

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from tokloom.sdk import RequestError


class MatcherGrammar:
    """Implements `tokloom.sdk.Grammar`.

    End ids are never consumed: `advance` refuses them, which leaves the matcher where it can be rolled back.

    Args:
        matcher: a copy of its own.
        vocab_size: V.
        ends: ids that end a sequence.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int, ends: frozenset[int]) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._ends = ends

    def mask(self) -> NDArray[np.bool_]:
        words = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise too_complex(self._matcher)
        return np.unpackbits(words, count=self._vocab_size, bitorder="little").view(np.bool_)

    def advance(self, token: int) -> bool:
        if token in self._ends:
            return False
        taken = self._matcher.try_consume_tokens([token]) == 1
        if self._matcher.is_error():
            raise too_complex(self._matcher)
        return taken

    def rollback(self, tokens: int) -> None:
        if not self._matcher.rollback(tokens):
            raise RuntimeError(self._matcher.get_error())

    @property
    def terminated(self) -> bool:
        return self._matcher.is_stopped()


def too_complex(matcher: LLMatcher) -> RequestError:
    """Why a matcher gave up in the middle of a text."""
    reason = matcher.get_error().partition("\n")[0] or matcher.stop_reason()
    return RequestError(
        f"the grammar cannot be followed any further: {reason}",
        remedy="Simplify the grammar, its regular expressions above all",
    )
