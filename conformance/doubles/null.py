"""Parts that do as little as a contract allows: what is left is the cost of the loop and its seams."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tokloom.sdk import (
    Accepts,
    AttentionCall,
    AttnBatch,
    AttnParams,
    AttnPlan,
    CheckpointInfo,
    Context,
    FormatPair,
    ForwardBatch,
    Hidden,
    KVFormat,
    LayerSpec,
    Linear,
    LinearDesc,
    ModelSource,
    ModelSpec,
    NoOptions,
    OpSet,
    Pages,
    ParamDesc,
    Progress,
    Unsupported,
    WeightMethod,
    Workspace,
)

_ROWS = 4096


class NullFamily:
    """One model, `null`: one layer, 64 tokens of vocabulary, constant logits."""

    tokenizer = None
    nbytes = 0

    def __init__(self, options: NoOptions, context: Context) -> None:
        self._qkv = torch.zeros(_ROWS, 1, 8)
        self._hidden = torch.zeros(_ROWS, 8)
        self._logits = torch.randn(_ROWS, 64, generator=torch.Generator().manual_seed(0))
        self.spec = ModelSpec(
            name="null",
            digest="null",
            layers=(LayerSpec(0, AttnParams(1, 1, 8, 8, 1.0), "float32"),),
            vocab_size=64,
            hidden_size=8,
            max_tokens=1 << 16,
            eos_ids=(),
            bos_id=-1,
            dtype="float32",
            weight_bytes=0,
        )

    def claims(self, source: ModelSource) -> bool:
        return False

    def names(self) -> Mapping[str, str]:
        return {"null": "does nothing"}

    def open(self, source: ModelSource) -> "NullFamily":
        return self

    def load(self, weights: WeightMethod, device: str, progress: Progress) -> "NullFamily":
        return self

    def forward(self, batch: ForwardBatch, attention: AttentionCall, ops: OpSet) -> Hidden:
        rows = self._qkv[: batch.token_ids.shape[0]]
        attention(0, rows, rows, rows)
        return Hidden(self._hidden[: rows.shape[0]])

    def logits(self, hidden: Tensor) -> Tensor:
        return self._logits[: hidden.shape[0]]


class NullKernel:
    """Computes nothing."""

    def __init__(self, options: NoOptions, context: Context) -> None:
        self._plan = AttnPlan()

    def accepts(self, spec: LayerSpec, format: KVFormat) -> Accepts | Unsupported:
        return Accepts()

    def plan(
        self, batch: AttnBatch, params: AttnParams, workspace: Workspace, *, capture: bool, reuse: AttnPlan | None
    ) -> AttnPlan:
        return self._plan

    def run(self, layer: int, q: Tensor, pages: Pages, plan: AttnPlan, out: Tensor, lse: Tensor | None) -> None:
        pass


class NullCodec:
    """Stores nothing, in one byte per token."""

    fingerprint = "null"
    residual_tokens = 0

    def __init__(self, options: NoOptions, context: Context) -> None:
        pass

    def formats(self, spec: LayerSpec, page_tokens: int) -> Sequence[FormatPair]:
        return (FormatPair(KVFormat.pack("null", page_tokens, [("n", "uint8", (page_tokens,))])),)

    def append(self, layer: int, k: Tensor, v: Tensor, pages: Pages, slots: Tensor) -> None:
        pass

    def read(self, layer: int, pages: Pages, page_ids: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def move(self, layer: int, pages: Pages, src: Tensor, dst: Tensor) -> None:
        pass


class NoWeights:
    """For models without linear layers."""

    def __init__(self, options: NoOptions, context: Context) -> None:
        pass

    def claim(self, checkpoint: CheckpointInfo) -> int:
        return 1

    def params(self, desc: LinearDesc) -> Sequence[ParamDesc]:
        return ()

    def finalize(self, desc: LinearDesc, parts: Sequence[Mapping[str, Tensor]], bias: Tensor | None) -> Linear:
        raise NotImplementedError


class NoOps:
    """For models that use no op."""

    def __init__(self, options: NoOptions, context: Context) -> None:
        pass
