"""Every architecture gives transformers' logits on the same weights; what is not known is refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import KINDS, DenseAttention, edit_json, hf_logits, random_ids, tiny
from transformers import PreTrainedModel

from tokloom.plugins.models.decoder.family import DecoderFamily, DecoderModel
from tokloom.plugins.ops.cpu.ops import CpuOps
from tokloom.plugins.ops.torch.ops import TorchOps
from tokloom.plugins.quant.weights.dense.method import DenseWeights
from tokloom.sdk import CheckpointError, ForwardBatch, ModelSource, OpSet

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 8.0,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (kind, {}) for kind in KINDS if kind != "llama"},
    "llama yarn": ("llama", {"rope_parameters": YARN}),
    "llama yarn mscale": (
        "llama",
        {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3, "truncate": False}},
    ),
    "mistral without window": ("mistral", {"sliding_window": None}),
    "qwen2 without window": ("qwen2", {"use_sliding_window": False}),
    "qwen2 with layer types": (
        "qwen2",
        {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "max_window_layers": 0},
    ),
    "qwen3 with biases": ("qwen3", {"attention_bias": True}),
    "shares not normed": ("qwen3_moe", {"norm_topk_prob": False, "mlp_only_layers": [], "decoder_sparse_step": 2}),
    "moe with window": ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 15}),
    "gemma3 with soft cap": ("gemma3_text", {"final_logit_softcapping": 4.0}),
    "gemma3 with layer types": (
        "gemma3_text",
        {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
    ),
}
SETS: dict[str, OpSet] = {"torch": TorchOps(), "cpu": CpuOps(1)}


def open_model(path: Path, dtype: str = "float32") -> DecoderModel:
    return DecoderFamily().open(ModelSource(path=path, dtype=dtype))


def our_logits(model: DecoderModel, ids: list[int], ops: OpSet) -> torch.Tensor:
    decoder = model.load(DenseWeights(), "cpu", lambda *_: None)
    batch = ForwardBatch(torch.tensor(ids), torch.arange(len(ids)), torch.tensor([0, len(ids)]).int().numpy())
    with torch.inference_mode():
        return decoder.logits(decoder.forward(batch, DenseAttention.of(model.spec), ops).last)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers(tmp_path: Path, variant: str) -> None:
    kind, changes = VARIANTS[variant]
    reference = tiny(tmp_path, kind, seed=len(variant), **changes)
    ids = random_ids(variant, 70)
    expected = hf_logits(reference, ids)
    for ops in SETS.values():
        assert (our_logits(open_model(tmp_path), ids, ops) - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("kind", ["gemma3_text", "qwen3_moe", "qwen3"])
@pytest.mark.parametrize("ops", SETS)
def test_half_precision_errs_no_more_than_transformers(tmp_path: Path, kind: str, ops: str) -> None:
    reference = tiny(tmp_path, kind)
    ids = random_ids(2, 40)
    exact = hf_logits(reference, ids)
    half: PreTrainedModel = reference.to(torch.bfloat16)  # type: ignore[arg-type]
    theirs = (hf_logits(half, ids).float() - exact).square().mean().sqrt()
    ours = (our_logits(open_model(tmp_path, "bfloat16"), ids, SETS[ops]) - exact).square().mean().sqrt()
    assert 0 < ours <= 1.3 * theirs


#: what layers see, of 8 layers
PATTERNS: dict[str, tuple[str, dict[str, Any], list[int | None]]] = {
    "llama": ("llama", {}, [None] * 8),
    "mistral": ("mistral", {}, [19] * 8),
    "mistral, null": ("mistral", {"sliding_window": None}, [None] * 8),
    "mistral, nothing said": ("mistral", {"sliding_window": ...}, [4096] * 8),
    "qwen2": ("qwen2", {"layer_types": ..., "max_window_layers": 5}, [None] * 5 + [21] * 3),
    "qwen2, off": ("qwen2", {"layer_types": ..., "use_sliding_window": False}, [None] * 8),
    "gemma2": ("gemma2", {"layer_types": ...}, [17, None] * 4),
    "gemma3": (
        "gemma3_text",
        {"layer_types": ..., "sliding_window_pattern": ..., "_sliding_window_pattern": ...},
        [18] * 5 + [None] + [18] * 2,
    ),
    "gemma3, pattern": (
        "gemma3_text",
        {"layer_types": ..., "sliding_window_pattern": 3},
        [18, 18, None] * 2 + [18] * 2,
    ),
    "gemma3, layer types": (
        "gemma3_text",
        {"layer_types": ["full_attention"] * 3 + ["sliding_attention"] * 5},
        [None] * 3 + [18] * 5,
    ),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_windows_per_layer(tmp_path: Path, pattern: str) -> None:
    kind, changes, expected = PATTERNS[pattern]
    tiny(tmp_path, kind, num_hidden_layers=8, hidden_size=18, intermediate_size=8, head_dim=8)
    edit_json(tmp_path / "config.json", **changes)
    assert [layer.params.window for layer in open_model(tmp_path).spec.layers] == expected


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a window in llama": ("llama", {"sliding_window": 64}, "sliding_window is 64"),
    "layer types of another length": ("gemma3_text", {"layer_types": ["full_attention"]}, "layer_types"),
    "another kind of layer": ("qwen3", {"layer_types": ["linear_attention"] * 3}, "layer_types is .*linear_attention"),
    "windows in some layers of mistral": (
        "mistral",
        {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
        "layer_types",
    ),
    "part of a head": ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    "part of a head, in the table": (
        "llama",
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5}},
        "partial_rotary_factor is 0.5",
    ),
    "dynamic rope": ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
    "something new in rope": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "wobble": 3}},
        "wobble is 3",
    ),
    "bidirectional": ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    "not causal": ("llama", {"is_causal": False}, "is_causal is false"),
    "mlp bias in qwen3": ("qwen3", {"mlp_bias": True}, "mlp_bias is True"),
    "attention bias in mistral": ("mistral", {"attention_bias": True}, "attention_bias is True"),
    "a multiplier": ("llama", {"residual_multiplier": 0.22}, "residual_multiplier is 0.22"),
    "more experts used than there are": ("mixtral", {"num_experts_per_tok": 9}, "9 of 5 experts"),
    "cap of no size": ("gemma2", {"attn_logit_softcapping": -1.0}, "attn_logit_softcapping is -1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_known_is_refused_by_name(tmp_path: Path, case: str) -> None:
    kind, changes, message = REFUSED[case]
    tiny(tmp_path, kind)
    open_model(tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_model(tmp_path)
    assert "config.json" in str(caught.value)


def test_keys_without_effect_are_taken(tmp_path: Path) -> None:
    tiny(tmp_path, "llama")
    edit_json(tmp_path / "config.json", rope_interleaved=False, is_llama_config=True, logit_scale=None, _fork="x")
    open_model(tmp_path)


def test_the_text_part_of_a_model_of_text_and_images(tmp_path: Path) -> None:
    """Old and new spelling of tensor names; vision weights are left alone."""
    import json

    reference = tiny(tmp_path, "gemma3_text")
    text = json.loads((tmp_path / "config.json").read_text())
    ids = random_ids(4, 50)
    expected = hf_logits(reference, ids)
    tensors = load_file(tmp_path / "model.safetensors")
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text, "eos_token_id": [3, 7]}
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    (tmp_path / "config.json").write_text(json.dumps(outer))
    for prefix in ("language_model.model.", "model.language_model."):
        renamed = {prefix + name.removeprefix("model."): tensor for name, tensor in tensors.items()}
        renamed["vision_tower.patch.weight"] = torch.zeros(3)
        save_file(renamed, tmp_path / "model.safetensors")
        model = open_model(tmp_path)
        assert model.spec.eos_ids == (3, 7)
        assert (our_logits(model, ids, TorchOps()) - expected).abs().max() < 1e-4 * expected.abs().max()
