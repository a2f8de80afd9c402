"""TaggedFamily: a model whose KV is a tag of (token, position, layer, visible prefix).

All scores are zero (scale 0), so attention is a mean over visible keys. Values are integers below 2^31 in float64: the
mean times the number of visible keys rounds to their exact sum, through any attention kernel that is right. A page,
prefix or draft that is mixed up changes the sum, hence every later layer's tags, hence the tokens.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from tokloom.conformance.doubles import oracle
from tokloom.conformance.doubles.oracle import SHAPES, VOCAB, P, Shape
from tokloom.sdk import (
    AdapterInfo,
    AttentionCall,
    AttnParams,
    Context,
    ForwardBatch,
    Hidden,
    LayerSpec,
    ModelSource,
    ModelSpec,
    NoOptions,
    OpSet,
    Progress,
    WeightMethod,
)

__all__ = ["SHAPES", "VOCAB", "TaggedFamily", "TaggedModel"]


def mix(value: Tensor) -> Tensor:
    """`oracle.mix` on int64."""
    return (value * value % P + 12_345 * value + 678_910) % P


class TaggedFamily:
    """Implements `tokloom.sdk.ModelFamily`; its models are found by name."""

    def __init__(self, options: NoOptions, context: Context) -> None:
        pass

    def claims(self, source: ModelSource) -> bool:
        return False

    def names(self) -> Mapping[str, str]:
        return {name: f"content-tagged, windows {shape.windows}" for name, shape in SHAPES.items()}

    def open(self, source: ModelSource) -> "TaggedModel":
        return TaggedModel(source.name, SHAPES[source.name])


class TaggedModel:
    """Implements `tokloom.sdk.AdaptableModel` and `AdaptedModel`. Any file is an adapter: its digest goes into tags.

    A key is (position + 1, token + 1, layer, head), a value (tag of the head, token, layer, head), cut to the head
    size.
    """

    tokenizer = None
    nbytes = 0

    def __init__(self, name: str, shape: Shape) -> None:
        self.shape = shape
        self.windows = shape.windows
        q_heads, kv_heads = shape.heads
        head_k, head_v = (2, 2) if kv_heads == 1 else (4, 3)
        layers = tuple(
            LayerSpec(layer, AttnParams(q_heads, kv_heads, head_k, head_v, 0.0, window=window), "float64")
            for layer, window in enumerate(shape.windows)
        )
        self.spec = ModelSpec(
            name=name,
            digest=name,
            layers=layers,
            vocab_size=shape.vocab,
            hidden_size=2,
            max_tokens=512,
            eos_ids=shape.eos,
            bos_id=-1,
            dtype="float64",
            weight_bytes=0,
            poolings=("last", "mean"),
        )
        self.adapters: dict[str, int] = {}

    def open_adapter(self, path: Path) -> AdapterInfo:
        data = path.read_bytes()
        return AdapterInfo(digest=hashlib.sha256(data).hexdigest(), rank=len(data), targets=("tag",), nbytes=8)

    def load_adapter(self, path: Path) -> AdapterInfo:
        info = self.open_adapter(path)
        assert info.digest not in self.adapters, "an adapter is loaded a second time"
        self.adapters[info.digest] = oracle.adapter_tag(info.digest)
        return info

    def load(self, weights: WeightMethod, device: str, progress: Progress) -> "TaggedModel":
        return self

    def forward(self, batch: ForwardBatch, attention: AttentionCall, ops: OpSet) -> Hidden:
        tokens, positions = batch.token_ids, batch.positions
        adapters = torch.zeros_like(tokens)
        for entry in batch.adapters:
            for first, stop in entry.ranges:
                adapters[first:stop] = self.adapters[entry.digest]
        tag = mix((tokens * 7_919 + positions * 104_729 + 1 + adapters) % P)
        features: dict[int, Tensor] = {}
        seen = tag
        for layer in range(len(self.windows)):
            if layer:
                tag = mix((seen + positions) % P)
            seen = self._attend(layer, tag, tokens, positions, attention)
            if layer in batch.features:
                features[layer] = torch.stack((seen, positions), 1).double()
        return Hidden(torch.stack((seen, positions), 1).double(), features)

    def _attend(self, layer: int, tag: Tensor, tokens: Tensor, positions: Tensor, attention: AttentionCall) -> Tensor:
        """Over query heads q, q + 1 times the sum of visible tags of its kv head, mod P."""
        params = self.spec.layers[layer].params
        keys, values = [], []
        for head in range(params.kv_heads):
            own = tag if head == 0 else mix((tag + 31_337 * head) % P)
            place = (torch.full_like(tag, layer), torch.full_like(tag, head))
            keys.append(torch.stack((positions + 1, tokens + 1, *place), 1)[:, : params.head_k])
            values.append(torch.stack((own, tokens, *place), 1)[:, : params.head_v])
        query = torch.zeros((tag.shape[0], params.q_heads, params.head_k), dtype=torch.float64)
        out = attention(layer, query, torch.stack(keys, 1).double(), torch.stack(values, 1).double())
        window = self.windows[layer]
        visible = positions + 1 if window is None else (positions + 1).clamp_max(window)
        sums = (out[:, :, 0] * visible.unsqueeze(1)).round().long()
        return (sums * torch.arange(1, params.q_heads + 1)).sum(1) % P

    def logits(self, hidden: Tensor) -> Tensor:
        seen = hidden[:, :1].long()
        ids = torch.arange(1, self.shape.vocab + 1).unsqueeze(0)
        return mix((seen + 1_000_003 * ids) % P).double() / P * 8 - 4
