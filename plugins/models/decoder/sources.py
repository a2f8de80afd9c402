"""Checkpoints: tensors under Hugging Face's names, from safetensors shards or a GGUF file."""

import hashlib
import json
from pathlib import Path

import torch
from torch import Tensor

from tokloom.plugins.models.decoder.config import Fields, from_gguf, from_hf
from tokloom.plugins.models.decoder.gguf_file import TYPES, GGUFFile
from tokloom.sdk import CheckpointError

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
        if name in self.shapes:
            raise CheckpointError(f"has tensor {name} a second time", subject=str(file), remedy="Remove stale shards")
        self._files[name] = file
        self.shapes[name] = shape
        self.dtypes[name] = _DTYPES.get(dtype, dtype)

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
                tensor: Tensor = file.get_tensor(name)
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
        return _digest(files)


class GGUFCheckpoint:
    """A GGUF file of the llama architecture under Hugging Face's tensor names."""

    def __init__(self, path: Path) -> None:
        self.subject = str(path)
        self.file = GGUFFile(path)
        stored = {name: entry.shape for name, entry in self.file.tensors.items()}
        self.config = from_gguf(Fields(str(path), self.file.metadata), stored)
        self._names = {ours: theirs for theirs in stored if (ours := hf_name(theirs)) is not None}
        self.shapes = {ours: stored[theirs] for ours, theirs in self._names.items()}
        self.dtypes = {ours: TYPES[self.file.tensors[theirs].type][0] for ours, theirs in self._names.items()}

    def read(self, name: str) -> Tensor:
        """A tensor in its stored float dtype, decoded to float32 from block types."""
        stored = self._names[name]
        array = self.file.read(stored)
        if self.dtypes[name] == "BF16":
            tensor = torch.from_numpy(array.copy()).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
        if ".attn_q." in stored:
            return _half_split(tensor, self.config.heads)
        if ".attn_k." in stored:
            return _half_split(tensor, self.config.kv_heads)
        return tensor

    def rope_factors(self) -> Tensor | None:
        if "rope_freqs.weight" not in self.file.tensors:
            return None
        return torch.from_numpy(self.file.read("rope_freqs.weight").copy()).float()

    def digest(self) -> str:
        return _digest([self.file.path])


_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def hf_name(stored: str) -> str | None:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; None for tensors that are no weights."""
    base, dot, suffix = stored.rpartition(".")
    if not dot or base == "rope_freqs":
        return None
    if base in _TOP_NAMES:
        return f"{_TOP_NAMES[base]}.{suffix}"
    pieces = base.split(".")
    if len(pieces) == 3 and pieces[0] == "blk" and pieces[2] in _LAYER_NAMES:
        return f"model.layers.{pieces[1]}.{_LAYER_NAMES[pieces[2]]}.{suffix}"
    return stored


def _half_split(tensor: Tensor, heads: int) -> Tensor:
    """Undo the interleaved order in which this architecture's q and k rows are stored: pairs back to halves."""
    rows = tensor.shape[0]
    if rows % (2 * heads):
        return tensor
    return tensor.view(heads, rows // heads // 2, 2, -1).transpose(1, 2).reshape(tensor.shape)


def _digest(files: list[Path]) -> str:
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
