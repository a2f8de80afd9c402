"""Float32 and position codecs: the same tokens whatever else is different. Real plugins over a tiny real model."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import tiny_llama
from transformers import LlamaForCausalLM

from tokloom import Engine, GenerateRequest, SamplingParams

VOCAB = 131


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny_llama(path, seed=3)
    return path


@pytest.fixture(scope="module")
def cases(folder: Path) -> list[tuple[list[int], list[int]]]:
    """Prompts with shared prefixes, and transformers' greedy continuation of each."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rng = random.Random(9)
    shared = [rng.randrange(3, VOCAB) for _ in range(70)]
    prompts = [
        shared[: rng.randrange(1, 70)] + [rng.randrange(3, VOCAB) for _ in range(rng.randrange(1, 20))]
        for _ in range(10)
    ]
    prompts.append(list(prompts[0]))
    return [(prompt, greedy(model, prompt, 24)) for prompt in prompts]


def greedy(model: LlamaForCausalLM, prompt: Sequence[int], count: int) -> list[int]:
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


VARIANTS: dict[str, list[str]] = {
    "plain": [],
    **{f"pages of {page}": [f"engine.page_tokens={page}"] for page in (1, 8, 16, 32)},
    **{f"chunks of {rows}": [f"engine.max_batch_tokens={rows}"] for rows in (5, 16, 64)},
    "one at a time": ["engine.max_sequences=1"],
    "small pool": ["engine.kv_memory=650KiB", "engine.page_tokens=8", "engine.max_model_tokens=128"],
    "no prefix cache": ["kv.allocator.options.prefix_cache=false"],
    "drafts": ["speculation=ngram", "engine.max_draft_tokens=5"],
    "depth 1": ["engine.depth=1"],
    "a tier": [
        'kv.tiers=[{ plugin = "host", options = { capacity = "8MiB" } }]',
        "engine.kv_memory=650KiB",
        "engine.page_tokens=8",
        "engine.max_model_tokens=128",
    ],
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_tokens_are_transformers_tokens(folder: Path, cases: list[tuple[list[int], list[int]]], variant: str) -> None:
    sets = ["model.dtype=float32", "engine.kv_memory=8MiB", "engine.threads=1", *VARIANTS[variant]]
    sampling = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    requests = [GenerateRequest(token_ids=prompt, sampling=sampling) for prompt, _ in cases]
    totals: dict[str, int] = {}
    with Engine.from_profile("builtin:cpu", model=folder, sets=sets) as engine:
        for _ in range(2):  # the second round meets whatever the first left in caches
            results = engine.generate(requests)
            for result, (prompt, wanted) in zip(results, cases, strict=True):
                assert list(result.token_ids) == wanted, (variant, prompt)
                count(totals, result.usage)
        evictions = engine.core.state.allocator.stats().evictions
    if variant == "small pool":
        assert totals["preemptions"] > 0
    if variant == "a tier":
        assert evictions > 0
        assert totals["tier_tokens"] > 0
    if variant == "drafts":
        assert totals["drafted"] > 0
    if variant == "plain":
        assert totals["hit_tokens"] > 0
    if variant == "no prefix cache":
        assert totals["hit_tokens"] == 0


def count(totals: dict[str, int], usage: Any) -> None:
    for name in ("preemptions", "tier_tokens", "drafted", "hit_tokens"):
        totals[name] = totals.get(name, 0) + getattr(usage, name)


def test_sampled_tokens_do_not_depend_on_company(folder: Path) -> None:
    sets = ["model.dtype=float64", "engine.kv_memory=16MiB", "engine.threads=1"]
    requests = [
        GenerateRequest(token_ids=[5 + i, 9, 11], sampling=SamplingParams(max_tokens=20, seed=i, ignore_eos=True, n=2))
        for i in range(6)
    ]
    with Engine.from_profile("builtin:cpu", model=folder, sets=sets) as engine:
        together = engine.generate(requests)
        alone = [result for request in requests for result in engine.generate(request)]
    assert [result.token_ids for result in together] == [result.token_ids for result in alone]
    assert len({result.token_ids for result in together}) == 12


def test_int8_kv_keeps_its_tokens_through_chunks_hits_and_tiers(folder: Path) -> None:
    """int8 differs from float32, but never from itself."""
    sampling = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
    rng = random.Random(4)
    prompts = [[rng.randrange(3, VOCAB) for _ in range(rng.randrange(5, 60))] for _ in range(6)]
    requests = [GenerateRequest(token_ids=prompt, sampling=sampling) for prompt in prompts]
    answers = []
    for extra in ([], ["engine.max_batch_tokens=7"], ["engine.page_tokens=8"], ["engine.max_sequences=1"]):
        sets = ["model.dtype=float32", "kv.codec=int8", "engine.kv_memory=4MiB", "engine.threads=1", *extra]
        with Engine.from_profile("builtin:cpu", model=folder, sets=sets) as engine:
            for _ in range(2):
                answers.append([result.token_ids for result in engine.generate(requests)])
    assert all(answer == answers[0] for answer in answers)
