"""AdapterFile: a PEFT folder with a low-rank adapter, checked against the linear layers of a model."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from torch import Tensor

from tokloom.plugins.models.decoder.adapter_config import LoraConfig, read_config
from tokloom.plugins.models.decoder.sources import read_json
from tokloom.sdk import AdapterInfo, CheckpointError, LinearDesc

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
_PREFIX: Final = "base_model.model."
_FLOATS: Final = ("F64", "F32", "F16", "BF16")
Shape = tuple[int, ...]


class AdapterFile:
    """Metadata is read and checked, weights are not.

    Attributes:
        modules: names of the modules that are changed.
    """

    def __init__(self, folder: Path, descs: Sequence[LinearDesc], elements: int) -> None:
        """`elements`: bytes of one element as it will be held."""
        self._weights = folder / WEIGHTS
        if not folder.is_dir():
            raise CheckpointError("is no folder", subject=str(folder), remedy=f"Give the folder that has {CONFIG}")
        self.config = read_config(str(folder / CONFIG), read_json(folder / CONFIG))
        if not self._weights.is_file():
            raise CheckpointError(
                f"has no {WEIGHTS}", subject=str(folder), remedy="Only adapters saved as safetensors are read"
            )
        sizes = {
            part: (rows, desc.in_features)
            for desc in descs
            for part, rows in zip(desc.parts, desc.out_parts, strict=True)
            if desc.role != "head"
        }
        _refuse_ends(self.config)
        self.modules = tuple(name for name in sizes if self.config.changes(name))
        if not self.modules:
            raise CheckpointError(
                f"target_modules {self.config.targets!r:.80} names no linear layer of this model",
                subject=self.config.subject,
                remedy="The adapter belongs to another model",
            )
        self._check({name: sizes[name] for name in self.modules}, self._header())
        ranks = [self.config.rank_of(name) for name in self.modules]
        total = sum(rank * sum(sizes[name]) for rank, name in zip(ranks, self.modules, strict=True))
        self.info = AdapterInfo(
            digest=self._digest(folder / CONFIG),
            rank=max(ranks),
            targets=tuple(sorted({name.rpartition(".")[2] for name in self.modules})),
            nbytes=total * elements,
        )

    def read(self, module: str) -> tuple[Tensor, Tensor]:
        """A `[rank, in]` and B `[out, rank]`, as stored."""
        from safetensors import safe_open

        down, up = _tensors(module)
        try:
            with safe_open(self._weights, framework="pt") as file:
                return file.get_tensor(down), file.get_tensor(up)
        except Exception as error:  # the library has its own error type and also raises others
            raise CheckpointError(
                f"the adapter of {module} cannot be read: {error}", subject=str(self._weights), remedy="Get it again"
            ) from error

    def _header(self) -> dict[str, tuple[Shape, str]]:
        """Shape and dtype of each tensor."""
        from safetensors import safe_open

        try:
            with safe_open(self._weights, framework="pt") as file:
                slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
                return {name: (tuple(item.get_shape()), item.get_dtype()) for name, item in slices.items()}
        except Exception as error:  # the library has its own error type and also raises others
            raise CheckpointError(
                f"is damaged: {error}", subject=str(self._weights), remedy="Get the adapter again"
            ) from error

    def _check(self, sizes: Mapping[str, tuple[int, int]], found: Mapping[str, tuple[Shape, str]]) -> None:
        """Missing, misshapen and extra tensors, all named at once."""
        expected: dict[str, Shape] = {}
        for module, (out, into) in sizes.items():
            rank = self.config.rank_of(module)
            down, up = _tensors(module)
            expected |= {down: (rank, into), up: (out, rank)}
        problems = [f"tensor {name} is missing" for name in expected if name not in found]
        problems += [f"tensor {name} is not part of this adapter" for name in found if name not in expected]
        for name, shape in expected.items():
            stored, dtype = found.get(name, (shape, _FLOATS[0]))
            if stored != shape:
                problems.append(f"tensor {name} has shape {list(stored)}, expected {list(shape)}")
            if dtype not in _FLOATS:
                problems.append(f"tensor {name} has dtype {dtype}, expected one of {', '.join(_FLOATS)}")
        if problems:
            shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
            raise CheckpointError(
                shown,
                subject=str(self._weights),
                remedy=f"The adapter belongs to another model, or not to its {CONFIG}",
            )

    def _digest(self, config: Path) -> str:
        digest = hashlib.sha256(hashlib.sha256(config.read_bytes()).digest())
        with self._weights.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()


def _tensors(module: str) -> tuple[str, str]:
    """Names of A and B."""
    return f"{_PREFIX}{module}.lora_A.weight", f"{_PREFIX}{module}.lora_B.weight"


def _refuse_ends(config: LoraConfig) -> None:
    """Adapters of the embedding and of the head, which `all-linear` leaves out."""
    for name in ("lm_head", "model.embed_tokens"):
        if config.targets != "all-linear" and config.changes(name):
            raise CheckpointError(
                f"target_modules names {name}: adapters of the embedding and of the head are not supported",
                subject=config.subject,
                remedy="Use another adapter",
            )
