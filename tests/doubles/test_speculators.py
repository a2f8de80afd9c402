"""Speculators of the doubles are as right, wrong or malformed as they say."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from doubles_rig import build, context, poisoned

from tokloom.conformance.doubles import oracle
from tokloom.conformance.doubles.offers import Seeded
from tokloom.conformance.doubles.oracle import SHAPES
from tokloom.conformance.doubles.speculators import Garbage, Sampled
from tokloom.sdk import Draft, DraftPages, IngestBatch, Pages, Proposal, ProposeBatch, Request, TokenSegment


class View:
    """As much of a SequenceView as speculators look at."""

    def __init__(self, seq_id: int, tokens: list[int]) -> None:
        self.seq_id = seq_id
        self.tokens = tokens
        self.request = Request(request_id=str(seq_id), segments=(TokenSegment(tokens),))


def propose(plugin: Any, view: View, k: int, pages: dict[int, DraftPages] | None = None) -> Draft:
    last = len(view.tokens) - 1
    (draft,) = plugin.propose(ProposeBatch((Proposal(view.seq_id, k, view.tokens[-1], last),), pages or {}))
    return draft  # type: ignore[no-any-return]


def tokens_of(model: str, seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(SHAPES[model].vocab) for _ in range(count)]


def right(draft: Draft, truth: list[int]) -> int:
    """How deep the true continuation goes in a draft."""
    at, depth = -1, 0
    while depth < len(truth):
        nexts = [n for n in range(len(draft.tokens)) if (draft.parents[n], draft.tokens[n]) == (at, truth[depth])]
        if not nexts:
            break
        at, depth = nexts[0], depth + 1
    return depth


def valid(draft: Draft, k: int, vocab: int) -> bool:
    pairs = list(zip(draft.parents, draft.tokens, strict=False))
    return (
        len(draft.tokens) == len(draft.parents) <= k
        and all(-1 <= parent < node for node, parent in enumerate(draft.parents))
        and all(0 <= token < vocab for token in draft.tokens)
        and len(set(pairs)) == len(pairs)
    )


@pytest.mark.parametrize("model", SHAPES)
@pytest.mark.parametrize("mode", ["", "trees", "wrong"])
def test_drafts_of_the_oracle_are_valid_and_partly_true(model: str, mode: str) -> None:
    plugin, view = build("speculator", "oracle", model, mode=mode, seed=3), View(1, tokens_of(model, 4, 9))
    plugin.begin(view, -1)
    truth = oracle.greedy(view.tokens, 5, SHAPES[model].windows, SHAPES[model].vocab, SHAPES[model].heads)
    drafts = [propose(plugin, view, 5) for _ in range(60)]
    assert all(valid(draft, 5, SHAPES[model].vocab) for draft in drafts)
    depths = {right(draft, truth) for draft in drafts}
    assert depths == ({0} if mode == "wrong" else set(range(6)) if mode == "" else depths)
    assert mode != "trees" or (len(depths) > 2 and any(not draft.is_chain for draft in drafts))
    assert plugin.proposed == 60
    plugin.end(1)
    assert (plugin.begun, plugin.ended, plugin.views) == (1, 1, {})


def test_the_oracle_notes_ingested_rows_that_are_not_the_history() -> None:
    plugin = build("speculator", "oracle")
    plugin.begin(View(1, [4, 5, 6]), -1)

    def rows(ids: list[int], following: list[int], positions: list[int]) -> IngestBatch:
        pointers = np.array([0, len(ids)], dtype=np.int32)
        return IngestBatch((1,), pointers, np.array(ids), np.array(following), np.array(positions))

    plugin.ingest(rows([4, 5], [5, 6], [0, 1]))
    plugin.ingest(rows([6], [-1], [2]))
    assert (plugin.ingested, plugin.faults) == (3, [])
    for bad in (rows([5], [6], [0]), rows([4], [6], [0]), rows([6], [4], [2])):
        with pytest.raises(AssertionError):
            plugin.ingest(bad)
    assert len(plugin.faults) == 3


def test_beginning_twice_or_from_an_unknown_parent_is_noted() -> None:
    plugin = build("speculator", "oracle")
    plugin.begin(View(1, [1]), -1)
    plugin.begin(View(2, [1]), 1)
    with pytest.raises(AssertionError, match="twice"):
        plugin.begin(View(1, [1]), -1)
    with pytest.raises(AssertionError, match="unknown 9"):
        plugin.begin(View(3, [1]), 9)


@pytest.mark.parametrize("mode", Garbage.MODES)
def test_garbage_is_invalid_in_the_way_it_says(mode: str) -> None:
    plugin, views = build("speculator", "garbage", mode=mode), [View(i, [1, 2]) for i in range(2)]
    if mode == "begin":
        with pytest.raises(RuntimeError, match="begin"):
            plugin.begin(views[0], -1)
        return
    for view in views:
        plugin.begin(view, -1)
    if mode == "ingest":
        with pytest.raises(RuntimeError, match="ingest"):
            plugin.ingest(IngestBatch((), *(np.zeros(0),) * 4))  # type: ignore[arg-type]
        return
    batch = ProposeBatch(tuple(Proposal(view.seq_id, 4, 2, 1) for view in views))
    if mode == "raise":
        with pytest.raises(RuntimeError, match="propose"):
            plugin.propose(batch)
        return
    drafts = plugin.propose(batch)
    assert (len(drafts) != 2) == (mode == "count")
    assert mode == "count" or not any(isinstance(draft, Draft) and valid(draft, 4, 11) for draft in drafts)


def test_sampled_drafts_are_drawn_through_the_context_in_order() -> None:
    asked: list[tuple[int, int]] = []

    def draw(seq_id: int, depth: int, logits: torch.Tensor) -> int:
        asked.append((seq_id, depth))
        assert logits.shape == (11,)
        return depth % 3

    bound = context()
    bound.bind_sampling(lambda *_: 0.5, draw)
    plugin, view = Sampled(Seeded(), bound), View(5, [1, 2, 3])
    plugin.begin(view, -1)  # type: ignore[arg-type]  # as much as it looks at
    draft = propose(plugin, view, 3)
    assert asked == [(5, 1), (5, 2), (5, 3)]
    assert draft == Draft.chain([1, 2, 0], sampled=True)


class Drafting:
    """A `featured` speculator with one sequence whose rows were all ingested."""

    def __init__(self, model: str = "tagged") -> None:
        self.plugin, self.view = build("speculator", "featured", model), View(1, tokens_of(model, 6, 10))
        self.plugin.begin(self.view, -1)
        needs = self.plugin.needs(4)
        assert needs.layers[0].spec.key_lookahead == 1
        self.pool: Pages = poisoned(needs.layers[0].format, 5)
        self.table = np.array([[3, 0, 4]], dtype=np.int32)
        shape = SHAPES[model]
        self.seen = oracle.hidden(self.view.tokens, shape.windows[:1], shape.heads)

    def pages(self, slots: list[int]) -> dict[int, DraftPages]:
        return {1: DraftPages((self.pool,), np.array(slots, dtype=np.int64), self.table)}

    def batch(self, start: int, stop: int) -> IngestBatch:
        positions = np.arange(start, stop)
        following = [*self.view.tokens[start + 1 : stop + 1], -1][: stop - start]
        features = [[float(self.seen[p]), float(p)] for p in positions]
        return IngestBatch(
            (1,),
            np.array([0, stop - start], dtype=np.int32),
            np.array(self.view.tokens[start:stop]),
            np.array(following),
            positions,
            {0: torch.tensor(features, dtype=torch.float64)},
            self.pages([int(self.table[0, p // 4]) * 4 + p % 4 for p in positions.tolist()]),
        )

    def propose(self) -> Draft:
        return propose(self.plugin, self.view, 3, self.pages([]))


@pytest.mark.parametrize("model", ["tagged", "tagged-wide"])
def test_draft_kv_that_is_whole_passes_every_check(model: str) -> None:
    drafting = Drafting(model)
    drafting.plugin.ingest(drafting.batch(0, 6))
    drafting.plugin.ingest(drafting.batch(6, 10))
    drafting.propose()
    assert (drafting.plugin.checked, drafting.plugin.faults) == (9, [])


@pytest.mark.parametrize("what", ["a gap", "another next token", "exchanged pages", "features of others", "no table"])
def test_draft_kv_that_is_not_the_history_is_noted(what: str) -> None:
    drafting = Drafting()
    drafting.plugin.ingest(drafting.batch(0, 4))
    if what == "features of others":
        batch = drafting.batch(4, 10)
        with pytest.raises(AssertionError, match="features of row 0 are those of position"):
            drafting.plugin.ingest(evolve(batch, features={0: batch.features[0].flip(0)}))
        assert drafting.plugin.faults
        return
    drafting.plugin.ingest(drafting.batch(5 if what == "a gap" else 4, 10))
    if what == "another next token":
        drafting.view.tokens[8] = (drafting.view.tokens[8] + 1) % 11
    if what == "exchanged pages":
        drafting.table = drafting.table[:, [1, 0, 2]]
    if what == "no table":
        drafting.table = np.zeros((0, 3), dtype=np.int32)
    with pytest.raises(AssertionError, match="one per proposal" if what == "no table" else "draft KV at"):
        drafting.propose()
    assert drafting.plugin.faults
