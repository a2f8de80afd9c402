"""With drafts, whatever the scheme, the joint law of the emitted tokens is the target's. By exact enumeration."""

import random

import pytest
from sampling_enumeration import laws_by_prefix, total_variation
from sampling_schemes import EXACT
from wrong_rules import WRONG

CHAINS = {1: (-1,), 2: (-1, 0), 3: (-1, 0, 1)}
TREES = [(-1, -1), (-1, -1, -1), (-1, -1, 0), (-1, 0, 0), (-1, -1, 0, 1), (-1, -1, 0, 0, 1, 1)]
SEEDS = range(110)


def case(seed: int, tree_ok: bool = True) -> tuple[int, tuple[int, ...]]:
    """A vocabulary and a shape small enough to enumerate."""
    chance = random.Random(seed)
    if not tree_ok or chance.random() < 0.5:
        k = chance.choice([1, 2, 2, 3])
        return chance.randint(2, {1: 6, 2: 4, 3: 3}[k]), CHAINS[k]
    parents = chance.choice(TREES[:-1] if seed % 20 else TREES)
    return chance.randint(3, 5) if len(parents) <= 3 else 3, parents


def depth(parents: tuple[int, ...]) -> int:
    deep: list[int] = []
    for parent in parents:
        deep.append(1 if parent < 0 else deep[parent] + 1)
    return max(deep)


def distance(scheme: str, seed: int) -> float:
    vocab, parents = case(seed, scheme not in ("stop_before_sampling", "unlikely_sample_dropped"))
    if scheme in ("match_sampled", "no_replacement", "mixed", "match_deterministic", "one_hot"):
        vocab = max(vocab, 3)
    rule = {**EXACT, **WRONG}[scheme]
    p, q = laws_by_prefix(seed, vocab), laws_by_prefix(seed + 10_000, vocab)
    return total_variation(lambda script: rule(script, p, q, parents), p, vocab, depth(parents) + 1)


@pytest.mark.parametrize("scheme", EXACT)
def test_the_joint_law_with_drafts_is_the_target_law(scheme: str) -> None:
    for seed in SEEDS:
        tv = distance(scheme, seed)
        assert tv < 1e-12, f"{scheme}, seed {seed}: total variation {tv}"


@pytest.mark.parametrize("rule", WRONG)
def test_a_wrong_rule_fails_the_same_enumeration(rule: str) -> None:
    assert max(distance(rule, seed) for seed in SEEDS) > 0.01
