"""Tiny checkpoints made by transformers, and an independent forward pass over them."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM, PreTrainedModel

from tokloom.sdk import AttnParams, ModelSpec

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


#: model type of transformers -> what differs from ODD, such that windows, patterns and experts matter in few tokens
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": False},
    "mistral": {"sliding_window": 19},
    "qwen2": {"use_sliding_window": True, "sliding_window": 21, "max_window_layers": 1},
    "qwen3": {"tie_word_embeddings": True},
    "qwen3_moe": {
        "num_experts": 7,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 44,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    "mixtral": {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 23},
    "gemma2": {
        "query_pre_attn_scalar": 50,
        "sliding_window": 17,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 6.0,
    },
    "gemma3_text": {
        "query_pre_attn_scalar": 60,
        "sliding_window": 18,
        "sliding_window_pattern": 2,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 70000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
}


def tiny(folder: Path, kind: str, seed: int = 0, *, shard: str = "10GB", **changes: Any) -> PreTrainedModel:
    """Random weights from `seed`, saved as safetensors to `folder`."""
    config = AutoConfig.for_model(kind, **{**ODD, **KINDS[kind], **changes})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, attn_implementation="eager", experts_implementation="eager"
        ).eval()
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.data += 0.2 * torch.randn_like(parameter)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, max_shard_size=shard)
    return model


def tiny_llama(folder: Path, seed: int = 0, *, shard: str = "10GB", **changes: Any) -> LlamaForCausalLM:
    """A `tiny` of the kind llama."""
    model = tiny(folder, "llama", seed, shard=shard, **changes)
    assert isinstance(model, LlamaForCausalLM)
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
    """AttentionCall over one whole sequence: softmax written from the definition of each layer's parameters."""

    def __init__(self, params: Sequence[AttnParams]) -> None:
        self.params = params
        self.layers: list[int] = []

    @classmethod
    def of(cls, spec: ModelSpec) -> "DenseAttention":
        return cls([layer.params for layer in spec.layers])

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.layers.append(layer)
        params = self.params[layer]
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("ihd,jhd->hij", q, k) * params.scale
        if params.soft_cap is not None:
            scores = params.soft_cap * torch.tanh(scores / params.soft_cap)
        behind = torch.arange(len(q)).unsqueeze(1) - torch.arange(len(q))
        hidden = (behind < 0) | (behind >= (params.window or len(q)))
        return torch.einsum("hij,jhd->ihd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)


def hf_logits(model: PreTrainedModel, ids: Sequence[int]) -> Tensor:
    """`[T, V]` of transformers' own forward pass."""
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([list(ids)])).logits[0]
    return logits
