"""Damaged checkpoints end in a CheckpointError that names the file and what is wrong; nothing else, and soon."""

import contextlib
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_files import write_gguf
from safetensors.torch import load_file, save_file
from tiny_models import edit_json, tiny_llama

from tokloom.plugins.models.decoder.family import DecoderFamily
from tokloom.plugins.quant.weights.dense.method import DenseWeights
from tokloom.sdk import CheckpointError, ModelSource

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
TENSORS = "model.safetensors"


def load(path: Path) -> None:
    model = DecoderFamily().open(ModelSource(path=path, dtype="float32"))
    _ = model.spec
    model.load(DenseWeights(), "cpu", lambda *_: None)


def retensor(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / TENSORS)
    change(tensors)
    save_file(tensors, folder / TENSORS)


Q = "model.layers.1.self_attn.q_proj.weight"
FOLDER_DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "config.json"),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), "config.json"),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), "not a JSON object"),
    "other architecture": (lambda f: edit_json(f / "config.json", architectures=["BertModel"]), "BertModel"),
    "no architecture": (lambda f: edit_json(f / "config.json", architectures=...), "architectures"),
    "no layers": (lambda f: edit_json(f / "config.json", num_hidden_layers=...), "num_hidden_layers is missing"),
    "zero layers": (lambda f: edit_json(f / "config.json", num_hidden_layers=0), "num_hidden_layers is 0"),
    "text for a size": (lambda f: edit_json(f / "config.json", hidden_size="32"), "hidden_size"),
    "true for a size": (lambda f: edit_json(f / "config.json", hidden_size=True), "hidden_size"),
    "negative eps": (lambda f: edit_json(f / "config.json", rms_norm_eps=-1.0), "rms_norm_eps"),
    "other activation": (lambda f: edit_json(f / "config.json", hidden_act="gelu"), "hidden_act"),
    "heads do not divide": (lambda f: edit_json(f / "config.json", num_key_value_heads=3), "num_key_value_heads"),
    "odd head": (lambda f: edit_json(f / "config.json", head_dim=15), "head_dim"),
    "unknown rope": (
        lambda f: edit_json(f / "config.json", rope_parameters={"rope_type": "longrope", "rope_theta": 1.0}),
        "longrope",
    ),
    "rope without factor": (
        lambda f: edit_json(f / "config.json", rope_parameters={"rope_type": "linear", "rope_theta": 1.0}),
        "factor is missing",
    ),
    "eos outside": (lambda f: edit_json(f / "config.json", bos_token_id=9999), "outside the vocabulary"),
    "quantised": (lambda f: edit_json(f / "config.json", quantization_config={"quant_method": "gptq"}), "quantization"),
    "no weights": (lambda f: (f / TENSORS).unlink(), TENSORS),
    "empty weights": (lambda f: (f / TENSORS).write_bytes(b""), "damaged header"),
    "huge header": (lambda f: (f / TENSORS).write_bytes(struct.pack("<Q", 1 << 60) + b"{}"), "damaged header"),
    "truncated": (lambda f: (f / TENSORS).write_bytes((f / TENSORS).read_bytes()[:-5000]), "truncated"),
    "missing tensor": (lambda f: retensor(f, lambda t: t.__delitem__(Q)), f"{Q} is missing"),
    "extra tensor": (
        lambda f: retensor(f, lambda t: t.update({"model.extra.weight": torch.zeros(2)})),
        "model.extra.weight is not part",
    ),
    "misshapen tensor": (
        lambda f: retensor(f, lambda t: t.update({Q: torch.zeros(7, 32)})),
        r"\[7, 32\], expected \[32, 32\]",
    ),
    "integer tensor": (lambda f: retensor(f, lambda t: t.update({Q: t[Q].to(torch.int32)})), "dtype I32"),
    "missing shard": (
        lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}'),
        "gone.safetensors",
    ),
    "shard outside": (
        lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../x.safetensors"}}'),
        "x.safetensors",
    ),
    "index without map": (lambda f: (f / "model.safetensors.index.json").write_text("{}"), "weight_map"),
}


@pytest.mark.parametrize("damage", FOLDER_DAMAGE)
def test_a_damaged_folder_is_explained(tmp_path: Path, damage: str) -> None:
    tiny_llama(tmp_path, **SMALL)
    apply, expected = FOLDER_DAMAGE[damage]
    apply(tmp_path)
    with pytest.raises(CheckpointError, match=expected) as caught:
        load(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_an_unknown_dtype_is_explained(tmp_path: Path) -> None:
    tiny_llama(tmp_path, **SMALL)
    with pytest.raises(CheckpointError, match="int8"):
        DecoderFamily().open(ModelSource(path=tmp_path, dtype="int8"))


def test_a_path_that_is_not_there_is_explained(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        DecoderFamily().open(ModelSource(path=tmp_path / "nothing.gguf"))


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    model = tiny_llama(tmp_path, num_hidden_layers=1, vocab_size=32, **SMALL)
    write_gguf(tmp_path / "m.gguf", model, "Q8_0")
    return tmp_path / "m.gguf"


def patched(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))


GGUF_DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "wrong magic": (lambda p: patched(p, b"GGUF", b"GGML"), "magic"),
    "version 1": (lambda p: patched(p, b"GGUF\x03", b"GGUF\x01"), "version 1"),
    "empty": (lambda p: p.write_bytes(b""), "cannot be read"),
    "header cut": (lambda p: p.write_bytes(p.read_bytes()[:100]), "inside its header"),
    "data cut": (lambda p: p.write_bytes(p.read_bytes()[:-2000]), "truncated: tensor"),
    "other architecture": (lambda p: patched(p, b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0bloom"), "bloom"),
    "renamed tensor": (lambda p: patched(p, b"blk.0.attn_q.weight", b"blk.0.attn_z.weight"), "attn_z|q_proj"),
    "renamed key": (lambda p: patched(p, b"llama.block_count", b"llama.clock_bount"), "block_count is missing"),
    "huge count": (
        lambda p: p.write_bytes(p.read_bytes()[:8] + struct.pack("<Q", 1 << 62) + p.read_bytes()[16:]),
        "claims",
    ),
}


@pytest.mark.parametrize("damage", GGUF_DAMAGE)
def test_a_damaged_gguf_is_explained(tiny_gguf: Path, damage: str) -> None:
    apply, expected = GGUF_DAMAGE[damage]
    load(tiny_gguf)
    apply(tiny_gguf)
    with pytest.raises(CheckpointError, match=expected) as caught:
        load(tiny_gguf)
    assert "m.gguf" in str(caught.value)


def test_an_unsupported_type_is_named(tmp_path: Path) -> None:
    import gguf
    import numpy as np

    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    packed = np.zeros((2, 136), dtype=np.uint8)
    writer.add_tensor("token_embd.weight", packed, raw_dtype=gguf.GGMLQuantizationType.IQ4_XS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"token_embd\.weight has type IQ4_XS"):
        load(path)


@pytest.mark.parametrize("seed", range(6))
def test_random_damage_to_a_gguf_is_survived(tiny_gguf: Path, seed: int) -> None:
    rng = random.Random(seed)
    original = tiny_gguf.read_bytes()
    for _ in range(60):
        data = bytearray(original)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(min(len(data), 3000))] = rng.randrange(256)
        tiny_gguf.write_bytes(bytes(data[: rng.choice([len(data), rng.randrange(len(data))])]))
        try:
            load(tiny_gguf)
        except CheckpointError:
            continue


@pytest.mark.parametrize("seed", range(4))
def test_random_damage_to_a_folder_is_survived(tmp_path: Path, seed: int) -> None:
    tiny_llama(tmp_path, num_hidden_layers=1, vocab_size=32, **SMALL)
    rng = random.Random(seed)
    files = {name: (tmp_path / name).read_bytes() for name in (TENSORS, "config.json")}
    for _ in range(40):
        name = rng.choice(list(files))
        data = bytearray(files[name])
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(min(len(data), 2500))] = rng.randrange(256)
        (tmp_path / name).write_bytes(bytes(data[: rng.choice([len(data), rng.randrange(len(data))])]))
        with contextlib.suppress(CheckpointError):
            load(tmp_path)
        (tmp_path / name).write_bytes(files[name])


def test_json_that_is_deep_is_refused(tmp_path: Path) -> None:
    tiny_llama(tmp_path, **SMALL)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError):
        load(tmp_path)
