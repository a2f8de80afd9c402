"""Decoder: the forward pass of a decoder over flat rows."""

from pathlib import Path

import torch
from attrs import frozen
from torch import Tensor

from tokloom.plugins.models.decoder.adapters import Adapters
from tokloom.plugins.models.decoder.config import DecoderConfig
from tokloom.plugins.models.decoder.mlp import Gated, Mixture
from tokloom.sdk import AdapterInfo, AttentionCall, ForwardBatch, Hidden, Linear, OpSet


@frozen
class DecoderLayer:
    """Weights of one layer.

    Attributes:
        head_norms: `[heads + kv_heads, head_dim]`, what heads of q and k are normalised with.
        after_attention, after_mlp: norms of what attention and the MLP give, before it is added.
    """

    input_norm: Tensor
    qkv: Linear
    out: Linear
    mlp_norm: Tensor
    mlp: Gated | Mixture
    head_norms: Tensor | None = None
    after_attention: Tensor | None = None
    after_mlp: Tensor | None = None


class Decoder:
    """Implements `tokloom.sdk.AdaptedModel`. Stateless between calls.

    Args:
        frequencies: one `[head_dim / 2]` per rope of the configuration.
    """

    def __init__(
        self,
        config: DecoderConfig,
        embedding: Tensor,
        layers: tuple[DecoderLayer, ...],
        norm: Tensor,
        head: Linear,
        frequencies: tuple[Tensor, ...],
        adapters: Adapters,
        nbytes: int,
    ) -> None:
        self._config = config
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._head = head
        self._adapters = adapters
        self._nbytes = nbytes
        self._q = config.heads * config.head_dim
        self._kv = config.kv_heads * config.head_dim
        self._frequencies = frequencies
        #: rounded as the product's other factor is
        self._scale = float(torch.tensor(config.embedding_scale, dtype=embedding.dtype))

    def _angles(self, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """cos and sin `[T, head_dim / 2]` of each row's angles, per rope."""
        angles = []
        for rope, frequencies in zip(self._config.ropes, self._frequencies, strict=True):
            turned = positions.to(frequencies.dtype).unsqueeze(1) * frequencies
            cos, sin = turned.cos(), turned.sin()
            angles.append((cos, sin) if rope.attention == 1.0 else (cos * rope.attention, sin * rope.attention))
        return angles

    def _embed(self, ids: Tensor, ops: OpSet) -> Tensor:
        embedded = ops.embed(ids, self._embedding)
        return embedded if self._scale == 1.0 else embedded * self._scale

    def _attend(
        self, number: int, x: Tensor, angles: tuple[Tensor, Tensor], attention: AttentionCall, ops: OpSet
    ) -> Tensor:
        """Projection, rotation, attention and output of one layer; x is normalised already."""
        config, layer, rows = self._config, self._layers[number], x.shape[0]
        joint, v = torch.split(layer.qkv.apply(x), [self._q + self._kv, self._kv], dim=-1)
        heads = joint.view(rows, config.heads + config.kv_heads, config.head_dim)
        if layer.head_norms is not None:
            heads = ops.rms_norm(heads, layer.head_norms, config.eps, x.dtype)
        q, k = ops.rope(heads[:, : config.heads], heads[:, config.heads :], *angles)
        mixed = attention(number, q, k, v.view(rows, config.kv_heads, config.head_dim))
        return layer.out.apply(mixed.reshape(rows, self._q))

    def forward(self, batch: ForwardBatch, attention: AttentionCall, ops: OpSet) -> Hidden:
        self._adapters.select(batch.adapters)
        eps, angles = self._config.eps, self._angles(batch.positions)
        residual = self._embed(batch.token_ids, ops)
        dtype = residual.dtype
        if dtype.itemsize < 4:  # the residual stream grows by orders of magnitude: half precision would round it away
            residual = residual.float()
        features: dict[int, Tensor] = {}
        wanted = frozenset(batch.features)
        x = ops.rms_norm(residual, self._layers[0].input_norm, eps, dtype)
        for number, layer in enumerate(self._layers):
            x = self._attend(number, x, angles[self._config.rope_of[number]], attention, ops)
            if layer.after_attention is not None:
                x = ops.rms_norm(x, layer.after_attention, eps, dtype)
            x, residual = ops.add_rms_norm(x, residual, layer.mlp_norm, eps)
            x = layer.mlp.apply(x, ops)
            if layer.after_mlp is not None:
                x = ops.rms_norm(x, layer.after_mlp, eps, dtype)
            after = self._layers[number + 1].input_norm if number + 1 < len(self._layers) else self._norm
            x, residual = ops.add_rms_norm(x, residual, after, eps)
            if number in wanted:
                features[number] = residual.to(dtype, copy=True)
        return Hidden(x, features)

    def logits(self, hidden: Tensor) -> Tensor:
        logits = self._head.apply(hidden)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        cap = self._config.logit_soft_cap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    @property
    def nbytes(self) -> int:
        return self._nbytes + self._adapters.nbytes

    def load_adapter(self, path: Path) -> AdapterInfo:
        info, self._layers = self._adapters.load(path, self._layers)
        return info
