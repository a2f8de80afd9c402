"""Windows, patterns and experts through the whole engine: transformers' greedy tokens whatever pages and chunks are."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tiny_models import tiny
from transformers import PreTrainedModel

from tokloom import Engine, GenerateRequest, SamplingParams

VOCAB = 131
COUNT = 16
KINDS = ("mistral", "gemma3_text", "gemma2", "qwen3_moe")
Cases = tuple[Path, list[tuple[list[int], list[int]]]]


def greedy(model: PreTrainedModel, prompt: Sequence[int]) -> list[int]:
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(COUNT):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.fixture(scope="module", params=KINDS)
def cases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cases:
    """Prompts around and far past the window (17 to 19 keys) with shared prefixes, and transformers' continuations."""
    folder = tmp_path_factory.mktemp(request.param)
    model = tiny(folder, request.param, seed=6)
    rng = random.Random(request.param)
    shared = [rng.randrange(3, VOCAB) for _ in range(90)]
    prompts = [shared[:length] + [rng.randrange(3, VOCAB) for _ in range(5)] for length in (10, 14, 40, 73, 90)]
    return folder, [(prompt, greedy(model, prompt)) for prompt in prompts]


VARIANTS: dict[str, list[str]] = {
    "plain": [],
    "pages of 1": ["engine.page_tokens=1"],
    "pages of 8, chunks of 7": ["engine.page_tokens=8", "engine.max_batch_tokens=7"],
    "pages of 32": ["engine.page_tokens=32"],
    "torch": ["attention=torch", "ops=torch"],
    "drafts": ["speculation=ngram", "engine.max_draft_tokens=4"],
    "no prefix cache": ["kv.allocator.options.prefix_cache=false"],
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_tokens_are_transformers_tokens(cases: Cases, variant: str) -> None:
    folder, wanted = cases
    sets = ["model.dtype=float32", "engine.kv_memory=16MiB", "engine.threads=1", *VARIANTS[variant]]
    sampling = SamplingParams(max_tokens=COUNT, temperature=0.0, ignore_eos=True)
    requests = [GenerateRequest(token_ids=prompt, sampling=sampling) for prompt, _ in wanted]
    hits = 0
    with Engine.from_profile("builtin:cpu", model=folder, sets=sets) as engine:
        for _ in range(2):  # the second round meets whatever the first left in caches
            results = engine.generate(requests)
            assert [list(result.token_ids) for result in results] == [tokens for _, tokens in wanted]
            hits += sum(result.usage.hit_tokens for result in results if result.usage is not None)
    assert (hits > 0) == (variant != "no prefix cache")
