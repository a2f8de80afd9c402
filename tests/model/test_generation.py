"""What checkpoints recommend for sampling, and that no token that begins a text comes twice."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_chat import SETS, tiny_chat_model
from tiny_models import edit_json, tiny

from tokloom import ChatMessage, Engine, GenerateRequest, SamplingParams
from tokloom.plugins.models.decoder.family import DecoderFamily
from tokloom.sdk import CheckpointError, GenerationDefaults, ModelSource

SAID = {
    "do_sample": True,
    "temperature": 0.6,
    "top_p": 0.9,
    "top_k": 64,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "max_new_tokens": 77,
    "eos_token_id": [2, 7, 9999],
}


def recommend(folder: Path, **changes: Any) -> GenerationDefaults:
    (folder / "generation_config.json").write_text(json.dumps(changes))
    return DecoderFamily().open(ModelSource(path=folder)).spec.generation


def test_everything_that_generation_config_says(tmp_path: Path) -> None:
    tiny(tmp_path, "llama")
    assert recommend(tmp_path, **SAID) == GenerationDefaults(
        temperature=0.6, top_p=0.9, top_k=64, min_p=0.05, repetition_penalty=1.1, max_tokens=77
    )
    assert DecoderFamily().open(ModelSource(path=tmp_path)).spec.eos_ids == (2, 7)
    assert recommend(tmp_path) == GenerationDefaults()
    assert recommend(tmp_path, do_sample=False, temperature=0.6, top_p=0.5) == GenerationDefaults(temperature=0.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [("temperature", -1), ("top_p", 1.5), ("top_k", "x"), ("min_p", -0.5), ("max_new_tokens", -1), ("top_p", 0.0)],
)
def test_what_makes_no_sense_is_refused_by_name(tmp_path: Path, key: str, value: Any) -> None:
    tiny(tmp_path, "llama")
    with pytest.raises(CheckpointError, match=key) as caught:
        recommend(tmp_path, **{key: value})
    assert "generation_config.json" in str(caught.value)


def test_an_engine_gives_it_and_applies_none_of_it(tmp_path: Path) -> None:
    tiny_chat_model(tmp_path)
    edit_json(tmp_path / "generation_config.json", temperature=0.5, max_new_tokens=5)
    with Engine.from_profile("builtin:cpu", model=tmp_path, sets=SETS) as engine:
        assert engine.default_sampling == SamplingParams(temperature=0.5, max_tokens=5)
        plain = engine.generate([GenerateRequest(prompt="x", sampling=SamplingParams(ignore_eos=True, seed=3))])
        assert len(plain[0].token_ids) == SamplingParams().max_tokens


def test_the_first_token_comes_once(tmp_path: Path) -> None:
    """In raw text, also where the text spells it; in chats whose template writes it; and token ids stay as given."""
    tiny_chat_model(tmp_path)
    edit_json(
        tmp_path / "tokenizer_config.json",
        add_bos_token=True,
        chat_template="{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
    )
    with Engine.from_profile("builtin:cpu", model=tmp_path, sets=SETS) as engine:
        none = SamplingParams(max_tokens=1, temperature=0.0)
        requests = [
            GenerateRequest(prompt="ab", raw=True, sampling=none),
            GenerateRequest(prompt="<bos>ab", raw=True, sampling=none),
            GenerateRequest(messages=[ChatMessage("user", "ab")], sampling=none),
            GenerateRequest(token_ids=[70, 71], sampling=none),
        ]
        found = []
        for request in requests:
            found.append(engine.prompt_ids(engine.add(request)))
            while engine.busy:
                engine.step()
    assert found[0] == found[1] == found[2]
    assert found[0].count(256) == 1
    assert found[0][0] == 256
    assert found[3] == (70, 71)
