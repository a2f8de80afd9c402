"""An independent reference of the sampling pipeline: one row at a time, plain Python, float64."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokloom.sdk import Grammar, SamplingParams

Law = NDArray[np.float64]


class WordGrammar:
    """Allows the words of a finite language over token ids; ends after a whole word that no other continues."""

    def __init__(self, words: Sequence[tuple[int, ...]], vocab_size: int) -> None:
        self._words = words
        self._vocab_size = vocab_size
        self.taken: list[int] = []

    def _next(self) -> set[int]:
        n = len(self.taken)
        return {w[n] for w in self._words if len(w) > n and list(w[:n]) == self.taken}

    def mask(self) -> NDArray[np.bool_]:
        return np.isin(np.arange(self._vocab_size), list(self._next()))

    def advance(self, token: int) -> bool:
        if token not in self._next():
            return False
        self.taken.append(token)
        return True

    def rollback(self, tokens: int) -> None:
        assert 0 < tokens <= len(self.taken)
        del self.taken[-tokens:]

    @property
    def terminated(self) -> bool:
        return not self._next()


class EvenSumGrammar:
    """Never ends: after an odd running sum only even tokens, and the token V - 1 is never allowed twice in a row."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.taken: list[int] = []

    def mask(self) -> NDArray[np.bool_]:
        ids = np.arange(self._vocab_size)
        allowed = ids % 2 == 0 if sum(self.taken) % 2 else np.ones(self._vocab_size, dtype=bool)
        if self.taken and self.taken[-1] == self._vocab_size - 1:
            allowed = allowed & (ids != self._vocab_size - 1)
        return allowed

    def advance(self, token: int) -> bool:
        if not self.mask()[token]:
            return False
        self.taken.append(token)
        return True

    def rollback(self, tokens: int) -> None:
        assert 0 < tokens <= len(self.taken)
        del self.taken[-tokens:]

    @property
    def terminated(self) -> bool:
        return False


def processed(
    raw: Sequence[float],
    prefix: Sequence[int],
    num_prompt: int,
    params: SamplingParams,
    eos_ids: Sequence[int] = (),
    grammar: Grammar | None = None,
) -> list[float]:
    """Logits after everything before temperature. `grammar` is a fresh one."""
    x = [float(value) for value in raw]
    prefix = list(prefix)
    for token, bias in params.logit_bias.items():
        x[token] += bias
    for word in params.bad_words:
        head = list(word[:-1])
        if not head or prefix[-len(head) :] == head:
            x[word[-1]] = -math.inf
    output = prefix[num_prompt:]
    for token in range(len(x)):
        if token in prefix:
            x[token] = x[token] / params.repetition_penalty if x[token] > 0 else x[token] * params.repetition_penalty
        count = output.count(token)
        x[token] -= params.frequency_penalty * count + (params.presence_penalty if count else 0.0)
    if len(output) < params.min_tokens:
        for token in [*params.stop_token_ids, *([] if params.ignore_eos else eos_ids)]:
            x[token] = -math.inf
    if grammar is not None:
        for token in output:
            assert grammar.advance(token)
        mask = grammar.mask()
        x = [value if mask[token] else -math.inf for token, value in enumerate(x)]
    return x


def law(x: Sequence[float], params: SamplingParams) -> Law:
    """p of processed logits."""
    order = sorted(range(len(x)), key=lambda token: (-x[token], token))
    out = np.zeros(len(x))
    if params.temperature == 0.0:
        out[order[0]] = 1.0
        return out
    if params.top_k:
        order = order[: params.top_k]
    weight = {token: math.exp((x[token] - x[order[0]]) / params.temperature) for token in order}
    if params.top_p < 1.0:
        mass, kept = 0.0, []
        target = params.top_p * math.fsum(weight.values())
        for token in order:
            if mass >= target:
                break
            kept.append(token)
            mass += weight[token]
        order = kept
    order = [token for token in order if weight[token] >= params.min_p]
    total = math.fsum(weight[token] for token in order)
    for token in order:
        out[token] = weight[token] / total
    return out
