"""The `ngram` speculator against a brute-force search."""

import random
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from tokloom.plugins.spec.ngram import NgramOptions, tokloom_speculator
from tokloom.sdk import NO_DRAFT, Context, Draft, IngestBatch, Proposal, ProposeBatch, SequenceView, Speculator


class View:
    """A sequence as a speculator sees it."""

    def __init__(self, seq_id: int, tokens: Sequence[int]) -> None:
        self.seq_id = seq_id
        self.tokens = list(tokens)


def make(min_n: int = 2, max_n: int = 4) -> Speculator:
    (offer,) = tokloom_speculator()
    return offer.factory(NgramOptions(min_n=min_n, max_n=max_n), cast(Context, None))


def begin(speculator: Speculator, view: View, parent: int = -1) -> None:
    speculator.begin(cast(SequenceView, view), parent)


def propose(speculator: Speculator, view: View, k: int) -> Draft:
    (draft,) = speculator.propose(ProposeBatch((Proposal(view.seq_id, k, view.tokens[-1], len(view.tokens) - 1),)))
    return draft


def brute_force(tokens: Sequence[int], k: int, min_n: int, max_n: int) -> list[int]:
    """Longest suffix first, then the latest earlier place, by trying them all; the copy goes round at the end."""
    for n in range(max_n, min_n - 1, -1):
        if n >= len(tokens):
            continue
        tail = list(tokens[-n:])
        for start in range(len(tokens) - n - 1, -1, -1):
            if list(tokens[start : start + n]) == tail:
                out = list(tokens)
                shift = len(tokens) - n - start
                for _ in range(k):
                    out.append(out[len(out) - shift])
                return out[len(tokens) :]
    return []


@pytest.mark.parametrize("seed", range(40))
def test_drafts_are_those_of_a_brute_force_search(seed: int) -> None:
    chance = random.Random(seed)
    min_n = chance.randint(1, 4)
    max_n = chance.randint(min_n, 6)
    vocab = chance.choice([2, 3, 6]) if min_n < 3 else 2
    speculator = make(min_n, max_n)
    views = [View(i, [chance.randrange(vocab) for _ in range(chance.randint(1, 30))]) for i in range(3)]
    for view in views:
        begin(speculator, view)
    found = 0
    for _ in range(40):
        view = chance.choice(views)
        k = chance.randint(1, 6)
        draft = propose(speculator, view, k)
        expected = brute_force(view.tokens, k, min_n, max_n)
        assert draft == (Draft.chain(expected) if expected else NO_DRAFT), f"seed {seed}: {view.tokens}"
        found += bool(expected)
        view.tokens += [chance.randrange(vocab) for _ in range(chance.randint(1, 4))]
    assert found > 5


def test_the_longest_match_wins_over_a_later_shorter_one() -> None:
    view = View(1, [1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3])
    speculator = make()
    begin(speculator, view)
    assert propose(speculator, view, 2).tokens == (7, 9)


def test_the_latest_of_equal_matches_wins() -> None:
    view = View(1, [5, 6, 1, 5, 6, 2, 5, 6])
    speculator = make()
    begin(speculator, view)
    assert propose(speculator, view, 1).tokens == (2,)


def test_a_repeated_phrase_is_continued_for_as_long_as_asked() -> None:
    view = View(1, [4, 5, 6, 4, 5, 6, 4, 5])
    speculator = make()
    begin(speculator, view)
    assert propose(speculator, view, 7).tokens == (6, 4, 5, 6, 4, 5, 6)


def test_it_never_reads_past_the_position_it_was_asked_for() -> None:
    view = View(1, [1, 2, 3, 1, 2, 9, 9, 9])
    speculator = make()
    begin(speculator, view)
    (draft,) = speculator.propose(ProposeBatch((Proposal(1, 3, 2, 4),)))
    assert draft.tokens == (3, 1, 2)
    assert propose(speculator, view, 2).tokens == (9, 9)
    (draft,) = speculator.propose(ProposeBatch((Proposal(1, 3, 2, 4),)))
    assert draft.tokens == (3, 1, 2)
    (draft,) = speculator.propose(ProposeBatch((Proposal(1, 3, 2, 400),)))
    assert draft == NO_DRAFT


def test_gaps_of_ingested_rows_and_forks_do_not_matter() -> None:
    speculator = make()
    parent = View(1, [1, 2, 3, 1, 2])
    begin(speculator, parent)
    speculator.ingest(IngestBatch((1,), np.array([0, 1], np.int32), np.array([2]), np.array([-1]), np.array([4])))
    child = View(2, [*parent.tokens, 3, 1])
    begin(speculator, child, parent=1)
    assert propose(speculator, child, 2).tokens == (2, 3)
    assert propose(speculator, parent, 1).tokens == (3,)


def test_state_is_dropped_at_the_end_and_unknown_sequences_get_no_draft() -> None:
    speculator = make()
    view = View(1, [1, 2, 1, 2])
    begin(speculator, view)
    assert propose(speculator, view, 1) != NO_DRAFT
    speculator.end(1)
    assert propose(speculator, view, 1) == NO_DRAFT
    assert cast(Any, speculator)._histories == {}
    speculator.end(1)


def test_no_tokens_asked_for_gives_no_draft() -> None:
    speculator = make()
    view = View(1, [1, 2, 1, 2])
    begin(speculator, view)
    assert propose(speculator, view, 0) == NO_DRAFT


def test_indexing_costs_a_constant_number_of_entries_per_new_token() -> None:
    class Counting(list[int]):
        reads = 0

        def __getitem__(self, index: Any) -> Any:
            Counting.reads += len(range(*index.indices(len(self)))) if isinstance(index, slice) else 1
            return super().__getitem__(index)

    speculator = make()
    view = View(1, [])
    view.tokens = Counting(range(5000))
    begin(speculator, view)
    propose(speculator, view, 4)
    Counting.reads = 0
    for token in range(100):
        view.tokens.append(token)
        propose(speculator, view, 4)
    assert Counting.reads < 100 * 30


@pytest.mark.parametrize("wrong", [{"min_n": 0}, {"max_n": 0}, {"min_n": 5}, {"max_n": 33}, {"min_n": 2.0}])
def test_options_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match="_n"):
        NgramOptions(**wrong)
