"""Verification rules that look right and are not. The enumeration must tell each of them from the target's law."""

from collections.abc import Callable, Sequence

import numpy as np
from sampling_enumeration import Law, LawOf, Prefix, Script
from sampling_schemes import Scheme, draft, likeliest, paths, rejection, without

from tokloom.core.sampling.verify import accept_probability, children_of, residual_law


def argmax_draft_with_softmax_q(script: Script, p: LawOf, q: LawOf, parents: Sequence[int]) -> Prefix:
    """The draft is deterministic but verified as if drawn from q."""
    tokens, laws = draft(parents, lambda path, taken: (likeliest(q(path), taken), q(path)))
    return rejection(script, p, tokens, parents, laws)


def drawn_at_another_temperature(script: Script, p: LawOf, q: LawOf, parents: Sequence[int]) -> Prefix:
    """Drawn at temperature 0.5, verified with q at temperature 1."""

    def choose(path: Prefix, taken: Sequence[int]) -> tuple[int, Law | None]:
        sharp = q(path) ** 2
        return script.draw(0, sharp / sharp.sum()), q(path)

    tokens, laws = draft(parents, choose)
    return rejection(script, p, tokens, parents, laws)


def unlikely_sample_dropped(script: Script, p: LawOf, q: LawOf, parents: Sequence[int]) -> Prefix:
    """A drawn token is left out because of its own probability."""
    tokens: list[int] = []
    for _ in parents:
        law = q(tuple(tokens))
        token = script.draw(0, law)
        if law[token] < 0.2:
            break
        tokens.append(token)
    laws = [q(tuple(tokens[:i])) for i in range(len(tokens))]
    return rejection(script, p, tokens, parents[: len(tokens)], laws)


def independent_but_renormalised(script: Script, p: LawOf, q: LawOf, parents: Sequence[int]) -> Prefix:
    """Candidates are drawn independently, the verifier zeroes and renormalises q after each refusal."""
    tokens, laws = draft(parents, lambda path, taken: (script.draw(0, q(path)), without(q(path), taken)))
    return rejection(script, p, tokens, parents, laws)


def no_replacement_not_renormalised(script: Script, p: LawOf, q: LawOf, parents: Sequence[int]) -> Prefix:
    """Candidates are drawn without replacement, the verifier keeps q as it was."""
    tokens, laws = draft(parents, lambda path, taken: (script.draw(0, without(q(path), taken)), q(path)))
    return rejection(script, p, tokens, parents, laws)


def accepted_on_unfiltered_law(script: Script, p: LawOf, q: LawOf, parents: Sequence[int]) -> Prefix:
    """Acceptance on the law before a filter such as top-p, residual and bonus on the law p after it."""

    def raw(path: Prefix) -> Law:
        kept, dropped = p(path), p(path) == 0.0
        return 0.8 * kept + 0.2 * dropped / dropped.sum() if dropped.any() else kept

    tokens, laws = _sampled(script, q, parents)
    return _walk(script, raw, p, tokens, parents, laws, lambda law, r, own, token: residual_law(law, own, token))


def residual_from_p(script: Script, p: LawOf, q: LawOf, parents: Sequence[int]) -> Prefix:
    """After a refusal the token is drawn from p."""
    tokens, laws = _sampled(script, q, parents)
    return _walk(script, p, p, tokens, parents, laws, lambda law, r, own, token: law)


def draft_dropped_for_a_repeat(script: Script, p: LawOf, q: LawOf, parents: Sequence[int]) -> Prefix:
    """Siblings are drawn independently, and the whole draft is dropped if two of them are equal."""
    tokens, laws = draft(parents, lambda path, taken: (script.draw(0, q(path)), q(path)))
    if len(set(zip(tokens, parents, strict=True))) < len(tokens):
        return (script.draw(0, p(())),)
    return rejection(script, p, tokens, parents, laws)


def typical_acceptance(script: Script, p: LawOf, q: LawOf, parents: Sequence[int]) -> Prefix:
    """Medusa's: an argmax draft stands where p is above min(0.09, 0.3 exp(-entropy)). Lossy by design."""
    tokens, _ = draft(parents, lambda path, taken: (likeliest(q(path), taken), None))
    rows, children = paths(tokens, parents), children_of(parents)
    out: list[int] = []
    row = 0
    while True:
        law = p(rows[row])
        some = law[law > 0]
        bar = min(0.09, 0.3 * float(np.exp((some * np.log(some)).sum())))
        node = next((c for c in children[row] if law[tokens[c]] > bar), -1)
        if node < 0:
            return (*out, script.draw(row, law))
        out.append(tokens[node])
        row = node + 1


def _sampled(script: Script, q: LawOf, parents: Sequence[int]) -> tuple[list[int], list[Law | None]]:
    return draft(parents, lambda path, taken: (script.draw(0, without(q(path), taken)), without(q(path), taken)))


def _walk(
    script: Script,
    accept_law: LawOf,
    final_law: LawOf,
    tokens: Sequence[int],
    parents: Sequence[int],
    laws: Sequence[Law | None],
    residual: Callable[[Law, Law, Law | None, int], Law],
) -> Prefix:
    rows, children = paths(tokens, parents), children_of(parents)
    out: list[int] = []
    row = 0
    while True:
        judge, left = accept_law(rows[row]), final_law(rows[row])
        node = -1
        for at, child in enumerate(children[row]):
            if script.accept(row, at, accept_probability(judge, laws[child], tokens[child])):
                node = child
                break
            judge = residual_law(judge, laws[child], tokens[child])
            left = residual(left, judge, laws[child], tokens[child])
        if node < 0:
            return (*out, script.draw(row, left))
        out.append(tokens[node])
        row = node + 1


WRONG: dict[str, Scheme] = {
    rule.__name__: rule
    for rule in (
        argmax_draft_with_softmax_q,
        drawn_at_another_temperature,
        unlikely_sample_dropped,
        independent_but_renormalised,
        no_replacement_not_renormalised,
        accepted_on_unfiltered_law,
        residual_from_p,
        draft_dropped_for_a_repeat,
        typical_acceptance,
    )
}
