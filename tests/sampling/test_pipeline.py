"""The logits pipeline against a naive per-row reference, and against transformers where the two mean the same."""

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from sampling_enumeration import Prefix, outcomes, total_variation
from sampling_reference import EvenSumGrammar, WordGrammar, law, processed
from sampling_schemes import draft, emitted, likeliest, paths, without
from torch import Tensor

from tokloom.core.sampling import laws
from tokloom.core.sampling.pipeline import Batch, Faults, process, view_grammar
from tokloom.core.sampling.state import Row, SequenceState
from tokloom.core.sampling.verify import verify_match, verify_rejection
from tokloom.sdk import LogitsRow, Request, SamplingParams, TokenSegment

EOS = (1,)


class LastTokenBoost:
    """A processor whose result depends on the whole prefix of the row."""

    def apply(self, rows: Sequence[LogitsRow], logits: Tensor) -> Tensor:
        for i, row in enumerate(rows):
            logits[i, row.prefix[-1]] += 0.5
            logits[i, sum(row.prefix) % logits.shape[1]] -= 0.25 * row.child
        return logits


def boosted(raw: Sequence[float], prefix: Sequence[int], child: int) -> list[float]:
    x = list(raw)
    x[prefix[-1]] += 0.5
    x[sum(prefix) % len(x)] -= 0.25 * child
    return x


def random_params(chance: random.Random, vocab: int, *, greedy: float = 0.15) -> SamplingParams:
    def maybe(value: float, default: float) -> float:
        return value if chance.random() < 0.5 else default

    def token() -> int:
        return chance.randrange(vocab)

    return SamplingParams(
        max_tokens=8,
        min_tokens=chance.choice([0, 0, 1, 3]),
        temperature=0.0 if chance.random() < greedy else maybe(chance.uniform(0.3, 2.0), 1.0),
        top_k=chance.choice([0, 0, 1, 2, vocab // 2, vocab, vocab + 3]),
        top_p=maybe(chance.uniform(0.05, 1.0), 1.0),
        min_p=maybe(chance.uniform(0.0, 0.5), 0.0),
        repetition_penalty=maybe(chance.uniform(0.5, 2.0), 1.0),
        presence_penalty=maybe(chance.uniform(-1.0, 1.0), 0.0),
        frequency_penalty=maybe(chance.uniform(-1.0, 1.0), 0.0),
        logit_bias={token(): chance.uniform(-2, 2) for _ in range(chance.choice([0, 0, 2]))},
        bad_words=tuple(
            tuple(token() for _ in range(chance.choice([1, 2, 2, 3]))) for _ in range(chance.choice([0, 0, 2]))
        ),
        stop_token_ids=(token(),) if chance.random() < 0.3 else (),
        ignore_eos=chance.random() < 0.3,
    )


def make_state(
    params: SamplingParams,
    prompt: Sequence[int],
    vocab: int,
    *,
    child: int = 0,
    boost: bool = False,
    grammar: bool = False,
) -> SequenceState:
    request = Request(request_id="r", segments=(TokenSegment(prompt),), sampling=params)
    processors = [("boost", LastTokenBoost())] if boost else []
    return SequenceState(
        1, request, child, len(prompt), vocab, EOS, 7, processors, EvenSumGrammar(vocab) if grammar else None
    )


def rows_of(state: SequenceState, history: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> list[Row]:
    array = np.array(history, dtype=np.int64)
    return [Row(state, array, path) for path in paths(tokens, parents)]


@pytest.mark.parametrize("seed", range(60))
def test_every_row_is_processed_with_its_own_prefix_as_the_reference_does(seed: int) -> None:
    chance = random.Random(seed)
    vocab = chance.choice([5, 8, 40])
    rows: list[Row] = []
    expected: list[np.ndarray] = []
    raws: list[list[float]] = []
    masks: list[np.ndarray | None] = []
    for _ in range(chance.randint(1, 4)):
        params = random_params(chance, vocab)
        prompt = [chance.randrange(vocab) for _ in range(chance.randint(1, 6))]
        boost, grammar, child = chance.random() < 0.3, chance.random() < 0.3, chance.randrange(3)
        state = make_state(params, prompt, vocab, child=child, boost=boost, grammar=grammar)
        output: list[int] = []
        for _ in range(chance.randint(0, 5)):
            allowed = [t for t in range(vocab) if state.grammar is None or state.grammar.mask()[t]]
            output.append(chance.choice(allowed))
            if state.grammar is not None:
                assert state.grammar.advance(output[-1])
        parents = [chance.randrange(-1, i) for i in range(chance.randint(0, 5))]
        tokens = [chance.randrange(vocab) for _ in parents]
        own = rows_of(state, [*prompt, *output], tokens, parents)
        before = list(state.grammar.taken) if isinstance(state.grammar, EvenSumGrammar) else None
        view = view_grammar(own[0], tokens, parents, vocab) if grammar else None
        if view is not None:
            assert isinstance(state.grammar, EvenSumGrammar)
            assert state.grammar.taken == before
        for at, row in enumerate(own):
            if view is not None and at in view.over:
                continue
            raw = [chance.gauss(0, 2) for _ in range(vocab)]
            start = boosted(raw, list(row), child) if boost else raw
            fresh = EvenSumGrammar(vocab) if grammar else None
            x = processed(start, list(row), len(prompt), params, EOS, fresh)
            if max(x) == -math.inf:
                continue
            rows.append(row)
            raws.append(raw)
            masks.append(None if view is None else view.masks[at])
            expected.append(law(x, params))
    if not rows:
        return
    faults: Faults = {}
    out = process(Batch(rows, masks), torch.tensor(raws, dtype=torch.float64), faults)
    assert not faults
    for i, row in enumerate(rows):
        params = row.state.params
        if params.temperature == 0.0:
            assert int(out[i].argmax()) == int(np.argmax(expected[i])), f"seed {seed} row {i}"
            continue
        # The whole batch at once for rows that are drawn, so that filters of other rows are there too.
        drawn = [j for j, r in enumerate(rows) if r.state.params.temperature > 0.0]
        filters = laws.Filters.of([rows[j].state.params for j in drawn], out.device)
        got = laws.law(out[drawn], filters)[drawn.index(i)].numpy()
        # The processor works in float32.
        limit = 1e-6 if row.state.processors else 1e-12
        assert np.abs(got - expected[i]).sum() / 2 < limit, f"seed {seed} row {i} {params}"


@pytest.mark.parametrize("scheme", ["match", "one_hot", "no_replacement"])
@pytest.mark.parametrize("seed", range(40))
def test_drafts_change_no_law_under_any_pipeline_option(scheme: str, seed: int) -> None:
    """The real pipeline with drafts against the reference's autoregressive law."""
    chance = random.Random(seed)
    vocab = chance.choice([3, 4])
    parents = chance.choice([(-1,), (-1, 0), (-1, -1), (-1, -1, 0), (-1, 0, 0)])
    length = 3 if max(parents) >= 0 else 2
    prompt = [chance.randrange(vocab) for _ in range(3)]
    grammar = seed % 2 == 1
    salt = random.Random(seed + 1000).randrange(1 << 30)

    def raw(prefix: Prefix) -> list[float]:
        drawn: list[float] = np.random.default_rng([salt, *prefix]).normal(0, 1.5, size=vocab).tolist()
        return drawn

    def target(prefix: Prefix) -> np.ndarray:
        fresh, probe = EvenSumGrammar(vocab), EvenSumGrammar(vocab)
        if grammar and not all(probe.advance(token) for token in prefix):
            return np.zeros(vocab)
        x = processed(raw(prefix), [*prompt, *prefix], len(prompt), params, EOS, fresh if grammar else None)
        return law(x, params) if max(x) > -math.inf else np.zeros(vocab)

    def q(prefix: Prefix) -> np.ndarray:
        w = np.random.default_rng([salt, 9, *prefix]).gamma(1.0, size=vocab) + 0.01
        law_of_draft: np.ndarray = w / w.sum()
        return law_of_draft

    params = random_params(chance, vocab, greedy=0.1)
    while any(target(p).sum() == 0.0 for p in _reachable(target, vocab, length)):
        params = random_params(chance, vocab, greedy=0.1)  # these excluded every token somewhere
    state = make_state(params, prompt, vocab, grammar=grammar)
    known: dict[tuple[int, ...], list[np.ndarray | None]] = {}

    def rows_laws(tokens: Sequence[int]) -> list[np.ndarray | None]:
        key = tuple(tokens)
        if key not in known:
            rows = rows_of(state, prompt, tokens, parents)
            view = view_grammar(rows[0], tokens, parents, vocab) if grammar else None
            live = [at for at in range(len(rows)) if view is None or at not in view.over]
            logits = torch.tensor([raw(rows[at].path) for at in live], dtype=torch.float64)
            masks = [None if view is None else view.masks[at] for at in live]
            x = process(Batch([rows[at] for at in live], masks), logits, {})
            if params.temperature == 0.0:
                p = torch.nn.functional.one_hot(x.argmax(-1), vocab).double()
            else:
                p = laws.law(x, laws.Filters.of([params] * len(live), x.device))
            out: list[np.ndarray | None] = [None] * len(rows)
            for i, at in enumerate(live):
                out[at] = p[i].numpy() if x[i].max() > -math.inf else None
            known[key] = out
        return known[key]

    def run(script):  # type: ignore[no-untyped-def]
        if scheme == "no_replacement":
            tokens, kept = draft(
                parents, lambda path, taken: (script.draw(0, without(q(path), taken)), without(q(path), taken))
            )
        else:
            tokens, kept = draft(parents, lambda path, taken: (likeliest(q(path), taken), None))
        p = rows_laws(tokens)
        if scheme == "match":
            return emitted(tokens, verify_match(tokens, parents, lambda row: script.draw(row, p[row])))
        return emitted(tokens, verify_rejection(tokens, parents, lambda row: p[row], kept, script))

    tv = total_variation(run, target, vocab, length)
    assert tv < 1e-12, f"seed {seed}, {scheme}: {tv} with {params}"


def _reachable(target, vocab: int, length: int) -> list[Prefix]:  # type: ignore[no-untyped-def]
    found: list[Prefix] = [()]
    for prefix in found:
        if len(prefix) < length - 1:
            found += [(*prefix, t) for t in range(vocab) if target(prefix)[t] > 0.0]
    return found


def test_penalties_and_filters_agree_with_transformers() -> None:
    from transformers.generation.logits_process import (
        MinPLogitsWarper,
        NoBadWordsLogitsProcessor,
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    for seed in range(20):
        chance = random.Random(seed)
        vocab = 50
        prefix = [chance.randrange(vocab) for _ in range(12)]
        params = SamplingParams(
            temperature=chance.uniform(0.4, 1.8),
            top_k=chance.randint(5, 40),
            top_p=chance.uniform(0.3, 0.99),
            min_p=chance.uniform(0.001, 0.1),
            repetition_penalty=chance.uniform(0.6, 1.8),
            bad_words=((prefix[-1], 3), (4,), (prefix[-2], prefix[-1], 6)),
        )
        raw = torch.randn(1, vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        ids = torch.tensor([prefix])
        x = raw.clone()
        steps: tuple[Any, ...] = (
            NoBadWordsLogitsProcessor([list(w) for w in params.bad_words], eos_token_id=None),
            RepetitionPenaltyLogitsProcessor(params.repetition_penalty),
            TemperatureLogitsWarper(params.temperature),
            TopKLogitsWarper(params.top_k),
            TopPLogitsWarper(params.top_p),
            MinPLogitsWarper(params.min_p),
        )
        for step in steps:
            x = step(ids, x)
        row = Row(make_state(params, prefix[:6], vocab), np.array(prefix), ())
        mine = process(Batch([row], [None]), raw.clone(), {})
        got = laws.law(mine, laws.Filters.of([params], mine.device))
        assert torch.allclose(got, x.softmax(-1), rtol=0, atol=1e-12), f"seed {seed}"


def test_top_k_keeps_the_lowest_ids_of_equals() -> None:
    x = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0], [3.0, 3.0, 3.0, 3.0, 3.0]])
    keep = laws.top_k_mask(x, torch.tensor([2, 3]))
    assert keep.tolist() == [[False, True, True, False, False], [True, True, True, False, False]]


@pytest.mark.parametrize("vocab", [300, 2000, 9000])
def test_a_wide_nucleus_is_found_when_the_guess_is_too_small(vocab: int) -> None:
    raw = torch.randn(3, vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(5)) * 0.1
    params = [SamplingParams(top_p=0.9), SamplingParams(top_p=0.01), SamplingParams(top_p=0.999, top_k=1500)]
    got = laws.law(raw, laws.Filters.of(params, raw.device))
    for i, own in enumerate(params):
        assert np.abs(got[i].numpy() - law(raw[i].tolist(), own)).sum() < 1e-11


@pytest.mark.parametrize("seed", range(8))
def test_cutting_to_top_k_first_draws_the_same_tokens(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(6, 400, dtype=torch.float64, generator=generator).round(decimals=1)
    u = torch.rand(6, 20, dtype=torch.float64, generator=generator)
    params = [
        SamplingParams(top_k=k, top_p=p, min_p=m, temperature=t)
        for k, p, m, t in [
            (1, 1, 0, 1),
            (5, 0.9, 0, 0.7),
            (50, 1, 0.2, 1),
            (0, 0.5, 0, 2),
            (399, 1, 0, 1),
            (7, 1, 0, 1e-9),
        ]
    ]
    filters = laws.Filters.of(params, x.device)
    assert torch.equal(laws.draw(x, filters, u), laws.invert(laws.weights(x, filters), u))


def test_draws_follow_the_law_at_the_edges_of_the_unit_interval() -> None:
    w = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]], dtype=torch.float64)
    u = torch.tensor([[0.0, 0.2499999, 0.25, 0.7499, 0.75, 1.0 - 2.0**-53]], dtype=torch.float64)
    assert laws.invert(w, u).tolist() == [[1, 1, 3, 3, 4, 4]]


def test_a_grammar_that_ends_closes_the_rows_behind_it() -> None:
    vocab = 4
    state = make_state(SamplingParams(), [0], vocab)
    state.grammar = WordGrammar([(2, 3), (2, 1, 1)], vocab)
    tokens, parents = [2, 3, 1, 0, 1, 2], [-1, 0, 0, 1, 2, -1]
    tokens[5] = 0
    rows = rows_of(state, [0], tokens, parents)
    view = view_grammar(rows[0], tokens, parents, vocab)
    assert view.over == {2, 4, 5, 6}
    assert view.refused == {6}
    assert state.grammar.taken == []
    assert [None if m is None else m.nonzero()[0].tolist() for m in view.masks] == [
        [2],
        [1, 3],
        None,
        [1],
        None,
        None,
        None,
    ]


def test_enumeration_visits_every_outcome_once() -> None:
    got = outcomes(lambda s: (s.draw(0, np.array([0.5, 0.0, 0.5])), s.accept(0, 0, 0.25)))
    assert got == {(0, False): 0.375, (0, True): 0.125, (2, False): 0.375, (2, True): 0.125}


def test_the_token_that_reaches_top_p_exactly_is_the_last_one_kept() -> None:
    x = torch.zeros(1, 4, dtype=torch.float64)
    for top_p, kept in ((0.25, 1), (0.5, 2), (0.51, 3), (0.75, 3), (0.76, 4)):
        p = laws.law(x, laws.Filters.of([SamplingParams(top_p=top_p)], x.device))
        assert p[0].tolist() == [1 / kept] * kept + [0.0] * (4 - kept)


def test_a_token_exactly_at_min_p_stays() -> None:
    x = torch.tensor([[0.0, 0.0, math.log(0.5), -1.0]], dtype=torch.float64)
    for min_p, kept in ((1.0, 2), (float(torch.tensor(math.log(0.5), dtype=torch.float64).exp()), 3), (0.3, 4)):
        p = laws.law(x, laws.Filters.of([SamplingParams(min_p=min_p)], x.device))
        assert int((p > 0).sum()) == kept


def test_a_bad_word_masks_its_last_token_where_all_others_precede_it_drafts_included() -> None:
    vocab = 9
    state = make_state(SamplingParams(bad_words=((1, 2, 3, 4), (5,), (3, 6))), [1, 2], vocab)
    rows = rows_of(state, [1, 2], [3, 3], [-1, 0])
    x = process(Batch(rows, [None] * 3), torch.zeros(3, vocab), {})
    masked = [row.isinf().nonzero().flatten().tolist() for row in x]
    assert masked == [[5], [4, 5, 6], [5, 6]]
