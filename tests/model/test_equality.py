"""The decoder family gives transformers' logits on the same weights."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import ODD, DenseAttention, edit_json, hf_logits, random_ids, tiny_llama

from tokloom.plugins.models.decoder.family import DecoderFamily, DecoderModel
from tokloom.plugins.ops.torch.ops import TorchOps
from tokloom.plugins.quant.weights.dense.method import DenseWeights
from tokloom.sdk import ForwardBatch, ModelSource


def no_progress(done: int, total: int, what: str) -> None:
    pass


def open_model(path: Path, dtype: str = "float32") -> DecoderModel:
    return DecoderFamily().open(ModelSource(path=path, dtype=dtype))


def our_logits(model: DecoderModel, ids: list[int]) -> torch.Tensor:
    decoder = model.load(DenseWeights(), "cpu", no_progress)
    batch = ForwardBatch(torch.tensor(ids), torch.arange(len(ids)), torch.tensor([0, len(ids)]).int().numpy())
    with torch.inference_mode():
        hidden = decoder.forward(batch, DenseAttention.of(model.spec), TorchOps())
        return decoder.logits(hidden.last)


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "odd": {},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "llama3-rope": {"rope_parameters": LLAMA3},
    "linear-rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "one-kv-head": {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32},
    "no-grouping": {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 24},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shard", ["10GB", "100KB"])
def test_logits_equal_transformers(tmp_path: Path, variant: str, shard: str) -> None:
    reference = tiny_llama(tmp_path, seed=len(variant), shard=shard, **VARIANTS[variant])
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard == "100KB")
    rng = random.Random(variant)
    ids = [rng.randrange(ODD["vocab_size"]) for _ in range(100)]
    ours = our_logits(open_model(tmp_path), ids)
    expected = hf_logits(reference, ids)
    assert ours.dtype == torch.float32
    assert (ours - expected).abs().max() < 1e-3 * expected.abs().max()


def test_float64_is_closer_than_float32(tmp_path: Path) -> None:
    reference = tiny_llama(tmp_path).double()
    ids = random_ids(1, 40)
    ours = our_logits(open_model(tmp_path, "float64"), ids)
    assert ours.dtype == torch.float64
    # transformers rounds angles and norms to float32 whatever the dtype
    assert (ours - hf_logits(reference, ids)).abs().max() < 1e-3


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_errs_no_more_than_transformers(tmp_path: Path, dtype: str) -> None:
    reference = tiny_llama(tmp_path)
    ids = random_ids(2, 40)
    exact = hf_logits(reference, ids)
    theirs = (hf_logits(reference.to(getattr(torch, dtype)), ids).float() - exact).square().mean().sqrt()
    ours = (our_logits(open_model(tmp_path, dtype), ids) - exact).square().mean().sqrt()
    assert 0 < ours <= 1.3 * theirs


def test_features_are_the_residual_stream_after_a_layer(tmp_path: Path) -> None:
    reference = tiny_llama(tmp_path)
    ids = random_ids(3, 20)
    model = open_model(tmp_path)
    decoder = model.load(DenseWeights(), "cpu", no_progress)
    batch = ForwardBatch(torch.tensor(ids), torch.arange(20), torch.tensor([0, 20]).int().numpy(), features=(0, 1))
    with torch.inference_mode():
        hidden = decoder.forward(batch, DenseAttention.of(model.spec), TorchOps())
        states = reference(torch.tensor([ids]), output_hidden_states=True).hidden_states
    assert set(hidden.features) == {0, 1}
    for layer in (0, 1):
        wanted = states[layer + 1][0]
        assert (hidden.features[layer] - wanted).abs().max() < 1e-4 * wanted.abs().max()


def test_every_layer_attends_once_and_in_order(tmp_path: Path) -> None:
    tiny_llama(tmp_path)
    model = open_model(tmp_path)
    decoder = model.load(DenseWeights(), "cpu", no_progress)
    attention = DenseAttention.of(model.spec)
    batch = ForwardBatch(torch.tensor([1]), torch.tensor([0]), torch.tensor([0, 1]).int().numpy())
    decoder.forward(batch, attention, TorchOps())
    assert attention.layers == [0, 1, 2]


def test_the_spec_says_what_the_checkpoint_is(tmp_path: Path) -> None:
    tiny_llama(tmp_path, tie_word_embeddings=True)
    edit_json(tmp_path / "generation_config.json", eos_token_id=[2, 7])
    spec = open_model(tmp_path).spec
    assert (spec.vocab_size, spec.hidden_size, spec.max_tokens) == (131, 108, 256)
    assert spec.eos_ids == (2, 7)
    assert spec.bos_id == 1
    assert [layer.layer for layer in spec.layers] == [0, 1, 2]
    params = spec.layers[0].params
    assert (params.q_heads, params.kv_heads, params.head_k, params.head_v) == (9, 3, 80, 80)
    assert params.scale == pytest.approx(80**-0.5)


def test_the_digest_changes_with_weights_and_config(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "a", seed=0)
    tiny_llama(tmp_path / "b", seed=1)
    first, second = open_model(tmp_path / "a").spec.digest, open_model(tmp_path / "b").spec.digest
    assert first == open_model(tmp_path / "a").spec.digest
    assert first != second
    edit_json(tmp_path / "a" / "config.json", rms_norm_eps=1e-3)
    assert open_model(tmp_path / "a").spec.digest != first


def test_tied_weights_are_held_once(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "tied", tie_word_embeddings=True)
    tiny_llama(tmp_path / "own")
    tied = open_model(tmp_path / "tied").load(DenseWeights(), "cpu", no_progress)
    own = open_model(tmp_path / "own").load(DenseWeights(), "cpu", no_progress)
    assert own.nbytes - tied.nbytes == 131 * 108 * 4
    assert tied._head.dequantize().data_ptr() == tied._embedding.data_ptr()
