"""Verification of drafts, as pure functions of laws. The core draws; a speculator never does.

Two modes, both exact:

* match: the target token is drawn from p at every row on the way; a draft stands iff it is the token drawn. The tokens
  are those of a run without drafts.
* rejection: drafts that were drawn from known laws q are accepted with probability `min(1, r / q)`, where r starts as p
  and becomes `norm(max(r - q, 0))` at each refusal. One rule covers chains (Leviathan et al. 2023, Chen et al. 2023),
  several candidates drawn independently (SpecInfer, Miao et al. 2024: every candidate's q is the same), without
  replacement (Sequoia, Chen et al. 2024: q of a later candidate has the earlier ones zeroed and renormalised) and
  deterministic candidates (q is one-hot, written None). What matters is that q is the law that the candidate was
  really drawn from, given the earlier ones. Equal in law to a run without drafts.

Rows: row 0 follows the root (the last committed token), row i + 1 follows node i of the draft.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

Law = NDArray[np.float64]


@frozen
class Verdict:
    """`accepted`: nodes that stand, root side first. `token`: what follows the last of them, or -1 if nothing may."""

    accepted: tuple[int, ...]
    token: int


class Chooser(Protocol):
    """The only source of chance in rejection mode."""

    def accept(self, row: int, candidate: int, probability: float) -> bool:
        """Whether the `candidate`-th child of `row` is accepted."""
        ...

    def draw(self, row: int, law: Law) -> int:
        """The token after `row`, from `law`."""
        ...


def accept_probability(residual: Law, q: Law | None, token: int) -> float:
    """`min(1, r(token) / q(token))`; a token that q could not have drawn is refused."""
    wanted = float(residual[token])
    if q is None:
        return wanted
    drawn = float(q[token])
    return min(1.0, wanted / drawn) if drawn > 0.0 else 0.0


def residual_law(residual: Law, q: Law | None, token: int) -> Law:
    """The law of the token given that the candidate `token`, drawn from q, was refused: `norm(max(r - q, 0))`.

    Where r = q a refusal has probability zero up to rounding, and r itself is returned.
    """
    if q is None:
        left = residual.copy()
        left[token] = 0.0
    else:
        left = np.maximum(residual - q, 0.0)
    total = float(left.sum())
    return left / total if total > 0.0 else residual


def children_of(parents: Sequence[int]) -> list[list[int]]:
    """For each row, the nodes that are its children, in draft order."""
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents):
        children[parent + 1].append(node)
    return children


def verify_match(tokens: Sequence[int], parents: Sequence[int], drawn: Callable[[int], int]) -> Verdict:
    """`drawn(row)` is the target token after the row, or -1 if nothing may follow; asked for rows on the way only."""
    if not tokens:
        return Verdict((), drawn(0))
    children = children_of(parents)
    accepted: list[int] = []
    row = 0
    while True:
        token = drawn(row)
        node = next((c for c in children[row] if tokens[c] == token), -1) if token >= 0 else -1
        if node < 0:
            return Verdict(tuple(accepted), token)
        accepted.append(node)
        row = node + 1


def verify_rejection(
    tokens: Sequence[int],
    parents: Sequence[int],
    laws: Callable[[int], Law | None],
    proposals: Sequence[Law | None],
    chooser: Chooser,
) -> Verdict:
    """`laws(row)` is p of the row, None if nothing may follow; `proposals[i]` is q of node i, None for one-hot."""
    children = children_of(parents)
    accepted: list[int] = []
    row = 0
    while True:
        residual = laws(row)
        if residual is None:
            return Verdict(tuple(accepted), -1)
        node = -1
        for candidate, child in enumerate(children[row]):
            q, token = proposals[child], tokens[child]
            if chooser.accept(row, candidate, accept_probability(residual, q, token)):
                node = child
                break
            residual = residual_law(residual, q, token)
        if node < 0:
            return Verdict(tuple(accepted), chooser.draw(row, residual))
        accepted.append(node)
        row = node + 1
