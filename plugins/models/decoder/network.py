"""Decoder: the forward pass of a Llama-type model over flat rows."""

from pathlib import Path

import torch
from attrs import frozen
from torch import Tensor

from tokloom.plugins.models.decoder.adapters import Adapters
from tokloom.plugins.models.decoder.config import DecoderConfig
from tokloom.sdk import AdapterInfo, AttentionCall, ForwardBatch, Hidden, Linear, OpSet


@frozen
class DecoderLayer:
    """Weights of one layer."""

    input_norm: Tensor
    qkv: Linear
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


class Decoder:
    """Implements `tokloom.sdk.AdaptedModel`. Stateless between calls."""

    def __init__(
        self,
        config: DecoderConfig,
        embedding: Tensor,
        layers: tuple[DecoderLayer, ...],
        norm: Tensor,
        head: Linear,
        frequencies: Tensor,
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

    def _rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin `[T, head_dim / 2]` of each row's angles."""
        angles = positions.to(self._frequencies.dtype).unsqueeze(1) * self._frequencies
        return angles.cos(), angles.sin()

    def forward(self, batch: ForwardBatch, attention: AttentionCall, ops: OpSet) -> Hidden:
        config, eps, rows = self._config, self._config.eps, batch.token_ids.shape[0]
        self._adapters.select(batch.adapters)
        cos, sin = self._rope(batch.positions)
        residual = ops.embed(batch.token_ids, self._embedding)
        dtype = residual.dtype
        if dtype.itemsize < 4:  # the residual stream grows by orders of magnitude: half precision would round it away
            residual = residual.float()
        features: dict[int, Tensor] = {}
        wanted = frozenset(batch.features)
        x = ops.rms_norm(residual, self._layers[0].input_norm, eps, dtype)
        for number, layer in enumerate(self._layers):
            q, k, v = torch.split(layer.qkv.apply(x), [self._q, self._kv, self._kv], dim=-1)
            q, k = ops.rope(
                q.view(rows, config.heads, config.head_dim), k.view(rows, config.kv_heads, config.head_dim), cos, sin
            )
            mixed = attention(number, q, k, v.view(rows, config.kv_heads, config.head_dim))
            x = layer.out.apply(mixed.reshape(rows, self._q))
            x, residual = ops.add_rms_norm(x, residual, layer.mlp_norm, eps)
            x = layer.down.apply(ops.silu_mul(layer.gate_up.apply(x)))
            after = self._layers[number + 1].input_norm if number + 1 < len(self._layers) else self._norm
            x, residual = ops.add_rms_norm(x, residual, after, eps)
            if number in wanted:
                features[number] = residual.to(dtype, copy=True)
        return Hidden(x, features)

    def logits(self, hidden: Tensor) -> Tensor:
        logits = self._head.apply(hidden)
        return logits if logits.dtype == torch.float64 else logits.float()

    @property
    def nbytes(self) -> int:
        return self._nbytes + self._adapters.nbytes

    def load_adapter(self, path: Path) -> AdapterInfo:
        info, self._layers = self._adapters.load(path, self._layers)
        return info
