"""The content-tagged models say what plain Python says, and any mix-up of keys changes what they say."""

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from doubles_rig import context
from torch import Tensor

from tokloom.conformance.doubles import oracle
from tokloom.conformance.doubles.oracle import SHAPES
from tokloom.conformance.doubles.tagged import TaggedFamily, TaggedModel
from tokloom.sdk import AttentionCall, ForwardBatch, ModelSource, NoOptions

Visit = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]


def dense(model: TaggedModel, lengths: Sequence[int], change: Visit | None = None) -> AttentionCall:
    """Attention over whole sequences without pages; `change(layer, k, v)` may damage what is stored."""

    def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        params = model.spec.layers[layer].params
        if change is not None:
            k, v = change(layer, k.clone(), v.clone())
        outs, first = [], 0
        for length in lengths:
            own = slice(first, first + length)
            i = torch.arange(length)
            seen = i[:, None] >= i[None, :]
            if params.window is not None:
                seen &= i[:, None] - i[None, :] < params.window
            fold = params.q_heads // params.kv_heads
            scores = torch.einsum("ihd,jhd->hij", q[own], k[own].repeat_interleave(fold, 1)) * params.scale
            weights = torch.softmax(scores.masked_fill(~seen, -torch.inf), 2)
            outs.append(torch.einsum("hij,jhd->ihd", weights, v[own].repeat_interleave(fold, 1)))
            first += length
        return torch.cat(outs)

    return attention


def forward(
    model: TaggedModel, prompts: Sequence[Sequence[int]], change: Visit | None = None
) -> tuple[Tensor, dict[int, tuple[Tensor, Tensor]]]:
    """Logits `[T, V]` and what each layer stored."""
    stored: dict[int, tuple[Tensor, Tensor]] = {}
    lengths = [len(prompt) for prompt in prompts]
    attention = dense(model, lengths, change)

    def recording(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        stored[layer] = (k, v)
        return attention(layer, q, k, v)

    batch = ForwardBatch(
        token_ids=torch.tensor([token for prompt in prompts for token in prompt]),
        positions=torch.cat([torch.arange(length) for length in lengths]),
        q_indptr=np.cumsum([0, *lengths]).astype(np.int32),
    )
    hidden = model.forward(batch, recording, None)  # type: ignore[arg-type]
    return model.logits(hidden.last), stored


def model_of(name: str) -> TaggedModel:
    return TaggedFamily(NoOptions(), context()).open(ModelSource(name=name))


def prompt_of(name: str, seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(SHAPES[name].vocab) for _ in range(length)]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_the_model_computes_what_the_oracle_computes(name: str, seed: int) -> None:
    model, shape = model_of(name), SHAPES[name]
    prompts = [prompt_of(name, seed, 40), prompt_of(name, seed + 10, 1), prompt_of(name, seed + 20, 23)]
    logits, stored = forward(model, prompts)
    first = 0
    for prompt in prompts:
        rows = slice(first, first + len(prompt))
        seen = oracle.hidden(prompt, shape.windows, shape.heads)
        wanted = [[oracle.logit(value, token) for token in range(shape.vocab)] for value in seen]
        torch.testing.assert_close(logits[rows], torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-12)
        for layer in range(len(shape.windows)):
            k, v = stored[layer]
            assert v[rows, 0, 0].tolist() == oracle.expected_tags(prompt, layer, name)
            assert k[rows, 0, 0].tolist() == [position + 1 for position in range(len(prompt))]
            assert v[rows, 0, 1].tolist() == prompt
        first += len(prompt)


@pytest.mark.parametrize("name", SHAPES)
def test_greedy_decoding_equals_the_oracle_up_to_the_longest_context(name: str) -> None:
    model, shape = model_of(name), SHAPES[name]
    prompt = prompt_of(name, 5, 500)
    tokens = list(prompt)
    for _ in range(12):
        logits, _ = forward(model, [tokens])
        tokens.append(int(logits[-1].argmax()))
    assert tokens[500:] == oracle.greedy(prompt, 12, shape.windows, shape.vocab, shape.heads)


def test_expected_tokens_end_with_the_first_end_token() -> None:
    for seed in range(20):
        prompt = prompt_of("tagged-eos", seed, 6)
        said = oracle.expected_tokens(prompt, 60, "tagged-eos")
        assert said == oracle.expected_tokens(prompt, 60, "tagged")[: len(said)]
        assert 3 not in said[:-1]
        assert len(said) == 60 or said[-1] == 3


def test_tags_are_sums_over_the_window_written_out() -> None:
    """Three tokens through two layers with a window of two, step by step."""
    tags = [oracle.mix((token * 7_919 + position * 104_729 + 1) % oracle.P) for position, token in enumerate([4, 0, 4])]
    seen = [tags[0], tags[0] + tags[1], tags[1] + tags[2]]
    upper = [oracle.mix((value % oracle.P + position) % oracle.P) for position, value in enumerate(seen)]
    assert oracle.tags([4, 0, 4], (2, None)) == [tags, upper]
    assert oracle.hidden([4, 0, 4], (2, None)) == [sum(upper[: i + 1]) % oracle.P for i in range(3)]


DAMAGE: dict[str, Visit] = {
    "two positions exchanged across layers": lambda layer, k, v: (
        (k, v.index_copy(0, torch.tensor([3, 4]), v[[4, 3]])) if layer else (k, v)
    ),
    "one key of another prefix": lambda layer, k, v: (k, v.index_fill(0, torch.tensor([7]), 12_345.0)),
    "the first page of another sequence": lambda layer, k, v: (k, torch.cat([v[4:8], v[4:]])),
    "one tag off by one": lambda layer, k, v: (k, v + (torch.arange(len(v)) == 9)[:, None, None]),
}


@pytest.mark.parametrize("name", ["tagged", "tagged-wide"])
@pytest.mark.parametrize("what", [what for what in DAMAGE if "exchanged" not in what])
def test_damage_to_what_is_stored_changes_every_later_row(name: str, what: str) -> None:
    model = model_of(name)
    prompt = prompt_of(name, 8, 20)
    good, _ = forward(model, [prompt])
    bad, _ = forward(model, [prompt], DAMAGE[what])
    changed = (good != bad).any(1)
    assert changed[10:].all()


def test_exchanged_positions_are_seen_by_the_rows_between_them() -> None:
    """A sum does not notice an exchange that a row sees whole; a row that sees one of the two does, and all after it
    through the next layer."""
    model = TaggedModel("three", oracle.Shape((None, None, None)))
    prompt = prompt_of("tagged", 8, 20)
    good, _ = forward(model, [prompt])
    bad, _ = forward(model, [prompt], DAMAGE["two positions exchanged across layers"])
    assert (good != bad).any(1)[3:].all()


@pytest.mark.parametrize("name", SHAPES)
def test_logits_of_a_row_are_all_different(name: str) -> None:
    logits, _ = forward(model_of(name), [prompt_of(name, 1, 60)])
    assert all(len(set(row)) == SHAPES[name].vocab for row in logits.tolist())
    assert float(logits.min()) >= -4
    assert float(logits.max()) < 4


def test_features_are_what_the_layer_saw_and_the_position() -> None:
    model, prompt = model_of("tagged-window"), prompt_of("tagged", 2, 12)
    batch = ForwardBatch(torch.tensor(prompt), torch.arange(12), np.array([0, 12], dtype=np.int32), features=(0, 2))
    hidden = model.forward(batch, dense(model, [12]), None)  # type: ignore[arg-type]
    assert set(hidden.features) == {0, 2}
    assert hidden.features[0][:, 0].tolist() == oracle.hidden(prompt, model.windows[:1])
    assert hidden.features[2][:, 0].tolist() == oracle.hidden(prompt, model.windows[:3])
    assert hidden.features[2][:, 1].tolist() == list(range(12))
