"""From GGUF metadata to a DecoderConfig."""

from collections.abc import Mapping
from typing import Final

from attrs import evolve

from tokloom.plugins.models.decoder.config import DecoderConfig, Experts, check
from tokloom.plugins.models.decoder.fields import Fields
from tokloom.plugins.models.decoder.generation import gguf_generation
from tokloom.plugins.models.decoder.rope import Rope, gguf_rope
from tokloom.sdk import CheckpointError

#: values of `general.architecture`
ARCHITECTURES: Final = ("llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3")
#: layers from one layer that sees all to the next; the format leaves it to the architecture
_PATTERNS: Final = {"gemma2": 2, "gemma3": 6}
#: layers of the 27B models, which alone scale q.k by hidden / heads
_LARGEST: Final = {"gemma2": 46, "gemma3": 62}
#: keys under `ARCH.` that change nothing that is computed here
_HARMLESS: Final = ("vocab_size", "rope.scaling.finetuned", "tensor_data_layout")

Shapes = Mapping[str, tuple[int, ...]]


def from_gguf(fields: Fields, tensors: Shapes) -> DecoderConfig:
    """Read GGUF metadata. `tensors` are names and shapes (torch order), for what metadata leaves open."""
    arch = fields.get("general.architecture", str)
    if arch not in ARCHITECTURES:
        raise fields.fail(
            "general.architecture",
            f"is {arch!r}, which this family does not run",
            f"Supported: {', '.join(ARCHITECTURES)}",
        )
    config = _plain(fields, arch, tensors)
    config = _windows(fields, arch, config)
    if arch in ("gemma2", "gemma3"):
        config = _gemma(fields, arch, config)
    if fields.get(f"{arch}.expert_count", int, 0):
        config = _experts(fields, arch, config)
    elif arch == "qwen3moe":
        raise fields.fail(f"{arch}.expert_count", "is missing", "Get the file again")
    config = evolve(config, qk_norm=arch in ("qwen3", "qwen3moe", "gemma3"))
    if not fields.get(f"{arch}.attention.causal", bool, True):
        raise fields.fail(f"{arch}.attention.causal", "is false; only causal models are run")
    _refuse_unread(fields, arch)
    return check(config, fields)


def _refuse_unread(fields: Fields, arch: str) -> None:
    """Only what the file says of its architecture: the other keys are of people, the tokenizer and the file itself."""
    others = {key for key in fields.values if not key.startswith(f"{arch}.")}
    fields.refuse_unread(frozenset(others | {f"{arch}.{key}" for key in _HARMLESS}))


def _plain(fields: Fields, arch: str, tensors: Shapes) -> DecoderConfig:
    def key(name: str) -> str:
        return f"{arch}.{name}"

    layers = fields.size(key("block_count"), most=4096)
    heads = fields.size(key("attention.head_count"))
    hidden = fields.size(key("embedding_length"))
    head_dim = fields.size(key("attention.key_length"), max(1, hidden // heads))
    for name in ("attention.value_length", "rope.dimension_count"):
        if fields.get(key(name), int, head_dim) != head_dim:
            raise fields.fail(key(name), f"is {fields.values[key(name)]}; only that of keys, {head_dim}, is supported")
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding) != 2:
        raise CheckpointError("tensor token_embd.weight is missing", subject=fields.source, remedy="Get a whole file")
    longest = fields.size(key("context_length"), 2048, most=1 << 30)
    eos = [*fields.ids("tokenizer.ggml.eos_token_id"), *fields.ids("tokenizer.ggml.eot_token_id")]
    bos = fields.ids("tokenizer.ggml.bos_token_id")
    return DecoderConfig(
        layers=layers,
        hidden=hidden,
        intermediate=fields.size(key("feed_forward_length"), 1 if arch == "qwen3moe" else None),
        heads=heads,
        kv_heads=fields.size(key("attention.head_count_kv"), heads),
        head_dim=head_dim,
        vocab=embedding[0],
        max_tokens=longest,
        eps=fields.positive(key("attention.layer_norm_rms_epsilon"), 1e-6),
        windows=(None,) * layers,
        ropes=(gguf_rope(fields, arch, 1e6 if arch == "gemma3" else 1e4, longest),),
        rope_of=(0,) * layers,
        scale=fields.optional(key("attention.scale")) or head_dim**-0.5,
        tied="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        out_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
        dtype="bfloat16",
        eos_ids=tuple(dict.fromkeys(eos)),
        bos_id=bos[0] if bos else -1,
        attn_soft_cap=fields.optional(key("attn_logit_softcapping")),
        logit_soft_cap=fields.optional(key("final_logit_softcapping")),
        generation=gguf_generation(fields),
    )


def _windows(fields: Fields, arch: str, config: DecoderConfig) -> DecoderConfig:
    """`sliding_window` in all layers, or by a pattern: its length, or true where a layer has the window."""
    size = fields.get(f"{arch}.attention.sliding_window", int, 0)
    named = f"{arch}.attention.sliding_window_pattern"
    pattern = fields.raw(named)
    if not size:
        return config
    if isinstance(pattern, list) and len(pattern) == config.layers:
        sliding = [bool(has) for has in pattern]
    elif pattern is None or (isinstance(pattern, int) and pattern > 0):
        every = pattern if isinstance(pattern, int) else _PATTERNS.get(arch, config.layers + 1)
        sliding = [bool((layer + 1) % every) for layer in range(config.layers)]
    else:
        raise fields.fail(named, f"is {pattern!r:.80}, neither a length nor one value per layer")
    window = fields.size(f"{arch}.attention.sliding_window", most=1 << 30)
    return evolve(config, windows=tuple(window if slides else None for slides in sliding))


def _gemma(fields: Fields, arch: str, config: DecoderConfig) -> DecoderConfig:
    """Norm weights in these files are whole already."""
    if config.layers == _LARGEST[arch]:
        config = evolve(config, scale=(config.hidden / config.heads) ** -0.5)
    config = evolve(config, activation="gelu_tanh", embedding_scale=config.hidden**0.5, post_norms=True)
    if arch == "gemma2":
        return config
    local = Rope(theta=fields.positive(f"{arch}.rope.freq_base_swa", 10000.0))
    return evolve(config, ropes=(*config.ropes, local), rope_of=tuple(int(w is not None) for w in config.windows))


def _experts(fields: Fields, arch: str, config: DecoderConfig) -> DecoderConfig:
    if arch not in ("llama", "qwen3moe"):
        raise fields.fail(f"{arch}.expert_count", "asks for a mixture of experts, which this architecture has not")
    if fields.get(f"{arch}.expert_weights_scale", float, 1.0) not in (0.0, 1.0):
        raise fields.fail(f"{arch}.expert_weights_scale", f"is {fields.values[f'{arch}.expert_weights_scale']}")
    if fields.get(f"{arch}.expert_gating_func", int, 1) not in (0, 1):
        raise fields.fail(
            f"{arch}.expert_gating_func", f"is {fields.values[f'{arch}.expert_gating_func']}, not softmax"
        )
    experts = Experts(
        count=fields.size(f"{arch}.expert_count", most=1 << 16),
        used=fields.size(f"{arch}.expert_used_count", most=1 << 16),
        size=fields.size(f"{arch}.expert_feed_forward_length", config.intermediate),
        normed=fields.get(f"{arch}.expert_weights_norm", bool, True),
        layers=frozenset(range(config.layers)),
    )
    return evolve(config, experts=experts)
