"""A logits processor that depends on the whole prefix, and a grammar with an end."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tokloom.sdk import Context, GrammarSpec, LogitsRow, NoOptions, RequestError


class Shift:
    """Adds a bonus to one token that depends on all tokens before it: a wrong prefix gives other answers."""

    def __init__(self, options: NoOptions, context: Context) -> None:
        self.rows = 0

    def apply(self, rows: Sequence[LogitsRow], logits: Tensor) -> Tensor:
        for index, row in enumerate(rows):
            self.rows += 1
            favourite = sum((i + 1) * int(token) for i, token in enumerate(row.prefix)) % logits.shape[1]
            logits[index, favourite] += 3.0
        return logits


#: how a `GrammarSpec` calls the syntax of `Parity`
PARITY_SYNTAX = "x-tokloom.parity"


class Parity:
    """Grammar: tokens alternate between even and odd; the specification is how many follow before the end.

    Counts the grammars it started, and the tokens they took and undid together.
    """

    def __init__(self, options: NoOptions, context: Context) -> None:
        self.started = self.advanced = self.undone = 0

    def start(self, specification: GrammarSpec, vocab_size: int, eos_ids: Sequence[int]) -> "ParityState":
        if not specification.text.isdigit():
            raise RequestError(f"parity takes a number, not {specification.text!r}", subject="grammar")
        self.started += 1
        return ParityState(self, int(specification.text), vocab_size)


class ParityState:
    """Implements `tokloom.sdk.Grammar`."""

    def __init__(self, owner: Parity, limit: int, vocab: int) -> None:
        self._owner = owner
        self._limit = limit
        self._vocab = vocab
        self._taken: list[int] = []

    def mask(self) -> NDArray[np.bool_]:
        return np.array([self._allowed(token) for token in range(self._vocab)])

    def _allowed(self, token: int) -> bool:
        return not self.terminated and token % 2 == len(self._taken) % 2

    def advance(self, token: int) -> bool:
        if not self._allowed(token):
            return False
        self._taken.append(token)
        self._owner.advanced += 1
        return True

    def rollback(self, tokens: int) -> None:
        assert 0 <= tokens <= len(self._taken), f"{tokens} of {len(self._taken)} tokens are undone"
        self._owner.undone += tokens
        if tokens:
            del self._taken[-tokens:]

    @property
    def terminated(self) -> bool:
        return len(self._taken) >= self._limit
