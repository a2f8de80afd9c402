"""GGUF files written with the gguf package, from a tiny Llama checkpoint or the real one, and the reverse."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaForCausalLM, PreTrainedModel

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def interleave(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Half-split rotary rows to the interleaved order of GGUF's llama architecture."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


#: model type of transformers -> GGUF architecture
ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
}
MORE = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate": "ffn_gate_inp"}
GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_name(name: str, arch: str = "llama") -> str:
    base, _, suffix = name.rpartition(".")
    if base in TOP:
        return f"{TOP[base]}.{suffix}"
    _, _, number, rest = base.split(".", 3)
    names = {**NAMES, **MORE, **(GEMMA if arch.startswith("gemma") else {})}
    return f"blk.{number}.{names[rest]}.{suffix}"


def stored(model: PreTrainedModel, arch: str) -> dict[str, NDArray[Any]]:
    """The tensors of a checkpoint as GGUF has them, float32."""
    config: Any = model.config
    arrays = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.float().numpy()
        at = ".".join(name.split(".")[2:3])
        if name.endswith("experts.gate_up_proj"):
            gate, up = np.split(array, 2, axis=1)
            arrays[f"blk.{at}.ffn_gate_exps.weight"], arrays[f"blk.{at}.ffn_up_exps.weight"] = gate, up
            continue
        if name.endswith("experts.down_proj"):
            arrays[f"blk.{at}.ffn_down_exps.weight"] = array
            continue
        if arch == "llama" and ".q_proj." in name:
            array = interleave(array, config.num_attention_heads)
        if arch == "llama" and ".k_proj." in name:
            array = interleave(array, config.num_key_value_heads)
        arrays[gguf_name(name, arch)] = array + 1 if arch.startswith("gemma") and "norm" in name else array
    return arrays


def write_gguf(path: Path, model: PreTrainedModel, kind: str = "F32", **metadata: Any) -> None:
    """The checkpoint as GGUF, matrices stored as `kind`. A `*` in a key of `metadata` stands for the architecture."""
    config: Any = model.config
    arch = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    experts = {"mixtral": "intermediate_size", "qwen3_moe": "moe_intermediate_size"}.get(config.model_type)
    if experts:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(getattr(config, experts))
    for key, value in metadata.items():
        add_value(writer, key.replace("*", arch), value)
    type_ = gguf.GGMLQuantizationType[kind]
    for name, array in stored(model, arch).items():
        if array.ndim >= 2 and kind != "F32":
            writer.add_tensor(name, gguf.quants.quantize(array, type_), raw_dtype=type_)
        else:
            writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """A metadata value by its Python type."""
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def rounded(model: PreTrainedModel, kind: str) -> PreTrainedModel:
    """The same model with every matrix rounded as `kind` stores it, through the gguf package alone."""
    type_ = gguf.GGMLQuantizationType[kind]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2 and kind != "F32":
                packed = gguf.quants.quantize(parameter.float().numpy(), type_)
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(packed, type_)))
    return model


def llama_from_gguf(path: Path) -> LlamaForCausalLM:
    """A transformers model from a GGUF of the llama architecture, through the gguf package's own reader (float32)."""
    from transformers import LlamaConfig

    reader = gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("tokenizer")}
    heads, kv_heads = fields["llama.attention.head_count"], fields["llama.attention.head_count_kv"]
    reverse = {theirs: ours for ours, theirs in NAMES.items()}
    top = {theirs: ours for ours, theirs in TOP.items()}
    state = {}
    for tensor in reader.tensors:
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        array = array.reshape([int(extent) for extent in reversed(tensor.shape)])
        base, _, suffix = tensor.name.rpartition(".")
        if base in top:
            name = top[base]
        else:
            _, number, rest = base.split(".")
            count = {"attn_q": heads, "attn_k": kv_heads}.get(rest)
            if count:
                halves = array.reshape(count, array.shape[0] // count // 2, 2, *array.shape[1:])
                array = halves.swapaxes(1, 2).reshape(array.shape)
            name = f"model.layers.{number}.{reverse[rest]}"
        state[f"{name}.{suffix}"] = torch.from_numpy(np.array(array, dtype=np.float32))
    config = LlamaConfig(  # type: ignore[call-arg]  # any key of a config is taken
        vocab_size=state["model.embed_tokens.weight"].shape[0],
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=fields["llama.context_length"],
        rms_norm_eps=fields["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        tie_word_embeddings="lm_head.weight" not in state,
        attn_implementation="sdpa",
    )
    model: LlamaForCausalLM = LlamaForCausalLM(config).float().eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model
