"""Exact enumeration: every outcome of a piece of code whose only source of chance is a `Script`."""

import itertools
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Law = NDArray[np.float64]
Prefix = tuple[int, ...]
LawOf = Callable[[Prefix], Law]
T = TypeVar("T")


class Script:
    """Replays a list of choices, then takes the first possible one at each further point, and keeps the odds."""

    def __init__(self, choices: list[int]) -> None:
        self._given = choices
        self.choices: list[int] = []
        self.options: list[list[int]] = []
        self.probability = 1.0

    def draw(self, row: int, law: Law) -> int:
        possible = [int(i) for i in np.flatnonzero(law > 0.0)]
        at = len(self.choices)
        choice = self._given[at] if at < len(self._given) else possible[0]
        self.choices.append(choice)
        self.options.append(possible)
        self.probability *= float(law[choice])
        return choice

    def accept(self, row: int, candidate: int, probability: float) -> bool:
        return self.draw(row, np.array([1.0 - probability, probability])) == 1


def outcomes(run: Callable[[Script], T]) -> dict[T, float]:
    """The exact law of what `run` returns."""
    found: dict[T, float] = {}
    choices: list[int] | None = []
    while choices is not None:
        script = Script(choices)
        value = run(script)
        found[value] = found.get(value, 0.0) + script.probability
        choices = _next(script)
    return found


def _next(script: Script) -> list[int] | None:
    for at in range(len(script.choices) - 1, -1, -1):
        options = script.options[at]
        after = options.index(script.choices[at]) + 1
        if after < len(options):
            return [*script.choices[:at], options[after]]
    return None


def total_variation(run: Callable[[Script], Prefix], law_of: LawOf, vocab: int, length: int) -> float:
    """Between the autoregressive law of `length` tokens and: what `run` emits, continued by `law_of` to that length."""
    emitted = outcomes(run)
    assert abs(sum(emitted.values()) - 1.0) < 1e-9
    assert all(0 < len(tokens) <= length for tokens in emitted)
    distance = 0.0
    for tokens in itertools.product(range(vocab), repeat=length):
        steps = [float(law_of(tokens[:i])[tokens[i]]) for i in range(length)]
        got = sum(emitted.get(tokens[:n], 0.0) * float(np.prod(steps[n:])) for n in range(1, length + 1))
        distance += abs(got - float(np.prod(steps)))
    return distance / 2


def random_law(rng: np.random.Generator, vocab: int, holes: float = 0.3) -> Law:
    """A law that may have zeros, sometimes very peaked."""
    w = rng.gamma(rng.choice([0.2, 1.0, 5.0]), size=vocab) + 1e-3
    w[rng.random(vocab) < holes] = 0.0
    if w.sum() == 0.0:
        w[rng.integers(vocab)] = 1.0
    law: Law = w / w.sum()
    return law


def laws_by_prefix(seed: int, vocab: int, holes: float = 0.3) -> LawOf:
    """A random law for every prefix."""
    known: dict[Prefix, Law] = {}

    def law_of(prefix: Prefix) -> Law:
        if prefix not in known:
            known[prefix] = random_law(np.random.default_rng([seed, vocab, *(t + 1 for t in prefix)]), vocab, holes)
        return known[prefix]

    return law_of
