"""DecoderConfig: what a Llama-type decoder is made of, read from config.json or GGUF metadata."""

import math
from collections.abc import Mapping
from typing import Final, TypeVar

from attrs import frozen

from tokloom.sdk import CheckpointError

T = TypeVar("T", int, float, bool, str)

#: values of `architectures` that this family runs
ARCHITECTURES: Final = ("LlamaForCausalLM",)
#: GGUF `general.architecture`
GGUF_ARCHITECTURES: Final = ("llama",)


@frozen(kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched.

    Attributes:
        kind: `default`, `linear`, or `llama3` (Llama 3.1, "The Llama 3 Herd of Models", appendix).
        factor: by how much.
        low, high, original: of `llama3`: frequency band and the context trained on.
    """

    kind: str = "default"
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192


@frozen(kw_only=True)
class DecoderConfig:
    """Sizes of a decoder. All counts are positive."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_tokens: int
    eps: float
    rope_theta: float
    rope: RopeScaling
    tied: bool
    attention_bias: bool
    mlp_bias: bool
    dtype: str
    eos_ids: tuple[int, ...]
    bos_id: int

    def inverse_frequencies(self) -> list[float]:
        """`[head_dim / 2]` rotary frequencies, scaled."""
        half = self.head_dim // 2
        plain = [self.rope_theta ** (-2.0 * i / self.head_dim) for i in range(half)]
        if self.rope.kind == "linear":
            return [f / self.rope.factor for f in plain]
        if self.rope.kind == "llama3":
            return [_llama3(f, self.rope) for f in plain]
        return plain


def _llama3(frequency: float, rope: RopeScaling) -> float:
    wavelength = 2 * math.pi / frequency
    if wavelength < rope.original / rope.high:
        return frequency
    if wavelength > rope.original / rope.low:
        return frequency / rope.factor
    smooth = (rope.original / wavelength - rope.low) / (rope.high - rope.low)
    return (1 - smooth) * frequency / rope.factor + smooth * frequency


class Fields:
    """Typed reads from a mapping of unknown content. Errors name file and key."""

    def __init__(self, source: str, values: Mapping[str, object]) -> None:
        self.source = source
        self.values = values

    def fail(self, key: str, problem: str, remedy: str = "") -> CheckpointError:
        return CheckpointError(f"{key} {problem}", subject=self.source, remedy=remedy)

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The value of `key`; a missing one without default, or one of another type, is an error."""
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise self.fail(key, "is missing", "The file must be a complete model configuration")
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.fail(key, f"is {value!r}, not {kind.__name__}")
        return value

    def size(self, key: str, default: int | None = None, most: int = 1 << 24) -> int:
        """A positive integer."""
        value = self.get(key, int, default)
        if not 0 < value <= most:
            raise self.fail(key, f"is {value}; it must be between 1 and {most}")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self.get(key, float, default)
        if not (value > 0 and math.isfinite(value)):
            raise self.fail(key, f"is {value}; it must be a positive number")
        return value

    def ids(self, key: str) -> tuple[int, ...]:
        """An id, a list of ids, or nothing."""
        value = self.values.get(key)
        if value is None:
            return ()
        listed = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in listed):
            raise self.fail(key, f"is {value!r}, not a token id or a list of them")
        return tuple(listed)


def check(config: DecoderConfig, fields: Fields) -> DecoderConfig:
    """Relations between sizes."""
    if config.heads % config.kv_heads:
        raise fields.fail("num_key_value_heads", f"is {config.kv_heads} and does not divide {config.heads} heads")
    if config.head_dim % 2:
        raise fields.fail("head_dim", f"is {config.head_dim}; rotary embedding needs an even size")
    for token in (*config.eos_ids, *((config.bos_id,) if config.bos_id >= 0 else ())):
        if token >= config.vocab:
            raise fields.fail("eos_token_id or bos_token_id", f"is {token}, outside the vocabulary of {config.vocab}")
    return config


def from_hf(fields: Fields, generation: Fields | None) -> DecoderConfig:
    """Read Hugging Face's config.json (and generation_config.json for its end-of-sequence ids)."""
    architectures = fields.values.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else architectures
    if named not in ARCHITECTURES:
        raise fields.fail(
            "architectures",
            f"is {architectures!r}, which this family does not run",
            f"Supported: {', '.join(ARCHITECTURES)}",
        )
    activation = fields.get("hidden_act", str, "silu")
    if activation != "silu":
        raise fields.fail("hidden_act", f"is {activation!r}; only silu is supported")
    if fields.values.get("quantization_config"):
        raise fields.fail(
            "quantization_config", "asks for a quantised checkpoint, which no weight method reads", "Use a plain one"
        )
    heads = fields.size("num_attention_heads")
    hidden = fields.size("hidden_size")
    rope, theta = _hf_rope(fields)
    dtype = fields.values.get("dtype") or fields.values.get("torch_dtype") or "float32"
    eos = (generation.ids("eos_token_id") if generation else ()) or fields.ids("eos_token_id")
    bos = fields.ids("bos_token_id")
    vocab = fields.size("vocab_size")
    config = DecoderConfig(
        layers=fields.size("num_hidden_layers", most=4096),
        hidden=hidden,
        intermediate=fields.size("intermediate_size"),
        heads=heads,
        kv_heads=fields.size("num_key_value_heads", heads),
        head_dim=fields.size("head_dim", max(1, hidden // heads)),
        vocab=vocab,
        max_tokens=fields.size("max_position_embeddings", 2048, most=1 << 30),
        eps=fields.positive("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope=rope,
        tied=fields.get("tie_word_embeddings", bool, False),
        attention_bias=fields.get("attention_bias", bool, False),
        mlp_bias=fields.get("mlp_bias", bool, False),
        dtype=str(dtype).removeprefix("torch."),
        eos_ids=tuple(token for token in eos if token < vocab),
        bos_id=bos[0] if bos else -1,
    )
    return check(config, fields)


def _hf_rope(fields: Fields) -> tuple[RopeScaling, float]:
    """Both spellings: `rope_scaling` beside `rope_theta`, and `rope_parameters` with everything."""
    raw = fields.values.get("rope_parameters") or fields.values.get("rope_scaling") or {}
    if not isinstance(raw, dict):
        raise fields.fail("rope_scaling", f"is {raw!r}, not a table")
    inner = Fields(f"{fields.source}, rope_scaling", raw)
    theta = inner.positive("rope_theta", fields.positive("rope_theta", 10000.0))
    kind = str(raw.get("rope_type") or raw.get("type") or "default")
    if kind == "default":
        return RopeScaling(), theta
    if kind == "linear":
        return RopeScaling(kind=kind, factor=inner.positive("factor")), theta
    if kind == "llama3":
        return RopeScaling(
            kind=kind,
            factor=inner.positive("factor"),
            low=inner.positive("low_freq_factor"),
            high=inner.positive("high_freq_factor"),
            original=inner.size("original_max_position_embeddings", most=1 << 30),
        ), theta
    raise inner.fail("rope_type", f"is {kind!r}", "Supported: default, linear, llama3")


def from_gguf(fields: Fields, tensors: Mapping[str, tuple[int, ...]]) -> DecoderConfig:
    """Read GGUF metadata. `tensors` are names and shapes (torch order), for what metadata leaves open."""
    architecture = fields.get("general.architecture", str)
    if architecture not in GGUF_ARCHITECTURES:
        raise fields.fail(
            "general.architecture",
            f"is {architecture!r}, which this family does not run",
            f"Supported: {', '.join(GGUF_ARCHITECTURES)}",
        )

    def key(name: str) -> str:
        return f"{architecture}.{name}"

    scaling = fields.get(key("rope.scaling.type"), str, "none")
    if scaling not in ("none", "linear"):
        raise fields.fail(key("rope.scaling.type"), f"is {scaling!r}", "Supported: none, linear")
    rope = RopeScaling()
    if scaling == "linear":
        rope = RopeScaling(kind="linear", factor=fields.positive(key("rope.scaling.factor"), 1.0))
    if key("expert_count") in fields.values and fields.get(key("expert_count"), int):
        raise fields.fail(key("expert_count"), "asks for a mixture of experts, which this family does not run")
    heads = fields.size(key("attention.head_count"))
    hidden = fields.size(key("embedding_length"))
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding) != 2:
        raise CheckpointError("tensor token_embd.weight is missing", subject=fields.source, remedy="Get a whole file")
    eos = [*fields.ids("tokenizer.ggml.eos_token_id"), *fields.ids("tokenizer.ggml.eot_token_id")]
    bos = fields.ids("tokenizer.ggml.bos_token_id")
    config = DecoderConfig(
        layers=fields.size(key("block_count"), most=4096),
        hidden=hidden,
        intermediate=fields.size(key("feed_forward_length")),
        heads=heads,
        kv_heads=fields.size(key("attention.head_count_kv"), heads),
        head_dim=fields.size(key("attention.key_length"), max(1, hidden // heads)),
        vocab=embedding[0],
        max_tokens=fields.size(key("context_length"), 2048, most=1 << 30),
        eps=fields.positive(key("attention.layer_norm_rms_epsilon"), 1e-6),
        rope_theta=fields.positive(key("rope.freq_base"), 10000.0),
        rope=rope,
        tied="output.weight" not in tensors,
        attention_bias="blk.0.attn_q.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
        dtype="bfloat16",
        eos_ids=tuple(dict.fromkeys(eos)),
        bos_id=bos[0] if bos else -1,
    )
    return check(config, fields)
