"""DecoderConfig: what a decoder is made of, whatever file it was read from."""

from attrs import field, frozen

from tokloom.plugins.models.decoder.fields import Fields
from tokloom.plugins.models.decoder.rope import Rope
from tokloom.sdk import GenerationDefaults


@frozen(kw_only=True)
class Experts:
    """A mixture of experts in place of the MLP of some layers.

    Attributes:
        count, used: experts of a layer, and how many of them a row goes through.
        size: inner size of one.
        normed: weights of the used experts sum to 1; otherwise they are their shares among all.
        layers: which layers have experts.
        block: name of the block in a layer, in the checkpoint.
        gate, up, down: names of an expert's matrices.
    """

    count: int
    used: int
    size: int
    normed: bool
    layers: frozenset[int]
    block: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


@frozen(kw_only=True)
class DecoderConfig:
    """Sizes of a decoder and what its layers do. All counts are positive.

    Attributes:
        windows: per layer, visible keys including the row's own; None sees all.
        ropes: sets of rotary frequencies; `rope_of` says which each layer takes.
        scale: of q.k.
        attn_soft_cap, logit_soft_cap: of attention scores and of logits, None without.
        activation: `silu` or `gelu_tanh`.
        embedding_scale: what embeddings are multiplied by, in the compute dtype.
        norm_offset: added to the stored weights of every norm.
        qk_norm: heads of q and k are normalised before they are rotated.
        post_norms: what attention and the MLP give is normalised before it is added.
        tied: the head is the embedding.
        dtype: of the checkpoint.
        generation: what the checkpoint recommends for sampling.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_tokens: int
    eps: float
    windows: tuple[int | None, ...]
    ropes: tuple[Rope, ...]
    rope_of: tuple[int, ...]
    scale: float
    tied: bool
    dtype: str
    eos_ids: tuple[int, ...]
    bos_id: int
    attn_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    activation: str = "silu"
    embedding_scale: float = 1.0
    norm_offset: float = 0.0
    qk_norm: bool = False
    post_norms: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    experts: Experts | None = None
    generation: GenerationDefaults = field(factory=GenerationDefaults)


def check(config: DecoderConfig, fields: Fields) -> DecoderConfig:
    """Relations between sizes."""
    if config.heads % config.kv_heads:
        raise fields.fail("num_key_value_heads", f"is {config.kv_heads} and does not divide {config.heads} heads")
    if config.head_dim % 2:
        raise fields.fail("head_dim", f"is {config.head_dim}; rotary embedding needs an even size")
    if config.experts is not None and config.experts.used > config.experts.count:
        raise fields.fail("num_experts_per_tok", f"is {config.experts.used} of {config.experts.count} experts")
    for token in (*config.eos_ids, *((config.bos_id,) if config.bos_id >= 0 else ())):
        if token >= config.vocab:
            raise fields.fail("eos_token_id or bos_token_id", f"is {token}, outside the vocabulary of {config.vocab}")
    return config
