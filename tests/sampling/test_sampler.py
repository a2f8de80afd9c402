"""The sampler as the runner calls it."""

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from sampling_reference import EvenSumGrammar, WordGrammar, processed
from sampling_reference import law as reference_law
from test_pipeline import EOS, LastTokenBoost, boosted, random_params
from torch import Tensor

from tokloom.core.sampling import Sampler, ScoreRows, SpanRows, SpanSample, derive, uniform
from tokloom.sdk import (
    NO_DRAFT,
    Draft,
    GrammarSpec,
    LogitsRow,
    PluginFault,
    Request,
    RequestError,
    SamplingParams,
    TokenSegment,
)

VOCAB = 30
Model = Callable[[Sequence[int]], list[float]]


def model(salt: int, vocab: int = VOCAB) -> Model:
    """Logits that depend on the whole prefix, with many ties."""

    def logits(prefix: Sequence[int]) -> list[float]:
        drawn: list[float] = np.random.default_rng([salt, *prefix]).normal(0, 2, size=vocab).round(1).tolist()
        return drawn

    return logits


def request(params: SamplingParams, prompt: Sequence[int], name: str = "r") -> Request:
    return Request(request_id=name, segments=(TokenSegment(prompt),), sampling=params)


class Sequence_:
    """A test's sequence: its prompt, parameters and what was emitted so far."""

    def __init__(self, seq_id: int, chance: random.Random, params: SamplingParams | None = None) -> None:
        self.seq_id = seq_id
        self.params = params or random_params(chance, VOCAB)
        self.prompt = [chance.randrange(VOCAB) for _ in range(chance.randint(1, 6))]
        self.tokens = list(self.prompt)
        self.seed = chance.randrange(2**63)
        self.grammar = chance.random() < 0.3
        self.boost = chance.random() < 0.3
        self.model = model(chance.randrange(2**30))

    def begin(self, sampler: Sampler) -> None:
        sampler.begin(
            self.seq_id,
            request(self.params, self.prompt),
            num_prompt=len(self.prompt),
            seed=self.seed,
            processors=[("boost", LastTokenBoost())] if self.boost else [],
            grammar=EvenSumGrammar(VOCAB) if self.grammar else None,
            tokens=self.tokens,
        )

    def expected(self, steps: int) -> list[int] | None:
        """The reference's own generation: naive pipeline, naive inverse CDF, no drafts."""
        tokens = list(self.prompt)
        for _ in range(steps):
            raw = self.model(tokens)
            raw = boosted(raw, tokens, 0) if self.boost else raw
            fresh = EvenSumGrammar(VOCAB) if self.grammar else None
            x = processed(raw, tokens, len(self.prompt), self.params, EOS, fresh)
            if max(x) == float("-inf"):
                return None
            p = reference_law(x, self.params)
            u = uniform(derive(self.seed, 0), len(tokens), 0)
            tokens.append(int(np.flatnonzero(np.cumsum(p) > u * p.sum())[0]))
        return tokens[len(self.prompt) :]


def random_draft(chance: random.Random, truth: Sequence[int], k: int) -> Draft:
    """A chain or tree of up to k nodes; the true continuation is on some random branch of it, for a while."""
    tokens: list[int] = []
    parents: list[int] = []
    on_truth: dict[int, int] = {-1: 0}
    while len(tokens) < k:
        parent = chance.choice([-1, *range(len(tokens))]) if chance.random() < 0.5 else len(tokens) - 1
        depth = on_truth.get(parent, -1)
        right = truth[depth] if 0 <= depth < len(truth) and chance.random() < 0.8 else None
        token = chance.randrange(VOCAB) if right is None else right
        if any(p == parent and t == token for p, t in zip(parents, tokens, strict=True)):
            if len(tokens) and chance.random() < 0.5:
                break
            continue
        if right is not None:
            on_truth[len(tokens)] = depth + 1
        tokens.append(token)
        parents.append(parent)
    return Draft(tokens, parents)


def sampled(sampler: Sampler, spans: Sequence[SpanRows], logits: torch.Tensor) -> list[SpanSample]:
    """What a launch does around `sample`."""
    sampler.start_masks([(span.seq_id, span.draft) for span in spans])
    samples = sampler.sample(spans, logits)
    sampler.finish_masks()
    return samples


def step(sampler: Sampler, members: Sequence[Sequence_], drafts: Sequence[Draft], dtype: torch.dtype) -> list[int]:
    """One step of all members; returns how many drafts of each stood."""
    spans: list[SpanRows] = []
    rows: list[list[float]] = []
    for member, draft in zip(members, drafts, strict=True):
        spans.append(SpanRows(member.seq_id, np.array(member.tokens, np.int64), len(rows), draft))
        paths: list[list[int]] = [[]]
        for token, parent in zip(draft.tokens, draft.parents, strict=True):
            paths.append([*paths[parent + 1], token])
        rows += [member.model([*member.tokens, *path]) for path in paths]
    logits = torch.tensor(rows, dtype=dtype)
    before = logits.clone()
    samples = sampled(sampler, spans, logits)
    assert torch.equal(logits, before)
    for member, draft, sample in zip(members, drafts, samples, strict=True):
        assert sample.error is None
        (emitted,) = sample.tokens
        assert tuple(draft.tokens[n] for n in sample.accepted) == emitted[:-1]
        assert [draft.parents[n] for n in sample.accepted] == [-1, *sample.accepted][: len(sample.accepted)]
        sampler.commit(member.seq_id, emitted)
        member.tokens += emitted
    return [len(sample.accepted) for sample in samples]


def group(seed: int, size: int) -> tuple[list[Sequence_], list[list[int]]]:
    chance = random.Random(seed)
    members: list[Sequence_] = []
    truths: list[list[int]] = []
    while len(members) < size:
        member = Sequence_(len(members), chance)
        truth = member.expected(14)
        if truth is not None:
            members.append(member)
            truths.append(truth)
    return members, truths


@pytest.mark.parametrize("mode", ["match", "rejection"])
@pytest.mark.parametrize("seed", range(25))
def test_tokens_are_those_of_a_run_without_drafts_alone_in_the_batch(seed: int, mode: str) -> None:
    chance = random.Random(seed + 500)
    members, truths = group(seed, 4)
    sampler = Sampler(VOCAB, EOS, mode=mode)  # type: ignore[arg-type]
    for member in members:
        member.begin(sampler)
    stood = 0
    for _ in range(5):
        present = [m for m in members if len(m.tokens) - len(m.prompt) < 9 and chance.random() < 0.8]
        chance.shuffle(present)
        drafts = [
            random_draft(chance, truths[m.seq_id][len(m.tokens) - len(m.prompt) :], chance.choice([0, 0, 1, 3, 5]))
            for m in present
        ]
        if present:
            stood += sum(step(sampler, present, drafts, torch.float64))
        if chance.random() < 0.3:  # a preemption
            member = chance.choice(members)
            sampler.end(member.seq_id)
            member.begin(sampler)
    assert stood > 0
    for member, truth in zip(members, truths, strict=True):
        out = member.tokens[len(member.prompt) :]
        assert out == truth[: len(out)], f"seed {seed}, sequence {member.seq_id}, {member.params}"
        sampler.end(member.seq_id)
    assert len(sampler) == 0


def test_a_greedy_batch_is_one_argmax_and_ties_go_to_the_lowest_id() -> None:
    sampler = Sampler(5)
    logits = torch.tensor([[0.0, 3.0, 1.0, 3.0, 0.0], [9.0, 9.0, 9.0, 9.0, 9.0], [0.0, 0.0, 0.0, 0.0, 1.0]])
    for seq_id in range(2):
        sampler.begin(seq_id, request(SamplingParams(temperature=0.0), [1]), num_prompt=1, seed=0)
    spans = [SpanRows(0, np.array([1]), 0, Draft.chain([1])), SpanRows(1, np.array([1]), 2)]
    assert [s.tokens for s in sampler.sample(spans, logits)] == [((1, 0),), ((4,),)]


def test_end_ids_are_masked_for_greedy_requests_until_min_tokens() -> None:
    sampler = Sampler(4, eos_ids=(3,))
    sampler.begin(0, request(SamplingParams(temperature=0.0, min_tokens=2), [1]), num_prompt=1, seed=0)
    logits = torch.tensor([[0.0, 1.0, 2.0, 9.0]]).expand(4, 4)
    (sample,) = sampler.sample([SpanRows(0, np.array([1]), 0, Draft.chain([2, 2, 3]))], logits)
    assert sample.tokens == ((2, 2, 3, 3),)
    (later,) = sampler.sample([SpanRows(0, np.array([1, 2, 2]), 0)], logits)
    assert later.tokens == ((3,),)


def test_children_draw_their_first_tokens_from_one_row_with_seeds_of_their_own() -> None:
    params = SamplingParams(n=40, temperature=1.3, logprobs=0)
    raw = model(3)([1, 2])
    sampler = Sampler(VOCAB)
    sampler.begin(0, request(params, [1, 2]), num_prompt=2, seed=11)
    (sample,) = sampler.sample([SpanRows(0, np.array([1, 2]), 0, samples=40)], torch.tensor([raw]))
    p = reference_law(raw, params)
    wanted = [int(np.flatnonzero(np.cumsum(p) > uniform(derive(11, c), 2, 0))[0]) for c in range(40)]
    assert sample.tokens == tuple((token,) for token in wanted)
    assert len(set(wanted)) > 5
    assert [len(logs) for logs in sample.logprobs] == [1] * 40
    # A child that goes on alone draws what it would have drawn.
    for child in (1, 7):
        sampler.begin(child, request(params, [1, 2]), child=child, num_prompt=2, seed=11, tokens=[1, 2])
        (own,) = sampler.sample([SpanRows(child, np.array([1, 2]), 0)], torch.tensor([raw]))
        assert own.tokens == ((wanted[child],),)


def test_greedy_children_are_alike() -> None:
    sampler = Sampler(VOCAB)
    sampler.begin(0, request(SamplingParams(n=3, temperature=0.0), [1]), num_prompt=1, seed=11)
    (sample,) = sampler.sample([SpanRows(0, np.array([1]), 0, samples=3)], torch.tensor([model(1)([1])]))
    assert len(sample.tokens) == 3
    assert len(set(sample.tokens)) == 1


def test_logprobs_are_those_of_the_raw_rows_that_emitted_the_tokens() -> None:
    params = SamplingParams(temperature=0.0, logprobs=3, logit_bias={4: 50.0}, top_k=1)
    sampler = Sampler(VOCAB)
    sampler.begin(0, request(params, [1]), num_prompt=1, seed=0)
    sampler.begin(1, request(SamplingParams(temperature=0.0), [1]), num_prompt=1, seed=0)
    logits = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(1)).round(decimals=1)
    draft = Draft((9, 4, 4), (-1, -1, 1))
    first, second = sampler.sample([SpanRows(0, np.array([1]), 1, draft), SpanRows(1, np.array([1]), 0)], logits)
    assert (first.tokens, first.accepted, second.logprobs) == (((4, 4, 4),), (1, 2), ((),))
    for row, logs in zip((1, 3, 4), first.logprobs[0], strict=True):
        exact = logits[row].double().log_softmax(-1)
        values = exact.tolist()
        order = sorted(range(VOCAB), key=[(-value, t) for t, value in enumerate(values)].__getitem__)[:3]
        assert logs.ids == tuple(order)
        assert logs.values == pytest.approx([float(exact[t]) for t in order], abs=1e-5)
        assert logs.chosen == pytest.approx(float(exact[4]), abs=1e-5)


def test_prompt_logprobs_score_the_given_targets() -> None:
    sampler = Sampler(VOCAB)
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(2))
    logits[5, 3] = torch.nan
    for seq_id, count in ((0, 2), (1, None), (2, 0)):
        sampler.begin(seq_id, request(SamplingParams(prompt_logprobs=count), [1]), num_prompt=1, seed=0)
    a, b, c = sampler.prompt_logprobs([ScoreRows(0, 1, (4, 5)), ScoreRows(1, 3, (6,)), ScoreRows(2, 5, (1,))], logits)
    assert [len(entry.ids) for entry in a.logprobs] == [2, 2]
    assert a.logprobs[1].chosen == pytest.approx(float(logits[2].double().log_softmax(-1)[5]), abs=1e-5)
    assert b.logprobs[0].ids == ()
    assert isinstance(c.error, PluginFault)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), SamplingParams(seed=3, top_k=5), SamplingParams()])
def test_a_poisoned_row_faults_its_own_sequence_only(params: SamplingParams, poison: float) -> None:
    sampler = Sampler(VOCAB)
    for seq_id in range(3):
        sampler.begin(seq_id, request(params, [1], f"name{seq_id}"), num_prompt=1, seed=seq_id)
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(2))
    spans = [SpanRows(i, np.array([1]), i) for i in range(3)]
    clean = sampler.sample(spans, logits)
    logits[1, 7] = poison
    got = sampler.sample(spans, logits)
    assert (got[0], got[2]) == (clean[0], clean[2])
    assert got[1].tokens == ((),)
    assert isinstance(got[1].error, PluginFault)
    assert "name1" in str(got[1].error)
    logits[1] = -torch.inf
    assert isinstance(sampler.sample(spans, logits)[1].error, PluginFault)


def test_a_fault_behind_accepted_drafts_keeps_them_and_one_on_a_branch_not_taken_is_no_fault() -> None:
    sampler = Sampler(4)
    sampler.begin(0, request(SamplingParams(temperature=0.0), [1]), num_prompt=1, seed=0)
    logits = torch.eye(4)[[2, 3, 1]].clone()
    logits[2] = torch.nan
    draft = Draft((2, 0), (-1, -1))
    (fine,) = sampler.sample([SpanRows(0, np.array([1]), 0, draft)], logits)
    assert (fine.tokens, fine.error) == (((2, 3),), None)
    (broken,) = sampler.sample([SpanRows(0, np.array([1]), 0, Draft((2, 3), (-1, 0)))], logits)
    assert (broken.tokens, broken.accepted) == (((2, 3),), (0, 1))
    assert isinstance(broken.error, PluginFault)


def test_constraints_that_exclude_every_token_are_the_requests_error() -> None:
    sampler = Sampler(3, eos_ids=(2,))
    params = SamplingParams(min_tokens=1, bad_words=((0,), (1,)), temperature=0.5)
    sampler.begin(0, request(params, [1], "strict"), num_prompt=1, seed=0)
    sampler.begin(1, request(SamplingParams(), [1]), num_prompt=1, seed=0)
    first, second = sampler.sample([SpanRows(0, np.array([1]), 0), SpanRows(1, np.array([1]), 1)], torch.zeros(2, 3))
    assert isinstance(first.error, RequestError)
    assert "strict" in str(first.error)
    assert second.error is None


class FailsFor:
    """A processor that misbehaves on one request."""

    def __init__(self, victim: str, how: str) -> None:
        self._victim = victim
        self._how = how
        self.calls: list[int] = []

    def apply(self, rows: Sequence[LogitsRow], logits: Tensor) -> Tensor:
        self.calls.append(len(rows))
        if any(row.request.request_id == self._victim for row in rows):
            if self._how == "raises":
                raise ValueError("no")
            if self._how == "shape":
                return logits[:, :2]
            logits[:, 0] = torch.nan
        return logits + torch.arange(logits.shape[1])


@pytest.mark.parametrize("how", ["raises", "shape", "nan"])
def test_a_failing_processor_faults_only_the_sequences_it_fails_for(how: str) -> None:
    processor = FailsFor("b", how)
    sampler = Sampler(4)
    for seq_id, name in enumerate("abc"):
        own = request(SamplingParams(temperature=0.0), [1], name)
        sampler.begin(seq_id, own, num_prompt=1, seed=0, processors=[("fails", processor)])
    samples = sampler.sample([SpanRows(i, np.array([1]), i) for i in range(3)], torch.zeros(3, 4))
    assert [s.tokens for s in samples] == [((3,),), ((),), ((3,),)]
    assert isinstance(samples[1].error, PluginFault)
    assert samples[1].error.subject == "logits.fails"


def test_a_processor_is_called_once_for_all_rows_that_use_it() -> None:
    processor = FailsFor("", "")
    sampler = Sampler(4)
    for seq_id in range(3):
        sampler.begin(
            seq_id, request(SamplingParams(), [1]), num_prompt=1, seed=0, processors=[("x", processor)][: seq_id + 1]
        )
    sampler.sample([SpanRows(i, np.array([1]), i * 2, Draft.chain([0])) for i in range(3)], torch.zeros(6, 4))
    assert processor.calls == [6]


def test_a_grammar_that_ends_inside_a_draft_ends_the_tokens_there() -> None:
    sampler = Sampler(4)
    sampler.begin(
        0, request(SamplingParams(temperature=0.0), [1]), num_prompt=1, seed=0, grammar=WordGrammar([(2, 3)], 4)
    )
    (sample,) = sampled(sampler, [SpanRows(0, np.array([1]), 0, Draft.chain([2, 3, 1]))], torch.zeros(4, 4))
    assert (sample.tokens, sample.accepted, sample.error) == (((2, 3),), (0, 1), None)
    assert sampler.commit(0, (2, 3)) is True


def test_a_forked_or_preempted_sequence_starts_a_fresh_grammar_over_its_output() -> None:
    sampler = Sampler(4)
    grammar = WordGrammar([(2, 3, 1)], 4)
    sampler.begin(5, request(SamplingParams(), [1]), num_prompt=1, seed=0, grammar=grammar, tokens=[1, 2, 3])
    assert grammar.taken == [2, 3]
    with pytest.raises(PluginFault):
        sampler.begin(
            6, request(SamplingParams(), [1]), num_prompt=1, seed=0, grammar=WordGrammar([(2,)], 4), tokens=[1, 0]
        )
    sampler.end(5)
    assert len(sampler) == 0


def test_a_grammar_that_raises_faults_its_sequence() -> None:
    class Broken(EvenSumGrammar):
        def mask(self):  # type: ignore[no-untyped-def]
            raise KeyError("state")

    sampler = Sampler(4)
    params = SamplingParams(grammar=GrammarSpec("x-a.b", "", "broken"))
    sampler.begin(0, request(params, [1]), num_prompt=1, seed=0, grammar=Broken(4))
    sampler.begin(1, request(SamplingParams(), [1]), num_prompt=1, seed=0)
    spans = [SpanRows(0, np.array([1]), 0), SpanRows(1, np.array([1]), 1)]
    first, second = sampled(sampler, spans, torch.zeros(2, 4))
    assert isinstance(first.error, PluginFault)
    assert first.error.subject == "logits.broken"
    assert second.error is None


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """The statistic, as a z-score by Wilson and Hilferty's cube root."""
    possible = expected > 0
    assert counts[~possible].sum() == 0
    degrees = int(possible.sum()) - 1
    statistic = float(((counts - expected)[possible] ** 2 / expected[possible]).sum())
    scale = 2 / (9 * degrees)
    return float(((statistic / degrees) ** (1 / 3) - (1 - scale)) / scale**0.5)


@pytest.mark.parametrize("mode", ["match", "rejection"])
@pytest.mark.parametrize("shape", [(-1, 0), (-1, -1, 0)])
def test_the_real_draws_follow_the_joint_law_of_two_tokens(mode: str, shape: tuple[int, ...]) -> None:
    """The plumbing of random numbers: many seeds through sample_draft, clean_draft and sample."""
    vocab, n = 5, 6000
    raw = torch.tensor([[model(71, vocab)(p) for p in [(), *((t,) for t in range(vocab))]]])[0]
    q_logits = torch.tensor([-0.5, -2.0, 1.5, 1.0, -2.0])
    params = SamplingParams(top_p=0.95, temperature=1.1)
    sampler = Sampler(vocab, mode=mode)  # type: ignore[arg-type]
    counts = np.zeros((vocab, vocab))
    accepted = 0
    for low in range(0, n, 500):
        spans: list[SpanRows] = []
        rows: list[int] = []
        for seq_id in range(low, low + 500):
            sampler.begin(seq_id, request(params, [1]), num_prompt=1, seed=seq_id * 7919)
            tokens: list[int] = []
            for node, parent in enumerate(shape):
                own = q_logits.clone()
                for i in range(node):
                    if shape[i] == parent:
                        own[tokens[i]] = -torch.inf
                depth = 1 if parent < 0 else 2
                tokens.append(sampler.sample_draft(seq_id, depth, depth, own))
            draft, fault = sampler.clean_draft(seq_id, Draft(tokens, shape, sampled=True), 8)
            assert not fault
            assert draft.sampled
            spans.append(SpanRows(seq_id, np.array([1]), len(rows), draft))
            paths: list[int] = [0]
            for token, parent in zip(tokens, shape, strict=True):
                paths.append(1 + token if parent < 0 else 0)
            rows += paths
        for span, sample in zip(spans, sampler.sample(spans, raw[rows]), strict=True):
            (out,) = sample.tokens
            accepted += len(sample.accepted)
            if len(out) == 1:  # the second token without drafts
                (more,) = sampler.sample([SpanRows(span.seq_id, np.array([1, out[0]]), 0)], raw[[1 + out[0]]])
                out = (*out, *more.tokens[0])
            counts[out[0], out[1]] += 1
            sampler.end(span.seq_id)
    law = [reference_law(row.tolist(), params) for row in raw]
    expected = n * np.array([[law[0][a] * law[1 + a][b] for b in range(vocab)] for a in range(vocab)])
    assert accepted > n / 10
    assert abs(chi_square(counts, expected)) < 3.72  # p > 1e-4


def test_rejection_accepts_every_draft_when_q_is_p() -> None:
    vocab, sampler = 6, Sampler(6, mode="rejection")
    raw = torch.tensor([model(5, vocab)(())], dtype=torch.float64)
    for seq_id in range(200):
        sampler.begin(seq_id, request(SamplingParams(), [1]), num_prompt=1, seed=seq_id)
        token = sampler.sample_draft(seq_id, 1, 1, raw[0])
        draft, _ = sampler.clean_draft(seq_id, Draft.chain([token], sampled=True), 1)
        (sample,) = sampler.sample([SpanRows(seq_id, np.array([1]), 0, draft)], raw.expand(2, vocab))
        assert sample.accepted == (0,)


def test_a_draft_that_hides_or_replaces_a_drawn_token_is_matched_from_then_on() -> None:
    tampers: tuple[Callable[[list[int]], list[int]], ...] = (
        lambda t: [t[0]],
        lambda t: [t[0], (t[1] + 1) % 6],
        lambda t: [],
    )
    for tamper in tampers:
        sampler = Sampler(6, mode="rejection")
        sampler.begin(0, request(SamplingParams(), [1]), num_prompt=1, seed=3)
        drawn = [sampler.sample_draft(0, depth, depth, torch.zeros(6)) for depth in (1, 2)]
        draft, _ = sampler.clean_draft(0, Draft.chain(tamper(drawn), sampled=True), 4)
        assert not draft.sampled
        sampler.sample([SpanRows(0, np.array([1]), 0, draft)], torch.zeros(3, 6))
        token = sampler.sample_draft(0, 1, 2, torch.zeros(6))
        again, _ = sampler.clean_draft(0, Draft.chain([token], sampled=True), 4)
        assert not again.sampled


@pytest.mark.parametrize(
    ("draft", "kept", "words"),
    [
        (Draft((1, 9), (-1, 0)), NO_DRAFT, "outside the vocabulary"),
        (Draft((1, -1), (-1, 0)), NO_DRAFT, "outside the vocabulary"),
        (Draft((1, 2), (-1, 1)), NO_DRAFT, "does not come before"),
        (Draft((1, 2), (-1, -2)), NO_DRAFT, "does not come before"),
        (Draft((1, 2), (-1,)), NO_DRAFT, "parents"),
        (Draft((1, 1, 2, 3), (-1, -1, 1, 0)), Draft((1, 3), (-1, 0)), "siblings"),
        (Draft.chain((1, 2, 3, 4, 5)), Draft.chain((1, 2, 3, 4)), "at most 4"),
        (Draft((1, 2, 1), (-1, 0, 1)), Draft((1, 2, 1), (-1, 0, 1)), ""),
    ],
)
def test_proposals_are_bounded(draft: Draft, kept: Draft, words: str) -> None:
    sampler = Sampler(6)
    sampler.begin(0, request(SamplingParams(), [1]), num_prompt=1, seed=3)
    got, fault = sampler.clean_draft(0, draft, 4)
    assert got == kept
    assert words in fault
    assert bool(words) == bool(fault)


@pytest.mark.parametrize("bad", [torch.zeros(5), torch.full((6,), torch.nan), torch.full((6,), -torch.inf)])
def test_sample_draft_refuses_what_is_no_law(bad: Tensor) -> None:
    sampler = Sampler(6)
    sampler.begin(0, request(SamplingParams(), [1]), num_prompt=1, seed=3)
    with pytest.raises(PluginFault):
        sampler.sample_draft(0, 1, 1, bad)
