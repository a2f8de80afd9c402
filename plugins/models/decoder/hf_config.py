"""From Hugging Face's config.json to a DecoderConfig. What is asked for and not known is refused by name."""

from collections.abc import Callable, Mapping
from typing import Final

from attrs import evolve, frozen

from tokloom.plugins.models.decoder.config import DecoderConfig, Experts, check
from tokloom.plugins.models.decoder.fields import Fields
from tokloom.plugins.models.decoder.generation import hf_generation
from tokloom.plugins.models.decoder.rope import Rope, hf_rope

_ACTIVATIONS: Final = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_LAYER_TYPES: Final = ("full_attention", "sliding_attention")
_QWEN: Final[Mapping[str, object]] = {"max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28}
#: what config.json may leave out of a Gemma
_GEMMA: Final[Mapping[str, object]] = {
    "hidden_activation": "gelu_pytorch_tanh",
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "bos_token_id": 2,
    "eos_token_id": 1,
}
#: keys that change nothing that is computed here: bookkeeping, training, generation, what the tokenizer's files say
_HARMLESS_KEYS: Final = """
    architectures model_type transformers_version transformers.js_config torch_dtype dtype auto_map name_or_path
    use_cache initializer_range pretraining_tp attention_dropout hidden_dropout embd_pdrop resid_pdrop
    classifier_dropout output_router_logits router_aux_loss_coef router_jitter_noise gradient_checkpointing
    max_batch_size output_attentions output_hidden_states return_dict return_dict_in_generate output_scores
    torchscript use_bfloat16 pruned_heads tie_encoder_decoder is_decoder chunk_size_feed_forward id2label label2id
    num_labels problem_type finetuning_task task_specific_params tokenizer_class prefix bos_token eos_token pad_token
    unk_token pad_token_id sep_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id
    suppress_tokens begin_suppress_tokens min_length max_length do_sample early_stopping num_beams num_beam_groups
    diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences exponential_decay_length_penalty
    remove_invalid_values max_new_tokens is_llama_config is_gemma_config unsloth_fixed unsloth_version
    cache_implementation
"""
_HARMLESS: Final = frozenset(_HARMLESS_KEYS.split())


@frozen
class _Architecture:
    """How configurations of one architecture are read."""

    complete: Callable[[Fields, DecoderConfig], DecoderConfig]
    defaults: Mapping[str, object] = {}
    theta: float = 10000.0


def from_hf(fields: Fields, generation: Fields | None) -> DecoderConfig:
    """Read config.json, and generation_config.json for end-of-sequence ids and sampling."""
    architectures = fields.raw("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else architectures
    if not isinstance(named, str) or named not in _ARCHITECTURES:
        raise fields.fail(
            "architectures",
            f"is {architectures!r}, which this family does not run",
            f"Supported: {', '.join(_ARCHITECTURES)}",
        )
    if fields.raw("quantization_config"):
        raise fields.fail(
            "quantization_config", "asks for a quantised checkpoint, which no weight method reads", "Use a plain one"
        )
    architecture = _ARCHITECTURES[named]
    if fields.raw("text_config") is not None:
        fields = _text_part(fields, architecture.defaults)
    else:
        fields = Fields(fields.source, fields.values, architecture.defaults)
    plain = _plain(fields, generation, architecture.theta)
    config = architecture.complete(fields, plain)
    if not fields.get("is_causal", bool, True):
        raise fields.fail("is_causal", "is false; only causal models are run")
    fields.refuse_unread(_HARMLESS)
    return check(config, fields)


def _text_part(fields: Fields, defaults: Mapping[str, object]) -> Fields:
    """The language model of a model of text and images."""
    outer = {
        key: fields.raw(key) for key in ("bos_token_id", "eos_token_id", "dtype", "torch_dtype", "tie_word_embeddings")
    }
    inner = fields.table("text_config")
    known = {key: value for key, value in outer.items() if value is not None}
    return Fields(f"{fields.source}, text_config", {**known, **inner, **_ids(known)}, defaults)


def _ids(known: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in known.items() if key.endswith("_id")}


def _plain(fields: Fields, generation: Fields | None, theta: float) -> DecoderConfig:
    """What all architectures have."""
    activation = fields.get("hidden_activation", str, fields.get("hidden_act", str, "silu"))
    if activation not in _ACTIVATIONS:
        raise fields.fail("hidden_act", f"is {activation!r}", f"Supported: {', '.join(_ACTIVATIONS)}")
    layers = fields.size("num_hidden_layers", most=4096)
    heads = fields.size("num_attention_heads")
    hidden = fields.size("hidden_size")
    head_dim = fields.size("head_dim", max(1, hidden // heads))
    longest = fields.size("max_position_embeddings", 2048, most=1 << 30)
    dtype = fields.raw("dtype") or fields.raw("torch_dtype") or "float32"
    own = fields.ids("eos_token_id")
    eos = (generation.ids("eos_token_id") if generation else ()) or own
    bos = fields.ids("bos_token_id")
    vocab = fields.size("vocab_size")
    return DecoderConfig(
        layers=layers,
        hidden=hidden,
        intermediate=fields.size("intermediate_size"),
        heads=heads,
        kv_heads=fields.size("num_key_value_heads", heads),
        head_dim=head_dim,
        vocab=vocab,
        max_tokens=longest,
        eps=fields.positive("rms_norm_eps", 1e-6),
        windows=(None,) * layers,
        ropes=_ropes(fields, theta, longest),
        rope_of=(0,) * layers,
        scale=head_dim**-0.5,
        activation=_ACTIVATIONS[activation],
        tied=fields.get("tie_word_embeddings", bool, False),
        dtype=str(dtype).removeprefix("torch."),
        eos_ids=tuple(dict.fromkeys(token for token in eos if token < vocab)),
        bos_id=bos[0] if bos else -1,
        generation=hf_generation(generation),
    )


def _ropes(fields: Fields, theta: float, longest: int) -> tuple[Rope, ...]:
    """All spellings: `rope_scaling` beside `rope_theta`, `rope_parameters` with everything, and one of those per type
    of layer: then first that of layers that see all.
    """
    theta = fields.positive("rope_theta", theta)
    new, old = fields.table("rope_parameters"), fields.table("rope_scaling")
    parameters = new or old
    name = f"{fields.source}, {'rope_parameters' if new else 'rope_scaling'}"
    if fields.get("partial_rotary_factor", float, 1.0) != 1.0:
        raise fields.fail("partial_rotary_factor", f"is {fields.values['partial_rotary_factor']}", "Supported: 1")
    local = fields.optional("rope_local_base_freq")
    if parameters.keys() & set(_LAYER_TYPES):
        kinds = Fields(name, parameters)
        ropes = tuple(
            hf_rope(Fields(f"{name}, {kind}", kinds.table(kind)), base, longest)
            for kind, base in zip(_LAYER_TYPES, (theta, local or 10000.0), strict=True)
        )
        kinds.refuse_unread()
        return ropes
    rope = hf_rope(Fields(name, parameters), theta, longest)
    return (rope,) if local is None else (rope, Rope(theta=local))


def _windows(fields: Fields, config: DecoderConfig, sliding: Callable[[int], bool]) -> DecoderConfig:
    """Windows of `sliding_window` in layers that `layer_types` names, or else those where `sliding` holds."""
    listed = fields.raw("layer_types")
    if listed is None:
        kinds = [_LAYER_TYPES[sliding(layer)] for layer in range(config.layers)]
    elif isinstance(listed, list) and len(listed) == config.layers and all(kind in _LAYER_TYPES for kind in listed):
        kinds = listed
    else:
        wanted = f"{config.layers} of {', '.join(_LAYER_TYPES)}"
        raise fields.fail("layer_types", f"is {listed!r:.200}, not {wanted}")
    window = None
    if "sliding_attention" in kinds:
        window = fields.size("sliding_window", most=1 << 30)
    else:
        fields.raw("sliding_window")
    return evolve(config, windows=tuple(window if kind == "sliding_attention" else None for kind in kinds))


def _biases(fields: Fields, config: DecoderConfig) -> DecoderConfig:
    bias = fields.get("attention_bias", bool, False)
    return evolve(config, qkv_bias=bias, out_bias=bias)


def _llama(fields: Fields, config: DecoderConfig) -> DecoderConfig:
    config = _one_kind(fields, _biases(fields, config), "full_attention")
    return evolve(config, mlp_bias=fields.get("mlp_bias", bool, False))


def _one_kind(fields: Fields, config: DecoderConfig, kind: str) -> DecoderConfig:
    """`layer_types` may only repeat what the architecture does in every layer."""
    listed = fields.raw("layer_types")
    if listed is not None and listed != [kind] * config.layers:
        raise fields.fail("layer_types", f"is {listed!r:.200}; this architecture has {kind} in every layer")
    return config


def _mistral(fields: Fields, config: DecoderConfig) -> DecoderConfig:
    if fields.raw("sliding_window") is None:
        return _one_kind(fields, config, "full_attention")
    config = _one_kind(fields, config, "sliding_attention")
    return _windows(fields, config, lambda layer: True)


def _qwen_windows(fields: Fields, config: DecoderConfig) -> DecoderConfig:
    first = fields.get("max_window_layers", int, 0)
    if fields.get("use_sliding_window", bool, False):
        return _windows(fields, config, lambda layer: layer >= first)
    fields.raw("sliding_window")
    return _one_kind(fields, config, "full_attention")


def _qwen2(fields: Fields, config: DecoderConfig) -> DecoderConfig:
    return evolve(_qwen_windows(fields, config), qkv_bias=True)


def _qwen3(fields: Fields, config: DecoderConfig) -> DecoderConfig:
    return evolve(_qwen_windows(fields, _biases(fields, config)), qk_norm=True)


def _qwen3_moe(fields: Fields, config: DecoderConfig) -> DecoderConfig:
    config = evolve(_biases(fields, config), qk_norm=True)
    if fields.get("use_sliding_window", bool, False):
        config = _windows(fields, config, lambda layer: True)
    else:
        fields.raw("sliding_window")
        config = _one_kind(fields, config, "full_attention")
    fields.raw("max_window_layers")
    step = fields.size("decoder_sparse_step", 1)
    dense = fields.ids("mlp_only_layers")
    experts = Experts(
        count=fields.size("num_experts", fields.size("num_local_experts", 128), most=1 << 16),
        used=fields.size("num_experts_per_tok", 8, most=1 << 16),
        size=fields.size("moe_intermediate_size", 768),
        normed=fields.get("norm_topk_prob", bool, False),
        layers=frozenset(n for n in range(config.layers) if n not in dense and (n + 1) % step == 0),
    )
    return evolve(config, experts=experts)


def _mixtral(fields: Fields, config: DecoderConfig) -> DecoderConfig:
    experts = Experts(
        count=fields.size("num_local_experts", 8, most=1 << 16),
        used=fields.size("num_experts_per_tok", 2, most=1 << 16),
        size=config.intermediate,
        normed=True,
        layers=frozenset(range(config.layers)),
        block="block_sparse_moe",
        gate="w1",
        up="w3",
        down="w2",
    )
    return evolve(_mistral(fields, config), experts=experts)


def _gemma(fields: Fields, config: DecoderConfig, pattern: int) -> DecoderConfig:
    if fields.get("use_bidirectional_attention", bool, False):
        raise fields.fail("use_bidirectional_attention", "is true; only causal models are run")
    config = _windows(fields, _biases(fields, config), lambda layer: bool((layer + 1) % pattern))
    return evolve(
        config,
        scale=fields.positive("query_pre_attn_scalar") ** -0.5,
        attn_soft_cap=fields.optional("attn_logit_softcapping"),
        logit_soft_cap=fields.optional("final_logit_softcapping"),
        embedding_scale=config.hidden**0.5,
        norm_offset=1.0,
        post_norms=True,
    )


def _gemma2(fields: Fields, config: DecoderConfig) -> DecoderConfig:
    return _gemma(fields, config, 2)


def _gemma3(fields: Fields, config: DecoderConfig) -> DecoderConfig:
    config = _gemma(fields, config, fields.size("sliding_window_pattern", 6))
    ropes = config.ropes if len(config.ropes) == 2 else (*config.ropes, Rope(theta=10000.0))
    return evolve(config, qk_norm=True, ropes=ropes, rope_of=tuple(int(w is not None) for w in config.windows))


_GEMMA3: Final = _Architecture(
    _gemma3,
    {
        **_GEMMA,
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "max_position_embeddings": 131_072,
    },
    1_000_000.0,
)
_ARCHITECTURES: Final[Mapping[str, _Architecture]] = {
    "LlamaForCausalLM": _Architecture(_llama),
    "MistralForCausalLM": _Architecture(_mistral, {"sliding_window": 4096, "max_position_embeddings": 131_072}),
    "MixtralForCausalLM": _Architecture(
        _mixtral, {"max_position_embeddings": 131_072, "rms_norm_eps": 1e-5}, 1_000_000.0
    ),
    "Qwen2ForCausalLM": _Architecture(_qwen2, _QWEN),
    "Qwen3ForCausalLM": _Architecture(_qwen3, {**_QWEN, "head_dim": 128}),
    "Qwen3MoeForCausalLM": _Architecture(_qwen3_moe, _QWEN),
    "Gemma2ForCausalLM": _Architecture(
        _gemma2,
        {
            **_GEMMA,
            "max_position_embeddings": 8192,
            "final_logit_softcapping": 30.0,
            "attn_logit_softcapping": 50.0,
        },
    ),
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,
}
