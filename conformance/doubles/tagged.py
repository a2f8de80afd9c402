"""TaggedFamily: a model whose KV is a tag of (token, position, layer, visible prefix).

All scores are zero (scale 0), so attention is a mean over visible keys. Values are integers below 2^31 in float64: the
mean times the number of visible keys rounds to their exact sum, through any attention kernel that is right. A page,
prefix or draft that is mixed up changes the sum, hence every later layer's tags, hence the tokens.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from tokloom.conformance.doubles.oracle import P
from tokloom.sdk import (
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

#: name -> (window of each layer, end tokens)
SHAPES: dict[str, tuple[tuple[int | None, ...], tuple[int, ...]]] = {
    "tagged": ((None, None), ()),
    "tagged-window": ((None, 5, None, 5), ()),
    "tagged-eos": ((None, None), (3,)),
}
VOCAB = 11


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
        return {name: f"content-tagged, windows {windows}" for name, (windows, _) in SHAPES.items()}

    def open(self, source: ModelSource) -> "TaggedModel":
        return TaggedModel(source.name, *SHAPES[source.name])


class TaggedModel:
    """Implements `tokloom.sdk.Model` and `LoadedModel`."""

    tokenizer = None
    nbytes = 0

    def __init__(self, name: str, windows: tuple[int | None, ...], eos: tuple[int, ...]) -> None:
        self.windows = windows
        layers = tuple(
            LayerSpec(layer, AttnParams(1, 1, 2, 2, 0.0, window=window), "float64")
            for layer, window in enumerate(windows)
        )
        self.spec = ModelSpec(
            name=name,
            digest=name,
            layers=layers,
            vocab_size=VOCAB,
            hidden_size=2,
            max_tokens=512,
            eos_ids=eos,
            bos_id=-1,
            dtype="float64",
            weight_bytes=0,
        )

    def load(self, weights: WeightMethod, device: str, progress: Progress) -> "TaggedModel":
        return self

    def forward(self, batch: ForwardBatch, attention: AttentionCall, ops: OpSet) -> Hidden:
        tokens, positions = batch.token_ids, batch.positions
        tag = mix((tokens * 7_919 + positions * 104_729 + 1) % P)
        features: dict[int, Tensor] = {}
        seen = tag
        for layer, window in enumerate(self.windows):
            if layer:
                tag = mix((seen + positions) % P)
            seen = self._attend(layer, window, tag, tokens, positions, attention)
            if layer in batch.features:
                features[layer] = torch.stack((seen, positions), 1).double()
        return Hidden(torch.stack((seen, positions), 1).double(), features)

    def _attend(
        self, layer: int, window: int | None, tag: Tensor, tokens: Tensor, positions: Tensor, attention: AttentionCall
    ) -> Tensor:
        """The sum of visible tags, mod P."""
        value = torch.stack((tag, tokens), 1).double().unsqueeze(1)
        key = torch.stack((positions + 1, tokens + 1), 1).double().unsqueeze(1)
        mean = attention(layer, torch.zeros_like(key), key, value)[:, 0, 0]
        visible = positions + 1 if window is None else (positions + 1).clamp_max(window)
        return (mean * visible).round().long() % P

    def logits(self, hidden: Tensor) -> Tensor:
        seen = hidden[:, :1].long()
        ids = torch.arange(1, VOCAB + 1).unsqueeze(0)
        return mix((seen + 1_000_003 * ids) % P).double() / P * 8 - 4
