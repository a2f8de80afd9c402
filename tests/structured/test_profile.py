"""The shipped profiles allow the plugin where its library is, and serve without it where it is not."""

import json
import sys
from pathlib import Path

import pytest
from tiny_chat import SETS, tiny_chat_model
from tiny_models import tiny_llama

from tokloom import Engine, GenerateRequest, SamplingParams
from tokloom.core.catalog import Catalog
from tokloom.core.compose import Composer
from tokloom.core.profile import load_profile
from tokloom.sdk import GrammarSpec, RequestError

SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}


def ask(model: Path) -> str:
    sampling = SamplingParams(max_tokens=20, temperature=1.0, grammar=GrammarSpec("json_schema", json.dumps(SCHEMA)))
    with Engine.from_profile("builtin:cpu", model=str(model), sets=SETS) as engine:
        (result,) = engine.generate(GenerateRequest(prompt="x", sampling=sampling))
    assert result.finish_reason == "stop"
    return result.text


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_chat_model(tmp_path_factory.mktemp("tiny"))


def test_the_default_profile_takes_a_schema(model: Path) -> None:
    assert ask(model) in ('{"a":1}', '{"a":2}')


def test_without_the_library_only_such_requests_are_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    for name in [name for name in sys.modules if name.startswith("tokloom.plugins.logits.llguidance.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(RequestError, match=r"takes syntax 'json_schema'. Allowed: none"):
        ask(model)
    with Engine.from_profile("builtin:cpu", model=str(model), sets=SETS) as engine:
        assert engine.generate("x", SamplingParams(max_tokens=2))[0].finish_reason in ("length", "stop")


def test_a_model_without_a_tokenizer_is_served_without_grammars(tmp_path: Path) -> None:
    tiny_llama(tmp_path, vocab_size=64, head_dim=16, hidden_size=32, intermediate_size=32,
               num_attention_heads=2, num_key_value_heads=1)  # fmt: skip
    profile = {"schema": 1, "extends": "builtin:cpu", "model": {"path": str(tmp_path), "dtype": "float32"},
               "engine": {"kv_memory": "4MiB"}}  # fmt: skip
    composer = Composer(load_profile(profile, environment={}), Catalog())
    made = composer.compose()
    assert dict(made.syntaxes) == {}
    assert any("has no tokenizer" in reason for reason in composer.explanation.downgrades)
    composer.close()
