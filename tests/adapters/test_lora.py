"""Requests with LoRA adapters say what transformers says with the adapter merged into the weights."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from lora_folders import ALL, greedy, make_adapter, profile
from tiny_models import random_ids, tiny_llama
from transformers import LlamaForCausalLM

from tokloom import Engine, GenerateRequest, Result, SamplingParams

VARIANTS: dict[str, dict[str, Any]] = {
    "all": {},
    "attention only": {"target_modules": ["q_proj", "v_proj"]},
    "one of a fused pair": {"target_modules": ["up_proj", "k_proj"], "r": 1, "lora_alpha": 3},
    "rank-stabilised": {"use_rslora": True, "r": 8, "lora_alpha": 4},
    "ranks and alphas by pattern": {
        "rank_pattern": {"q_proj": 2, r"layers\.1\.mlp\.up_proj": 7},
        "alpha_pattern": {"v_proj": 1.5, "layers.2.self_attn.q_proj": 5},
    },
    "some layers": {"layers_to_transform": [0, 2]},
    "one layer of a pattern": {"layers_to_transform": 1, "layers_pattern": "layers"},
    "all linear": {"target_modules": "all-linear"},
    "an expression": {"target_modules": r".*\.[02]\.(self_attn\.o_proj|mlp\.down_proj)"},
    "all but some": {"exclude_modules": ["o_proj", "model.layers.1.self_attn.q_proj"]},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    folder = tmp_path_factory.mktemp("base")
    return folder, tiny_llama(folder, seed=3, initializer_range=0.1)


def ask(adapter: str, prompt: list[int], count: int = 12, **fields: Any) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True, logprobs=5)
    return GenerateRequest(token_ids=prompt, adapter=adapter, sampling=sampling, **fields)


def assert_says(result: Result, model: LlamaForCausalLM) -> None:
    tokens, rows = greedy(model, result.prompt_token_ids, len(result.token_ids))
    assert list(result.token_ids) == tokens
    for entry, row in zip(result.logprobs, rows, strict=True):
        assert entry.logprob == pytest.approx(float(row[entry.token]), abs=1e-4)
        for token, logprob in entry.top:
            assert logprob == pytest.approx(float(row[token]), abs=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_adapter_is_the_merged_weights(base: tuple[Path, LlamaForCausalLM], tmp_path: Path, variant: str) -> None:
    folder, model = base
    merged = make_adapter(model, tmp_path / "a", len(variant), **VARIANTS[variant])
    prompt = random_ids(variant, 21)
    plain, _ = greedy(model, prompt, 12)
    with Engine.from_profile(profile(folder, {"a": tmp_path / "a"}, max_batch_tokens=9)) as engine:
        with_adapter, without = engine.generate([ask("a", prompt), ask("", prompt)])
    assert_says(with_adapter, merged)
    assert_says(without, model)
    with torch.inference_mode():
        assert (merged(torch.tensor([prompt])).logits - model(torch.tensor([prompt])).logits).abs().max() > 0.01
    assert list(without.token_ids) == plain


@pytest.fixture(scope="module")
def three(
    base: tuple[Path, LlamaForCausalLM], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Path], dict[str, LlamaForCausalLM]]:
    """Adapters of different ranks and targets; merged models by name, the base under the empty name."""
    folder, models = tmp_path_factory.mktemp("three"), {"": base[1]}
    options: dict[str, dict[str, Any]] = {
        "x": {},
        "y": {"r": 9, "target_modules": ["v_proj", "down_proj"]},
        "z": {"target_modules": ALL[:3]},
    }
    for seed, (name, chosen) in enumerate(options.items()):
        models[name] = make_adapter(base[1], folder / name, seed, **chosen)
    return {name: folder / name for name in "xyz"}, models


#: what the engine does beside plain decoding
ENGINES: dict[str, dict[str, Any]] = {
    "one batch": {},
    "small chunks": {"max_batch_tokens": 7, "max_sequences": 5},
    "preemption": {"kv_memory": "600KiB", "max_model_tokens": 56, "max_sequences": 8},
    "a step in flight": {"depth": 1},
}


@pytest.mark.parametrize("case", ENGINES)
def test_three_adapters_and_the_base_in_one_batch_say_what_each_says_alone(
    base: tuple[Path, LlamaForCausalLM],
    three: tuple[dict[str, Path], dict[str, LlamaForCausalLM]],
    case: str,
) -> None:
    paths, models = three
    prompts = [random_ids(f"{case}{i}", 20 + i) for i in range(3)]
    requests = [ask(name, prompt) for prompt in prompts for name in ("", "x", "y", "z", "x")]
    random.Random(case).shuffle(requests)
    with Engine.from_profile(profile(base[0], paths, **ENGINES[case])) as engine:
        assert engine.adapters == ("x", "y", "z")
        results = engine.generate(requests)
        assert (engine.core.state.preempted > 0) == (case == "preemption")
    for request, result in zip(requests, results, strict=True):
        assert_says(result, models[request.adapter])


def test_drafts_are_verified_under_the_adapter_of_their_sequence(
    base: tuple[Path, LlamaForCausalLM], three: tuple[dict[str, Path], dict[str, LlamaForCausalLM]]
) -> None:
    paths, models = three
    prompt = [5, 6, 7, 8] * 8
    sections = {**profile(base[0], paths), "speculation": "ngram"}
    with Engine.from_profile(sections) as engine:
        results = engine.generate([ask(name, prompt, 24) for name in models])
    assert sum(result.usage.drafted for result in results if result.usage) > 0
    for name, result in zip(models, results, strict=True):
        assert_says(result, models[name])


def test_parallel_samples_keep_their_adapter(
    base: tuple[Path, LlamaForCausalLM], three: tuple[dict[str, Path], dict[str, LlamaForCausalLM]]
) -> None:
    paths, models = three
    sampling = SamplingParams(max_tokens=8, temperature=0.0, n=3, ignore_eos=True, logprobs=1)
    request = GenerateRequest(token_ids=random_ids("n", 19), adapter="y", sampling=sampling)
    with Engine.from_profile(profile(base[0], paths)) as engine:
        results = engine.generate([request, ask("", random_ids("n", 19))])
    for result in results[:3]:
        assert_says(result, models["y"])


def test_prefixes_are_shared_by_content_never_by_name(
    base: tuple[Path, LlamaForCausalLM], three: tuple[dict[str, Path], dict[str, LlamaForCausalLM]]
) -> None:
    paths, _ = three
    prompt = random_ids("prefix", 40)
    hits: dict[str, int] = {}
    with Engine.from_profile(profile(base[0], {**paths, "x-again": paths["x"]})) as engine:
        for turn, name in enumerate(["", "x", "y", "", "x-again", "y"]):
            (result,) = engine.generate(ask(name, prompt, 2))
            assert result.usage is not None
            hits[f"{turn} {name}"] = result.usage.hit_tokens
    assert list(hits.values()) == [0, 0, 0, 32, 32, 32], hits


def test_the_change_is_added_to_quantised_weights(
    base: tuple[Path, LlamaForCausalLM], three: tuple[dict[str, Path], dict[str, LlamaForCausalLM]]
) -> None:
    """The oracle merges the same adapter into the matrices that int8 stands for."""
    from tokloom.plugins.quant.weights.int8.method import _encode

    paths, models = three
    folder, model = base
    prompt = random_ids("int8", 23)
    rounded = {}
    for name, matrix in model.state_dict().items():
        if matrix.dim() == 2 and "embed" not in name:
            codes, scale = _encode(matrix, torch.float32)
            rounded[name] = codes.float() * scale.unsqueeze(1) - matrix
    sections = {**profile(folder, paths), "weights": "int8"}
    with Engine.from_profile(sections) as engine:
        results = engine.generate([ask(name, prompt) for name in models])
    for name, result in zip(models, results, strict=True):
        merged = LlamaForCausalLM(model.config).eval()
        merged.load_state_dict({key: value + rounded.get(key, 0) for key, value in models[name].state_dict().items()})
        assert_says(result, merged)
