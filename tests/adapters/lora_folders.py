"""Adapters made by peft over a tiny model, with random weights, and what transformers says with them merged."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import peft
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def make_adapter(base: LlamaForCausalLM, folder: Path, seed: int, **config: Any) -> LlamaForCausalLM:
    """Save an adapter to `folder`; returns the model with it merged."""
    options: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": ALL, **config}
    adapted: Any = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(task_type="CAUSAL_LM", **options))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.data = 0.15 * torch.randn_like(parameter)
    adapted.save_pretrained(str(folder))
    merged: LlamaForCausalLM = adapted.merge_and_unload()
    merged.eval()
    return merged


def greedy(model: LlamaForCausalLM, prompt: Sequence[int], count: int) -> tuple[list[int], Tensor]:
    """Tokens, and the log-probabilities `[count, V]` that they were chosen from; end tokens are like others."""
    ids = list(prompt)
    for _ in range(count):
        with torch.inference_mode():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    with torch.inference_mode():
        rows = model(torch.tensor([ids[:-1]])).logits[0, len(prompt) - 1 :]
    return ids[len(prompt) :], rows.log_softmax(-1)


def pooled(model: LlamaForCausalLM, ids: Sequence[int], pooling: str, *, normalize: bool) -> Tensor:
    """The embedding by definition."""
    with torch.inference_mode():
        states = model.model(torch.tensor([list(ids)])).last_hidden_state[0].double()
    vector: Tensor = states[-1] if pooling == "last" else states.mean(0)
    if normalize:
        vector = vector / vector.norm()
    return vector


def profile(model: Path, adapters: Mapping[str, Path], **engine: Any) -> dict[str, Any]:
    """A float32 profile over the reference plugins."""
    settings = {"threads": 1, "kv_memory": "16MiB", "max_model_tokens": 128, "page_tokens": 8, **engine}
    return {
        "schema": 1,
        "extends": "builtin:cpu",
        "model": {"path": str(model), "dtype": "float32"},
        "engine": settings,
        "adapters": {name: str(path) for name, path in adapters.items()},
    }
