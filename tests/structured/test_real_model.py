"""Two hundred schemas, a real model: every output is an instance of its schema."""

import json
import random
from pathlib import Path
from typing import Any, Final

import pytest
from jsonschema import Draft202012Validator
from schema_maker import make_schema

from tokloom import ChatMessage, Engine, GenerateRequest, SamplingParams
from tokloom.sdk import GrammarSpec

pytestmark = [pytest.mark.model, pytest.mark.slow]

LEVELS: Final = 10
EACH: Final = 20
SETS: Final[dict[str, Any]] = {
    "engine.kv_memory": "256MiB",
    "engine.max_batch_tokens": 256,
    "engine.max_model_tokens": 1024,
}


def wanted(schema: dict[str, Any], seed: int, **options: Any) -> GenerateRequest:
    sampling = SamplingParams(
        max_tokens=640,
        temperature=random.Random(seed).choice([0.0, 0.7, 1.0, 1.5]),
        seed=seed,
        grammar=GrammarSpec("json_schema", json.dumps(schema)),
        **options,
    )
    return GenerateRequest(messages=[ChatMessage("user", "Describe a book as JSON.")], sampling=sampling)


def test_two_hundred_schemas_are_kept_by_a_real_model(smollm2: Path) -> None:
    schemas = [make_schema(seed, level) for level in range(LEVELS) for seed in range(EACH)]
    assert len(schemas) == 200
    for schema in schemas:
        Draft202012Validator.check_schema(schema)
    with Engine.from_profile("builtin:cpu", model=str(smollm2), **SETS) as engine:
        results = engine.generate(wanted(schema, index) for index, schema in enumerate(schemas))
    for index, (schema, result) in enumerate(zip(schemas, results, strict=True)):
        shown = f"{json.dumps(schema)}\n{result.text}"
        assert result.finish_reason == "stop", f"schema {index} ends with {result.finish_reason}: {shown}"
        assert Draft202012Validator(schema).is_valid(json.loads(result.text)), f"schema {index}: {shown}"


def test_drafts_change_nothing_under_a_grammar(smollm2: Path) -> None:
    """Greedy and drawn, chains of drafts from the text's own history."""
    schemas = [make_schema(seed, level) for level in (3, 6, 9) for seed in (1, 2)]
    texts = []
    for speculation in ("off", "ngram"):
        with Engine.from_profile("builtin:cpu", model=str(smollm2), speculation=speculation, **SETS) as engine:
            results = engine.generate(wanted(schema, index) for index, schema in enumerate(schemas))
            texts.append([result.text for result in results])
            if speculation == "ngram":
                assert sum(result.usage.accepted for result in results if result.usage) > 0
    assert texts[0] == texts[1]
