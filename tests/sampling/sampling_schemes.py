"""Ways to draft and verify. Each is a function (script, p, q, shape) -> emitted tokens, enumerable exactly.

`p` and `q` give the target's and the drafter's law after a prefix; `parents` is the shape of the tree.
"""

from collections.abc import Callable, Sequence

import numpy as np
from sampling_enumeration import Law, LawOf, Prefix, Script

from tokloom.core.sampling.drafts import Drawn, clean, depths, trusted_law
from tokloom.core.sampling.verify import Verdict, verify_match, verify_rejection
from tokloom.sdk import Draft

Scheme = Callable[[Script, LawOf, LawOf, Sequence[int]], Prefix]


def paths(tokens: Sequence[int], parents: Sequence[int]) -> list[Prefix]:
    """Per row the drafts on its way; row 0 is the root."""
    out: list[Prefix] = [()]
    for token, parent in zip(tokens, parents, strict=True):
        out.append((*out[parent + 1], token))
    return out


def siblings(tokens: Sequence[int], parents: Sequence[int]) -> list[int]:
    """Tokens of the siblings drawn before the node that comes next."""
    parent = parents[len(tokens)]
    return [tokens[i] for i in range(len(tokens)) if parents[i] == parent]


def emitted(tokens: Sequence[int], verdict: Verdict) -> Prefix:
    return (*(tokens[node] for node in verdict.accepted), verdict.token)


def draft(
    parents: Sequence[int], choose: Callable[[Prefix, Sequence[int]], tuple[int, Law | None]]
) -> tuple[list[int], list[Law | None]]:
    """Fill a tree node by node: `choose(path, earlier siblings)` gives a token and the law to verify it with."""
    tokens: list[int] = []
    laws: list[Law | None] = []
    for parent in parents:
        path = paths(tokens, parents[: len(tokens)])[parent + 1]
        token, law = choose(path, siblings(tokens, parents))
        tokens.append(token)
        laws.append(law)
    return tokens, laws


def without(law: Law, tokens: Sequence[int]) -> Law:
    """The law with some tokens zeroed and renormalised; uniform over the rest where nothing is left."""
    left = law.copy()
    left[list(tokens)] = 0.0
    if left.sum() == 0.0:
        left[:] = 1.0
        left[list(tokens)] = 0.0
    rest: Law = left / left.sum()
    return rest


def rejection(
    script: Script, p: LawOf, tokens: Sequence[int], parents: Sequence[int], laws: Sequence[Law | None]
) -> Prefix:
    rows = paths(tokens, parents)
    return emitted(tokens, verify_rejection(tokens, parents, lambda row: p(rows[row]), laws, script))


def matching(script: Script, p: LawOf, tokens: Sequence[int], parents: Sequence[int]) -> Prefix:
    rows = paths(tokens, parents)
    return emitted(tokens, verify_match(tokens, parents, lambda row: script.draw(row, p(rows[row]))))


def likeliest(path_law: Law, taken: Sequence[int]) -> int:
    return int(np.argmax(without(path_law, taken)))


def match_deterministic(script: Script, p: LawOf, q: LawOf, parents: Sequence[int]) -> Prefix:
    """Distinct likeliest children, verified by matching."""
    tokens, _ = draft(parents, lambda path, taken: (likeliest(q(path), taken), None))
    return matching(script, p, tokens, parents)


def match_sampled(script: Script, p: LawOf, q: LawOf, parents: Sequence[int]) -> Prefix:
    """Drafts drawn from anything at all, verified by matching."""
    tokens, _ = draft(parents, lambda path, taken: (script.draw(0, without(q(path), taken)), None))
    return matching(script, p, tokens, parents)


def one_hot(script: Script, p: LawOf, q: LawOf, parents: Sequence[int]) -> Prefix:
    """Distinct likeliest children, each a one-hot proposal."""
    tokens, laws = draft(parents, lambda path, taken: (likeliest(q(path), taken), None))
    return rejection(script, p, tokens, parents, laws)


def independent(script: Script, p: LawOf, q: LawOf, parents: Sequence[int]) -> Prefix:
    """Children drawn independently from q (SpecInfer); on a chain Leviathan and Chen."""
    tokens, laws = draft(parents, lambda path, taken: (script.draw(0, q(path)), q(path)))
    return rejection(script, p, tokens, parents, laws)


def no_replacement(script: Script, p: LawOf, q: LawOf, parents: Sequence[int]) -> Prefix:
    """Children drawn without replacement (Sequoia)."""
    tokens, laws = draft(
        parents, lambda path, taken: (script.draw(0, without(q(path), taken)), without(q(path), taken))
    )
    return rejection(script, p, tokens, parents, laws)


def mixed(script: Script, p: LawOf, q: LawOf, parents: Sequence[int]) -> Prefix:
    """Every second node a one-hot proposal, drawn all the same: what a node with a lost law becomes."""
    tokens, laws = draft(
        parents, lambda path, taken: (script.draw(0, without(q(path), taken)), without(q(path), taken))
    )
    return rejection(script, p, tokens, parents, [law if node % 2 else None for node, law in enumerate(laws)])


def stop_before_sampling(script: Script, p: LawOf, q: LawOf, parents: Sequence[int]) -> Prefix:
    """Chain cut where q is flat, which is decided before a token is drawn from it."""
    tokens: list[int] = []
    for _ in parents:
        if q(tuple(tokens)).max() < 0.5:
            break
        tokens.append(script.draw(0, q(tuple(tokens))))
    laws = [q(tuple(tokens[:i])) for i in range(len(tokens))]
    return rejection(script, p, tokens, parents[: len(tokens)], laws)


def book(script: Script, p: LawOf, q: LawOf, parents: Sequence[int]) -> Prefix:
    """What the core makes of siblings drawn independently: repeats are dropped, laws that could repeat are one-hot."""
    tokens, laws = draft(parents, lambda path, taken: (script.draw(0, q(path)), q(path)))
    proposed = Draft(tokens, parents, sampled=True)
    cleaned = clean(proposed, len(p(())), 99)
    deep = depths(proposed)
    drawn = [Drawn(t, d, own) for t, d, own in zip(tokens, deep, laws, strict=True) if own is not None]
    kept = [trusted_law(proposed, drawn, node) for node in cleaned.kept]
    return rejection(script, p, cleaned.draft.tokens, cleaned.draft.parents, kept)


EXACT: dict[str, Scheme] = {
    scheme.__name__: scheme
    for scheme in (
        match_deterministic,
        match_sampled,
        one_hot,
        independent,
        no_replacement,
        mixed,
        stop_before_sampling,
        book,
    )
}
