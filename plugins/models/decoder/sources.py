"""HFCheckpoint: the tensors of a Hugging Face folder, from safetensors shards."""

import hashlib
import json
from pathlib import Path

from torch import Tensor

from tokloom.plugins.models.decoder.fields import Fields
from tokloom.plugins.models.decoder.hf_config import from_hf
from tokloom.sdk import CheckpointError

_IMAGE_PARTS = (
    "vision_tower.",
    "model.vision_tower.",
    "multi_modal_projector.",
    "model.multi_modal_projector.",
)
_TEXT_PARTS = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
}
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class HFCheckpoint:
    """A folder with config.json and one or more safetensors files.

    `shapes` and `dtypes` are known by name without reading a tensor.
    """

    def __init__(self, folder: Path) -> None:
        self.subject = str(folder)
        self._folder = folder
        fields = Fields(str(folder / "config.json"), read_json(folder / "config.json"))
        generation = folder / "generation_config.json"
        self.config = from_hf(fields, Fields(str(generation), read_json(generation)) if generation.exists() else None)
        self._files: dict[str, Path] = {}
        self._stored: dict[str, str] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, str] = {}
        for file in self._shards():
            self._read_header(file)

    def _shards(self) -> list[Path]:
        index = self._folder / "model.safetensors.index.json"
        if index.exists():
            weights = read_json(index).get("weight_map")
            if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights.values()):
                raise CheckpointError("weight_map is missing or no table", subject=str(index), remedy="Get it again")
            names = sorted(set(weights.values()))
            for name in names:
                if Path(name).name != name or not (self._folder / name).is_file():
                    raise CheckpointError(
                        f"shard {name} is missing", subject=str(self._folder), remedy="Get the whole folder"
                    )
            return [self._folder / name for name in names]
        single = self._folder / "model.safetensors"
        if not single.is_file():
            raise CheckpointError(
                "has neither model.safetensors nor model.safetensors.index.json",
                subject=str(self._folder),
                remedy="Only safetensors checkpoints are read",
            )
        return [single]

    def _read_header(self, file: Path) -> None:
        """The format: an 8-byte length, that many bytes of JSON, then the data."""
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or not 2 <= length <= size - 8:
                raise CheckpointError("has a damaged header", subject=str(file), remedy="Get it again")
            try:
                header = json.loads(stream.read(length))
            except (ValueError, RecursionError):
                header = None
        if not isinstance(header, dict):
            raise CheckpointError("has a damaged header", subject=str(file), remedy="Get it again")
        for name, entry in header.items():
            if name != "__metadata__":
                self._note(file, name, entry, size - 8 - length)

    def _note(self, file: Path, name: str, entry: object, data: int) -> None:
        try:
            dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]  # type: ignore[index]
            fine = all(isinstance(n, int) and n >= 0 for n in (*shape, begin, end)) and isinstance(dtype, str)
        except (TypeError, KeyError, ValueError):
            fine, dtype, shape, begin, end = False, "", (), 0, 0
        if not fine or begin > end:
            raise CheckpointError(f"describes tensor {name} badly", subject=str(file), remedy="Get it again")
        if end > data:
            raise CheckpointError(
                f"is truncated: tensor {name} ends at byte {end} of {data}", subject=str(file), remedy="Get it again"
            )
        ours = _text_name(name)
        if ours is None:
            return
        if ours in self.shapes:
            raise CheckpointError(f"has tensor {name} a second time", subject=str(file), remedy="Remove stale shards")
        self._files[ours] = file
        self._stored[ours] = name
        self.shapes[ours] = shape
        self.dtypes[ours] = _DTYPES.get(dtype, dtype)

    def read(self, name: str) -> Tensor:
        """A tensor in its stored float dtype."""
        from safetensors import safe_open

        if self.dtypes[name] not in _DTYPES.values():
            raise CheckpointError(
                f"tensor {name} has dtype {self.dtypes[name]}",
                subject=str(self._files[name]),
                remedy=f"Supported: {', '.join(_DTYPES)}",
            )
        try:
            with safe_open(self._files[name], framework="pt") as file:
                tensor: Tensor = file.get_tensor(self._stored[name])
        except Exception as error:  # the library has its own error type and also raises others
            raise CheckpointError(
                f"tensor {name} cannot be read: {error}", subject=str(self._files[name]), remedy="Get it again"
            ) from error
        return tensor

    def rope_factors(self) -> Tensor | None:
        """Divisors of the rotary frequencies that the checkpoint itself carries."""
        return None

    def digest(self) -> str:
        """Of configuration and the weights' names, sizes and times."""
        files = sorted({*self._files.values(), self._folder / "config.json"})
        return file_digest(files)


def _text_name(name: str) -> str | None:
    """The name without what a model of text and images puts before it; None for the part that sees images."""
    if name.startswith(_IMAGE_PARTS):
        return None
    for prefix, ours in _TEXT_PARTS.items():
        if name.startswith(prefix):
            return ours + name.removeprefix(prefix)
    return name


def file_digest(files: list[Path]) -> str:
    """Of names, sizes and times, and of the content of small files."""
    digest = hashlib.sha256()
    for file in files:
        status = file.stat()
        digest.update(f"{file.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
        if status.st_size < 1 << 20:
            digest.update(file.read_bytes())
    return digest.hexdigest()


def read_json(path: Path) -> dict[str, object]:
    """A JSON object from a file."""
    value = read_value(path)
    if not isinstance(value, dict):
        raise CheckpointError("is not a JSON object", subject=str(path), remedy="Get the file again")
    return value


def read_value(path: Path) -> object:
    """Any JSON value from a file."""
    try:
        value: object = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}", subject=str(path), remedy="Check the path") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"is not JSON: {error}", subject=str(path), remedy="Get the file again") from None
    return value
