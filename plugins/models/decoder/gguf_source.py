"""GGUFCheckpoint: a GGUF file under Hugging Face's tensor names."""

from pathlib import Path
from typing import Final

import torch
from attrs import frozen
from torch import Tensor

from tokloom.plugins.models.decoder.fields import Fields
from tokloom.plugins.models.decoder.gguf_config import from_gguf
from tokloom.plugins.models.decoder.gguf_file import TYPES, GGUFFile
from tokloom.plugins.models.decoder.sources import file_digest

_LAYER_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
#: in place of the former, where a layer has norms on both sides of attention and MLP
_POST_NORMS: Final = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
#: all experts of a layer in one tensor `[E, out, in]`
_EXPERT_NAMES: Final = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
_TOP_NAMES: Final = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


@frozen
class _Stored:
    """Where a tensor is: its name in the file, and which part of the first axis, or -1 for all."""

    name: str
    part: int = -1


class GGUFCheckpoint:
    """A GGUF file.

    `shapes` and `dtypes` are known by name without reading a tensor.
    """

    def __init__(self, path: Path) -> None:
        self.subject = str(path)
        self.file = GGUFFile(path)
        stored = {name: entry.shape for name, entry in self.file.tensors.items()}
        fields = Fields(str(path), self.file.metadata)
        self.config = from_gguf(fields, stored)
        self._interleaved = fields.get("general.architecture", str) == "llama"
        self._names: dict[str, _Stored] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, str] = {}
        for name, shape in stored.items():
            self._note(name, shape)

    def _note(self, stored: str, shape: tuple[int, ...]) -> None:
        pieces = stored.split(".")
        if len(pieces) == 4 and pieces[0] == "blk" and pieces[2] in _EXPERT_NAMES and len(shape) == 3:
            for part in range(shape[0]):
                name = f"model.layers.{pieces[1]}.mlp.experts.{part}.{_EXPERT_NAMES[pieces[2]]}.{pieces[3]}"
                self._place(name, _Stored(stored, part), shape[1:])
            return
        whole = hf_name(stored, self.config.post_norms)
        if whole is not None:
            self._place(whole, _Stored(stored), shape)

    def _place(self, name: str, where: _Stored, shape: tuple[int, ...]) -> None:
        self._names[name] = where
        self.shapes[name] = shape
        self.dtypes[name] = TYPES[self.file.tensors[where.name].type][0]

    def read(self, name: str) -> Tensor:
        """A tensor in its stored float dtype, decoded to float32 from block types."""
        where = self._names[name]
        array = self.file.read(where.name, where.part)
        if self.dtypes[name] == "BF16":
            tensor = torch.from_numpy(array.copy()).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
        if self._interleaved and ".attn_q." in where.name:
            return _half_split(tensor, self.config.heads)
        if self._interleaved and ".attn_k." in where.name:
            return _half_split(tensor, self.config.kv_heads)
        return tensor

    def rope_factors(self) -> Tensor | None:
        """Divisors of the rotary frequencies that the file carries."""
        if "rope_freqs.weight" not in self.file.tensors:
            return None
        return torch.from_numpy(self.file.read("rope_freqs.weight").copy()).float()

    def digest(self) -> str:
        """Of the file's name, size and time."""
        return file_digest([self.file.path])


def hf_name(stored: str, post_norms: bool = False) -> str | None:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; None for tensors that are no weights."""
    base, dot, suffix = stored.rpartition(".")
    if not dot or base == "rope_freqs":
        return None
    if base in _TOP_NAMES:
        return f"{_TOP_NAMES[base]}.{suffix}"
    names = {**_LAYER_NAMES, **_POST_NORMS} if post_norms else _LAYER_NAMES
    pieces = base.split(".")
    if len(pieces) == 3 and pieces[0] == "blk" and pieces[2] in names:
        return f"model.layers.{pieces[1]}.{names[pieces[2]]}.{suffix}"
    return stored


def _half_split(tensor: Tensor, heads: int) -> Tensor:
    """Undo the interleaved order in which llama's q and k rows are stored: pairs back to halves."""
    rows = tensor.shape[0]
    if rows % (2 * heads):
        return tensor
    return tensor.view(heads, rows // heads // 2, 2, -1).transpose(1, 2).reshape(tensor.shape)
