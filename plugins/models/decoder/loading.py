"""From a checkpoint to a Decoder: every tensor's name and shape is checked before the first is read."""

import weakref
from collections.abc import Mapping

import torch
from torch import Tensor

from tokloom.plugins.models.decoder.adapters import Adapters
from tokloom.plugins.models.decoder.config import DecoderConfig
from tokloom.plugins.models.decoder.network import Decoder, DecoderLayer
from tokloom.plugins.models.decoder.sources import GGUFCheckpoint, HFCheckpoint
from tokloom.sdk import CheckpointError, Linear, LinearDesc, Progress, WeightMethod

#: tensors that some converters leave behind and nobody needs
_IGNORED_SUFFIXES = (".rotary_emb.inv_freq", ".attn_rot_embd.weight")
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head"


def linear_descs(config: DecoderConfig, dtype: str) -> list[LinearDesc]:
    """The linear layers of a decoder, in execution order; four per layer, then the head."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim

    def desc(name: str, role: str, prefix: str, parts: Mapping[str, int], size: int, bias: bool) -> LinearDesc:
        return LinearDesc(
            name=name,
            role=role,  # type: ignore[arg-type]
            parts=tuple(prefix + part for part in parts),
            out_parts=tuple(parts.values()),
            in_features=size,
            bias=bias,
            dtype=dtype,
        )

    descs = []
    for number in range(config.layers):
        attn, mlp = f"model.layers.{number}.self_attn.", f"model.layers.{number}.mlp."
        qkv = {"q_proj": q, "k_proj": kv, "v_proj": kv}
        gate_up = {"gate_proj": config.intermediate, "up_proj": config.intermediate}
        at = f"layers.{number}."
        descs += [
            desc(at + "qkv", "attn_in", attn, qkv, config.hidden, config.attention_bias),
            desc(at + "out", "attn_out", attn, {"o_proj": config.hidden}, q, config.attention_bias),
            desc(at + "gate_up", "mlp_in", mlp, gate_up, config.hidden, config.mlp_bias),
            desc(at + "down", "mlp_out", mlp, {"down_proj": config.hidden}, config.intermediate, config.mlp_bias),
        ]
    head = EMBEDDING.removesuffix(".weight") if config.tied else HEAD
    descs.append(desc("head", "head", "", {head: config.vocab}, config.hidden, False))
    return descs


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
        linears: list[Linear] = []
        for done, desc in enumerate(self._descs):
            progress(done, total, desc.name)
            linears.append(self._linear(desc, embedding))
        progress(total, total, "done")
        layers = tuple(self._layer(number, linears[4 * number : 4 * number + 4]) for number in range(config.layers))
        nbytes = sum(linear.nbytes for linear in linears) + (0 if self._is_shared() else embedding.nbytes)
        norm = self._norm("model.norm.weight")
        adapters = Adapters(self._descs, self._dtype, self._device)
        return Decoder(config, embedding, layers, norm, linears[-1], self._frequencies(), adapters, nbytes)

    def _is_shared(self) -> bool:
        """Whether the head keeps the embedding it was given, rather than a copy in another form."""
        return self._tied is not None and self._tied() is not None

    def _layer(self, number: int, linears: list[Linear]) -> DecoderLayer:
        at = f"model.layers.{number}."
        qkv, out, gate_up, down = linears
        return DecoderLayer(
            self._norm(at + "input_layernorm.weight"),
            qkv,
            out,
            self._norm(at + "post_attention_layernorm.weight"),
            gate_up,
            down,
        )

    def _plain(self, name: str) -> Tensor:
        return self._checkpoint.read(name).to(device=self._device, dtype=self._dtype)

    def _norm(self, name: str) -> Tensor:
        """Norm weights are as wide as the residual stream they scale."""
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

    def _frequencies(self) -> Tensor:
        wide = torch.float64 if self._dtype == torch.float64 else torch.float32
        frequencies = torch.tensor(self._config.inverse_frequencies(), dtype=wide, device=self._device)
        factors = self._checkpoint.rope_factors()
        if factors is None:
            return frequencies
        if factors.shape != frequencies.shape:
            raise CheckpointError(
                f"tensor rope_freqs.weight has shape {tuple(factors.shape)}, expected {tuple(frequencies.shape)}",
                subject=self._checkpoint.subject,
                remedy="Get the file again",
            )
        return frequencies / factors.to(wide)

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
            "model.norm.weight": ((config.hidden,), False),
        }
        for number in range(config.layers):
            for norm in ("input_layernorm", "post_attention_layernorm"):
                expected[f"model.layers.{number}.{norm}.weight"] = ((config.hidden,), False)
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
