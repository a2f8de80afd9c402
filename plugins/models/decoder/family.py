"""DecoderFamily: finds out what a source is, and opens it."""

import hashlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from tokloom.plugins.models.decoder.adapter_file import AdapterFile
from tokloom.plugins.models.decoder.config import DecoderConfig
from tokloom.plugins.models.decoder.gguf_source import GGUFCheckpoint
from tokloom.plugins.models.decoder.hub import Snapshot, fetch, is_hub_name
from tokloom.plugins.models.decoder.loading import Loader, linear_descs
from tokloom.plugins.models.decoder.network import Decoder
from tokloom.plugins.models.decoder.poolings import read_poolings
from tokloom.plugins.models.decoder.sources import HFCheckpoint
from tokloom.plugins.models.decoder.tokenizer import DecoderTokenizer, from_folder, from_gguf_metadata
from tokloom.sdk import (
    AdapterInfo,
    AttnParams,
    CheckpointError,
    CheckpointInfo,
    LayerSpec,
    ModelSource,
    ModelSpec,
    Progress,
    WeightMethod,
)

_DTYPES = ("float64", "float32", "bfloat16", "float16")


class DecoderFamily:
    """Implements `tokloom.sdk.ModelFamily`."""

    def claims(self, source: ModelSource) -> bool:
        path = source.path
        if path is None:
            return is_hub_name(source.name)
        return (path / "config.json").is_file() if path.is_dir() else path.suffix == ".gguf"

    def open(self, source: ModelSource) -> "DecoderModel":
        path = source.path
        if path is None:
            snapshot = fetch(source.name)
            hub = HFCheckpoint(snapshot.folder)
            return DecoderModel(snapshot.folder, hub, source, snapshot)
        if not path.exists():
            raise CheckpointError("does not exist", subject=str(path), remedy="Check model.path")
        checkpoint = HFCheckpoint(path) if path.is_dir() else GGUFCheckpoint(path)
        return DecoderModel(path, checkpoint, source)

    def names(self) -> Mapping[str, str]:
        return {}


class DecoderModel:
    """Implements `tokloom.sdk.AdaptableModel`: metadata is read, weights are not."""

    def __init__(
        self,
        path: Path,
        checkpoint: HFCheckpoint | GGUFCheckpoint,
        source: ModelSource,
        snapshot: Snapshot | None = None,
    ) -> None:
        dtype = source.dtype or checkpoint.config.dtype
        if dtype not in _DTYPES:
            raise CheckpointError(
                f"dtype {dtype!r} cannot be computed in", subject=str(path), remedy=f"Use one of {', '.join(_DTYPES)}"
            )
        self._path = path
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._template = source.chat_template
        self._snapshot = snapshot

    @cached_property
    def spec(self) -> ModelSpec:
        config = self._checkpoint.config
        elements = sum(_product(shape) for shape in self._checkpoint.shapes.values())
        return ModelSpec(
            name=self._name(),
            digest=self._digest(),
            layers=tuple(LayerSpec(n, _attention(config, n), self._dtype) for n in range(config.layers)),
            vocab_size=config.vocab,
            hidden_size=config.hidden,
            max_tokens=config.max_tokens,
            eos_ids=config.eos_ids,
            bos_id=config.bos_id,
            dtype=self._dtype,
            weight_bytes=elements * _itemsize(self._dtype),
            poolings=read_poolings(self._path),
            generation=config.generation,
            checkpoint=CheckpointInfo("", {}, dict(self._checkpoint.dtypes)),
        )

    def _name(self) -> str:
        if self._snapshot is not None:
            return f"{self._snapshot.name}@{self._snapshot.commit}"
        return self._path.stem if self._path.suffix == ".gguf" else self._path.name

    def _digest(self) -> str:
        digest = self._checkpoint.digest()
        if self._snapshot is None:
            return digest
        return hashlib.sha256(f"{self._name()}\0{digest}".encode()).hexdigest()

    @cached_property
    def tokenizer(self) -> DecoderTokenizer | None:
        if isinstance(self._checkpoint, GGUFCheckpoint):
            return from_gguf_metadata(str(self._path), self._checkpoint.file.metadata, self._template)
        return from_folder(self._path, self._template)

    def open_adapter(self, path: Path) -> AdapterInfo:
        descs = linear_descs(self._checkpoint.config, self._dtype)
        return AdapterFile(path, descs, _itemsize(self._dtype)).info

    def load(self, weights: WeightMethod, device: str, progress: Progress) -> Decoder:
        return Loader(self._checkpoint, weights, self._dtype, device).load(progress)


def _itemsize(dtype: str) -> int:
    return {"float64": 8, "float32": 4}.get(dtype, 2)


def _attention(config: DecoderConfig, layer: int) -> AttnParams:
    return AttnParams(
        q_heads=config.heads,
        kv_heads=config.kv_heads,
        head_k=config.head_dim,
        head_v=config.head_dim,
        scale=config.scale,
        window=config.windows[layer],
        soft_cap=config.attn_soft_cap,
    )


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total
