"""GGUF files of every architecture give transformers' logits on the same weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_files import rounded, write_gguf
from tiny_models import DenseAttention, hf_logits, random_ids, tiny

from tokloom.plugins.models.decoder.family import DecoderFamily
from tokloom.plugins.ops.cpu.ops import CpuOps
from tokloom.plugins.quant.weights.dense.method import DenseWeights
from tokloom.sdk import CheckpointError, ForwardBatch, GenerationDefaults, ModelSource

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
#: name -> kind of `tiny`, what differs there, and what the file says besides the sizes
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, {"*.rope.dimension_count": 80, "*.vocab_size": 131}),
    "llama with biases": ("llama", {"attention_bias": True}, {}),
    "mistral": ("mistral", {}, {"*.attention.sliding_window": 19}),
    "mixtral": ("mixtral", {"sliding_window": None}, {}),
    "qwen2": ("qwen2", {"use_sliding_window": False}, {}),
    "qwen2 yarn": (
        "qwen2",
        {"use_sliding_window": False, "rope_parameters": YARN},
        {
            "*.rope.scaling.type": "yarn",
            "*.rope.scaling.factor": 4.0,
            "*.rope.scaling.original_context_length": 32,
        },
    ),
    "qwen3": ("qwen3", {}, {}),
    "qwen3moe": ("qwen3_moe", {"mlp_only_layers": []}, {}),
    "gemma2": (
        "gemma2",
        {},
        {
            "*.attention.sliding_window": 17,
            "*.attention.scale": 50**-0.5,
            "*.attn_logit_softcapping": 5.0,
            "*.final_logit_softcapping": 6.0,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {"query_pre_attn_scalar": 80},
        {
            "*.attention.sliding_window": 18,
            "*.attention.sliding_window_pattern": 2,
            "*.rope.scaling.type": "linear",
            "*.rope.scaling.factor": 8.0,
        },
    ),
    "gemma3, one value per layer": (
        "gemma3_text",
        {
            "query_pre_attn_scalar": 80,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 70000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
        {
            "*.attention.sliding_window": 18,
            "*.attention.sliding_window_pattern": [False, True, True],
            "*.rope.freq_base_swa": 500.0,
        },
    ),
}


def logits(path: Path, ids: list[int]) -> torch.Tensor:
    model = DecoderFamily().open(ModelSource(path=path, dtype="float32"))
    decoder = model.load(DenseWeights(), "cpu", lambda *_: None)
    batch = ForwardBatch(torch.tensor(ids), torch.arange(len(ids)), np.array([0, len(ids)], dtype=np.int32))
    with torch.inference_mode():
        return decoder.logits(decoder.forward(batch, DenseAttention.of(model.spec), CpuOps(1)).last)


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(tmp_path: Path, case: str) -> None:
    kind, changes, metadata = CASES[case]
    reference = tiny(tmp_path, kind, seed=len(case), **changes)
    write_gguf(tmp_path / "m.gguf", reference, **metadata)
    ids = random_ids(case, 70)
    expected = hf_logits(reference, ids)
    assert (logits(tmp_path / "m.gguf", ids) - expected).abs().max() < 1e-4 * expected.abs().max()


def test_experts_in_blocks(tmp_path: Path) -> None:
    """Every expert is cut out of a tensor of blocks at the right place."""
    sizes: dict[str, Any] = {"hidden_size": 96, "moe_intermediate_size": 64, "head_dim": 32, "mlp_only_layers": []}
    reference = tiny(tmp_path, "qwen3_moe", **sizes)
    write_gguf(tmp_path / "m.gguf", reference, "Q8_0")
    ids = random_ids(8, 50)
    expected = hf_logits(rounded(reference, "Q8_0"), ids)
    assert (logits(tmp_path / "m.gguf", ids) - expected).abs().max() < 1e-4 * expected.abs().max()


#: what a window pattern that the file does not spell gives: of 12 layers
@pytest.mark.parametrize(("kind", "every"), [("gemma3_text", 6), ("gemma2", 2)])
def test_patterns_that_the_architecture_fixes(tmp_path: Path, kind: str, every: int) -> None:
    sizes: dict[str, Any] = {"num_hidden_layers": 12, "hidden_size": 18, "intermediate_size": 8, "head_dim": 8}
    reference = tiny(tmp_path, kind, **sizes, layer_types=["full_attention"] * 12)
    said: dict[str, Any] = {"*.attention.sliding_window": 9}
    write_gguf(tmp_path / "m.gguf", reference, **said)
    spec = DecoderFamily().open(ModelSource(path=tmp_path / "m.gguf")).spec
    assert [layer.params.window for layer in spec.layers] == [9 if (n + 1) % every else None for n in range(12)]


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "part of a head": ("llama", {"*.rope.dimension_count": 40}, "llama.rope.dimension_count is 40"),
    "values of another size": ("llama", {"*.attention.value_length": 40}, "llama.attention.value_length is 40"),
    "longrope": ("llama", {"*.rope.scaling.type": "longrope"}, "'longrope'"),
    "not causal": ("llama", {"*.attention.causal": False}, "llama.attention.causal is false"),
    "experts by sigmoid": ("qwen3_moe", {"*.expert_gating_func": 2}, "expert_gating_func is 2"),
    "alibi": ("llama", {"*.attention.max_alibi_bias": 8.0}, "max_alibi_bias is 8.0"),
    "experts of a dense architecture": ("qwen3", {"*.expert_count": 4}, "qwen3.expert_count"),
    "a pattern that is none": (
        "gemma3_text",
        {"*.attention.sliding_window": 9, "*.attention.sliding_window_pattern": [True]},
        "sliding_window_pattern",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_known_is_refused_by_name(tmp_path: Path, case: str) -> None:
    kind, metadata, message = REFUSED[case]
    write_gguf(tmp_path / "m.gguf", tiny(tmp_path, kind), **metadata)
    with pytest.raises(CheckpointError, match=message) as caught:
        DecoderFamily().open(ModelSource(path=tmp_path / "m.gguf"))
    assert "m.gguf" in str(caught.value)


def test_sampling_that_a_file_recommends(tmp_path: Path) -> None:
    said: dict[str, Any] = {
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 30,
        "general.sampling.top_p": 0.75,
        "general.sampling.min_p": 0.25,
        "general.sampling.penalty_repeat": 1.5,
    }
    write_gguf(tmp_path / "m.gguf", tiny(tmp_path, "llama"), **said)
    assert DecoderFamily().open(ModelSource(path=tmp_path / "m.gguf")).spec.generation == GenerationDefaults(
        temperature=0.5, top_k=30, top_p=0.75, min_p=0.25, repetition_penalty=1.5
    )
