"""Tiny Llama-type checkpoints made by transformers, and an independent forward pass over them."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

ODD: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 108,
    "intermediate_size": 150,
    "num_hidden_layers": 3,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 80,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,
}


def tiny_llama(folder: Path, seed: int = 0, *, shard: str = "10GB", **changes: Any) -> LlamaForCausalLM:
    """Random weights from `seed`, saved as safetensors to `folder`."""
    config = LlamaConfig(**{**ODD, "tie_word_embeddings": False, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: LlamaForCausalLM = LlamaForCausalLM(config).eval()
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.data += 0.2 * torch.randn_like(parameter)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, max_shard_size=shard)
    return model


def random_ids(seed: object, count: int, vocab: int = 131) -> list[int]:
    """`count` token ids from `seed`."""
    rng = random.Random(str(seed))
    return [rng.randrange(vocab) for _ in range(count)]


def edit_json(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file; a value of ... removes the key."""
    content = json.loads(path.read_text())
    for key, value in changes.items():
        if value is ...:
            content.pop(key, None)
        else:
            content[key] = value
    path.write_text(json.dumps(content))


class DenseAttention:
    """AttentionCall over one whole sequence: causal softmax written from the definition."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.layers: list[int] = []

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.layers.append(layer)
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("ihd,jhd->hij", q, k) * self.scale
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        return torch.einsum("hij,jhd->ihd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)


def hf_logits(model: LlamaForCausalLM, ids: Sequence[int]) -> Tensor:
    """`[T, V]` of transformers' own forward pass."""
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([list(ids)])).logits[0]
    return logits
