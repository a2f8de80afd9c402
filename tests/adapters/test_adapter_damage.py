"""Adapters that do not fit or cannot be computed end in an error that names file and tensor, or the profile's line."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lora_folders import make_adapter, profile
from safetensors.torch import load_file, save_file
from tiny_models import edit_json, tiny_llama

from tokloom import Engine
from tokloom.plugins.models.decoder.adapters import Adapters
from tokloom.plugins.models.decoder.family import DecoderFamily, DecoderModel
from tokloom.plugins.models.decoder.loading import linear_descs
from tokloom.sdk import CheckpointError, ModelSource, ProfileError

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "num_hidden_layers": 2,
}
WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
DOWN = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and a sound adapter."""
    root = tmp_path_factory.mktemp("damage")
    base = tiny_llama(root / "model", **SMALL)
    make_adapter(base, root / "adapter", 0)
    return root / "model", root / "adapter"


def open_model(path: Path) -> DecoderModel:
    return DecoderFamily().open(ModelSource(path=path, dtype="float32"))


def retensor(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def config(**changes: Any) -> Callable[[Path], object]:
    return lambda folder: edit_json(folder / CONFIG, **changes)


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    return lambda folder: retensor(folder, change)


def cut(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: len(data) // 2])


DAMAGE: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "no config": (lambda f: (f / CONFIG).unlink(), CONFIG, "cannot be read"),
    "config is no JSON": (lambda f: (f / CONFIG).write_text("{"), CONFIG, "is not JSON"),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), "", "has no adapter_model.safetensors"),
    "weights are cut": (cut, WEIGHTS, "is damaged"),
    "weights are text": (lambda f: (f / WEIGHTS).write_text("hello" * 9), WEIGHTS, "is damaged"),
    "missing": (tensors(lambda t: t.pop(DOWN)), WEIGHTS, f"tensor {DOWN} is missing"),
    "extra": (tensors(lambda t: t.update(x=torch.ones(1))), WEIGHTS, "tensor x is not part of this adapter"),
    "misshapen": (tensors(lambda t: t.update({DOWN: torch.ones(4, 31)})), WEIGHTS, r"\[4, 31\], expected \[4, 32\]"),
    "integers": (
        tensors(lambda t: t.update({DOWN: torch.ones(4, 32, dtype=torch.int8)})),
        WEIGHTS,
        f"{DOWN} has dtype I8",
    ),
    "another rank": (config(r=5), WEIGHTS, r"has shape \[4, 32\], expected \[5, 32\]"),
    "another kind": (config(peft_type="IA3"), CONFIG, "peft_type"),
    "DoRA": (config(use_dora=True), CONFIG, "use_dora is True: weight decomposition"),
    "modules to save": (config(modules_to_save=["lm_head"]), CONFIG, "modules_to_save"),
    "biases": (config(bias="all"), CONFIG, "bias is 'all'"),
    "lora biases": (config(lora_bias=True), CONFIG, "lora_bias"),
    "trained tokens": (config(trainable_token_indices=[1]), CONFIG, "trainable_token_indices"),
    "head": (config(target_modules=["q_proj", "lm_head"]), CONFIG, "names lm_head"),
    "embedding": (config(target_modules=["embed_tokens"]), CONFIG, "names model.embed_tokens"),
    "no target": (config(target_modules=["query"]), CONFIG, "names no linear layer"),
    "empty targets": (config(target_modules=[]), CONFIG, "target_modules"),
    "targets are numbers": (config(target_modules=[1]), CONFIG, "target_modules"),
    "targets are no expression": (config(target_modules="(q_proj"), CONFIG, "no regular expression"),
    "rank is text": (config(r="4"), CONFIG, "r is '4'"),
    "rank is zero": (config(r=0), CONFIG, "r is 0"),
    "rank is true": (config(r=True), CONFIG, "r is True"),
    "alpha is missing": (config(lora_alpha=...), CONFIG, "lora_alpha"),
    "rank pattern is a list": (config(rank_pattern=[1]), CONFIG, "rank_pattern"),
    "rank of a pattern": (config(rank_pattern={"q_proj": -1}), CONFIG, "rank_pattern.q_proj"),
    "pattern is no expression": (config(alpha_pattern={"(": 1}), CONFIG, "alpha_pattern"),
    "layers are text": (config(layers_to_transform="1"), CONFIG, "layers_to_transform"),
    "rslora is text": (config(use_rslora="yes"), CONFIG, "use_rslora"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_wrong_is_named(folders: tuple[Path, Path], tmp_path: Path, name: str) -> None:
    damage, file, words = DAMAGE[name]
    model, sound = folders
    shutil.copytree(sound, tmp_path / "a")
    assert open_model(model).open_adapter(tmp_path / "a").rank == 4
    damage(tmp_path / "a")
    with pytest.raises(CheckpointError, match=words) as caught:
        open_model(model).open_adapter(tmp_path / "a")
    assert str(caught.value.subject).endswith(file or "a")
    assert caught.value.remedy


def test_an_adapter_of_another_model_is_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    tiny_llama(tmp_path, **{**SMALL, "hidden_size": 48})
    with pytest.raises(CheckpointError, match=r"expected \[4, 48\]"):
        open_model(tmp_path).open_adapter(folders[1])


def test_the_digest_is_of_the_content(folders: tuple[Path, Path], tmp_path: Path) -> None:
    model, sound = folders
    shutil.copytree(sound, tmp_path / "a")
    info = open_model(model).open_adapter(sound)
    assert open_model(model).open_adapter(tmp_path / "a") == info
    assert info.targets == ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
    retensor(tmp_path / "a", lambda t: t[DOWN].add_(1e-3))
    assert open_model(model).open_adapter(tmp_path / "a").digest != info.digest
    shutil.rmtree(tmp_path / "a")
    shutil.copytree(sound, tmp_path / "a")
    edit_json(tmp_path / "a" / CONFIG, lora_alpha=9)
    assert open_model(model).open_adapter(tmp_path / "a").digest != info.digest


def test_its_memory_is_what_is_announced(folders: tuple[Path, Path]) -> None:
    model, sound = folders
    sections = profile(model, {"a": sound, "b": sound})
    with Engine.from_profile(sections) as engine, Engine.from_profile(profile(model, {})) as plain:
        info = engine.core.composition.adapters["a"].info
        held = [core.runner._model.nbytes for core in (engine.core, plain.core)]
    assert held[0] - held[1] == info.nbytes > 0


def test_a_layer_that_cannot_be_adapted_is_named_and_not_left_out(folders: tuple[Path, Path]) -> None:
    model, sound = folders
    adapters = Adapters(linear_descs(open_model(model)._checkpoint.config, "float32"), torch.float32, "cpu")
    with pytest.raises(CheckpointError, match=r"adapters of layers\.\d\.\w+ are not supported"):
        adapters.load(sound, ())
    assert adapters.nbytes == 0


def refusal(sections: dict[str, Any]) -> str:
    with pytest.raises(ProfileError) as caught:
        Engine.from_profile(sections)
    return str(caught.value)


def test_the_profile_is_blamed_for_its_lines(folders: tuple[Path, Path], tmp_path: Path) -> None:
    model, sound = folders
    text = refusal(profile(model, {"gone": tmp_path / "gone", "a": sound}))
    assert "adapters.gone" in text
    assert "does not exist" in text
    assert "adapters.a" not in text
    text = refusal(profile(model, {"a": sound, "b": sound}, max_adapters=1))
    assert "2 adapters are named and engine.max_adapters is 1" in text
    assert "its rank is 4 and engine.max_adapter_rank is 3" in refusal(profile(model, {"a": sound}, max_adapter_rank=3))
