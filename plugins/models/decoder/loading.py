"""From a checkpoint to a Decoder: every tensor's name and shape is checked before the first is read."""

import weakref
from collections.abc import Mapping

import torch
from torch import Tensor

from tokloom.plugins.models.decoder.adapters import Adapters
from tokloom.plugins.models.decoder.config import DecoderConfig
from tokloom.plugins.models.decoder.gguf_source import GGUFCheckpoint
from tokloom.plugins.models.decoder.mlp import Gated, Mixture
from tokloom.plugins.models.decoder.network import Decoder, DecoderLayer
from tokloom.plugins.models.decoder.sources import HFCheckpoint
from tokloom.sdk import CheckpointError, Linear, LinearDesc, Progress, WeightMethod

#: tensors that some converters leave behind and nobody needs
_IGNORED_SUFFIXES = (".rotary_emb.inv_freq", ".attn_rot_embd.weight")
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head"


def linear_descs(config: DecoderConfig, dtype: str) -> list[LinearDesc]:
    """The linear layers of a decoder, in execution order, the head last."""
    descs = []
    for number in range(config.layers):
        descs += [*_attention(config, dtype, number), *_mlps(config, dtype, number)]
    head = EMBEDDING.removesuffix(".weight") if config.tied else HEAD
    descs.append(_desc("head", "head", "", {head: config.vocab}, config.hidden, False, dtype))
    return descs


def _desc(name: str, role: str, prefix: str, parts: Mapping[str, int], size: int, bias: bool, dtype: str) -> LinearDesc:
    return LinearDesc(
        name=name,
        role=role,  # type: ignore[arg-type]
        parts=tuple(prefix + part for part in parts),
        out_parts=tuple(parts.values()),
        in_features=size,
        bias=bias,
        dtype=dtype,
    )


def _attention(config: DecoderConfig, dtype: str, number: int) -> list[LinearDesc]:
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    prefix, qkv = f"model.layers.{number}.self_attn.", {"q_proj": q, "k_proj": kv, "v_proj": kv}
    return [
        _desc(f"layers.{number}.qkv", "attn_in", prefix, qkv, config.hidden, config.qkv_bias, dtype),
        _desc(f"layers.{number}.out", "attn_out", prefix, {"o_proj": config.hidden}, q, config.out_bias, dtype),
    ]


def _mlps(config: DecoderConfig, dtype: str, number: int) -> list[LinearDesc]:
    """`gate_up` and `down` of the MLP, or of each expert."""
    experts = config.experts
    if experts is None or number not in experts.layers:
        named = [(f"layers.{number}.", f"model.layers.{number}.mlp.", config.intermediate, config.mlp_bias)]
        gate, up, down = "gate_proj", "up_proj", "down_proj"
    else:
        at = f"model.layers.{number}.{experts.block}.experts."
        named = [(f"layers.{number}.experts.{n}.", f"{at}{n}.", experts.size, False) for n in range(experts.count)]
        gate, up, down = experts.gate, experts.up, experts.down
    descs = []
    for name, prefix, size, bias in named:
        both = {gate: size, up: size}
        descs += [
            _desc(name + "gate_up", "mlp_in", prefix, both, config.hidden, bias, dtype),
            _desc(name + "down", "mlp_out", prefix, {down: config.hidden}, size, bias, dtype),
        ]
    return descs


def norm_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Tensors that are no linear layers, with their shapes: norms and routers."""
    shapes: dict[str, tuple[int, ...]] = {"model.norm.weight": (config.hidden,)}
    norms = ["input_layernorm", "post_attention_layernorm"]
    if config.post_norms:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    for number in range(config.layers):
        at = f"model.layers.{number}."
        shapes.update({f"{at}{norm}.weight": (config.hidden,) for norm in norms})
        if config.qk_norm:
            shapes.update({f"{at}self_attn.{norm}.weight": (config.head_dim,) for norm in ("q_norm", "k_norm")})
        if config.experts is not None and number in config.experts.layers:
            shapes[f"{at}{config.experts.block}.gate.weight"] = (config.experts.count, config.hidden)
    return shapes


class Loader:
    """Loads one checkpoint with one weight method."""

    def __init__(
        self, checkpoint: HFCheckpoint | GGUFCheckpoint, weights: WeightMethod, dtype: str, device: str
    ) -> None:
        self._checkpoint = checkpoint
        self._weights = weights
        self._dtype_name = dtype
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._device = device
        self._config = checkpoint.config
        self._descs = linear_descs(checkpoint.config, dtype)
        self._tied: weakref.ref[Tensor] | None = None

    def load(self, progress: Progress) -> Decoder:
        self._check()
        config, total = self._config, len(self._descs)
        embedding = self._plain(EMBEDDING)
        linears: dict[str, Linear] = {}
        for done, desc in enumerate(self._descs):
            progress(done, total, desc.name)
            linears[desc.name] = self._linear(desc, embedding)
        progress(total, total, "done")
        layers = tuple(self._layer(number, linears) for number in range(config.layers))
        nbytes = sum(linear.nbytes for linear in linears.values()) + (0 if self._is_shared() else embedding.nbytes)
        norm = self._norm("model.norm.weight")
        adapters = Adapters(self._descs, self._dtype, self._device)
        return Decoder(config, embedding, layers, norm, linears["head"], self._frequencies(), adapters, nbytes)

    def _is_shared(self) -> bool:
        """Whether the head keeps the embedding it was given, rather than a copy in another form."""
        return self._tied is not None and self._tied() is not None

    def _layer(self, number: int, linears: Mapping[str, Linear]) -> DecoderLayer:
        at, post = f"model.layers.{number}.", self._config.post_norms
        before_mlp = "pre_feedforward_layernorm" if post else "post_attention_layernorm"
        return DecoderLayer(
            input_norm=self._norm(at + "input_layernorm.weight"),
            qkv=linears[f"layers.{number}.qkv"],
            out=linears[f"layers.{number}.out"],
            mlp_norm=self._norm(f"{at}{before_mlp}.weight"),
            mlp=self._mlp(number, linears),
            head_norms=self._head_norms(at + "self_attn.") if self._config.qk_norm else None,
            after_attention=self._norm(at + "post_attention_layernorm.weight") if post else None,
            after_mlp=self._norm(at + "post_feedforward_layernorm.weight") if post else None,
        )

    def _mlp(self, number: int, linears: Mapping[str, Linear]) -> Gated | Mixture:
        experts, activation = self._config.experts, self._config.activation

        def gated(at: str) -> Gated:
            return Gated(linears[at + "gate_up"], linears[at + "down"], activation)

        if experts is None or number not in experts.layers:
            return gated(f"layers.{number}.")
        router = self._wide(f"model.layers.{number}.{experts.block}.gate.weight")
        parts = tuple(gated(f"layers.{number}.experts.{n}.") for n in range(experts.count))
        return Mixture(router, parts, experts.used, experts.normed)

    def _head_norms(self, at: str) -> Tensor:
        q, k = self._norm(at + "q_norm.weight"), self._norm(at + "k_norm.weight")
        return torch.cat((q.expand(self._config.heads, -1), k.expand(self._config.kv_heads, -1)))

    def _plain(self, name: str) -> Tensor:
        return self._checkpoint.read(name).to(device=self._device, dtype=self._dtype)

    def _norm(self, name: str) -> Tensor:
        """Norm weights are as wide as the residual stream they scale."""
        return self._wide(name) + self._config.norm_offset

    def _wide(self, name: str) -> Tensor:
        wide = torch.float64 if self._dtype == torch.float64 else torch.float32
        return self._checkpoint.read(name).to(device=self._device, dtype=wide)

    def _linear(self, desc: LinearDesc, embedding: Tensor) -> Linear:
        suffixes = [param.suffix for param in self._weights.params(desc)]
        parts = []
        for part in desc.parts:
            if part + ".weight" == EMBEDDING and suffixes == ["weight"]:
                tied = embedding.view_as(embedding)
                self._tied = weakref.ref(tied)
                parts.append({"weight": tied})
                del tied
            else:
                parts.append({suffix: self._read(f"{part}.{suffix}") for suffix in suffixes if self._has(part, suffix)})
        bias = torch.cat([self._read(f"{part}.bias") for part in desc.parts]) if desc.bias else None
        return self._weights.finalize(desc, parts, bias)

    def _has(self, part: str, suffix: str) -> bool:
        return f"{part}.{suffix}" in self._checkpoint.shapes

    def _read(self, name: str) -> Tensor:
        return self._checkpoint.read(name).to(self._device)

    def _frequencies(self) -> tuple[Tensor, ...]:
        """One `[head_dim / 2]` per rope. What the file itself divides by applies to the first."""
        wide = torch.float64 if self._dtype == torch.float64 else torch.float32
        head_dim = self._config.head_dim
        first, *others = (
            torch.tensor(rope.frequencies(head_dim), dtype=wide, device=self._device) for rope in self._config.ropes
        )
        factors = self._checkpoint.rope_factors()
        if factors is None:
            return first, *others
        if factors.shape != first.shape:
            raise CheckpointError(
                f"tensor rope_freqs.weight has shape {tuple(factors.shape)}, expected {tuple(first.shape)}",
                subject=self._checkpoint.subject,
                remedy="Get the file again",
            )
        return first / factors.to(first), *others

    def _check(self) -> None:
        """Missing, misshapen and extra tensors, all named at once."""
        expected = self._expected()
        shapes = self._checkpoint.shapes
        problems = [
            f"tensor {name} is missing"
            for name, (_, optional) in expected.items()
            if name not in shapes and not optional
        ]
        for name, (shape, _) in expected.items():
            found = shapes.get(name)
            if found is not None and not _fits(found, shape):
                problems.append(f"tensor {name} has shape {list(found)}, expected {list(shape)}")
        known = expected.keys() | ({f"{HEAD}.weight"} if self._config.tied else set())
        problems += [
            f"tensor {name} is not part of this model"
            for name in shapes
            if name not in known and not name.endswith(_IGNORED_SUFFIXES)
        ]
        if problems:
            shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
            raise CheckpointError(
                shown, subject=self._checkpoint.subject, remedy="The weights do not belong to this configuration"
            )

    def _expected(self) -> dict[str, tuple[tuple[int, ...], bool]]:
        config = self._config
        expected: dict[str, tuple[tuple[int, ...], bool]] = {
            EMBEDDING: ((config.vocab, config.hidden), False),
            **{name: (shape, False) for name, shape in norm_shapes(config).items()},
        }
        for desc in self._descs:
            for part, rows in zip(desc.parts, desc.out_parts, strict=True):
                for param in self._weights.params(desc):
                    shape = tuple(rows if n == 0 and extent == -1 else extent for n, extent in enumerate(param.shape))
                    expected[f"{part}.{param.suffix}"] = (shape, param.optional)
                if desc.bias:
                    expected[f"{part}.bias"] = ((rows,), False)
        return expected


def _fits(found: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return len(found) == len(wanted) and all(w in (-1, f) for f, w in zip(found, wanted, strict=True))
