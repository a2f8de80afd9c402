"""The task `embed` gives transformers' last hidden states, pooled, whatever runs beside it."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from lora_folders import make_adapter, pooled, profile
from tiny_models import random_ids, tiny_llama
from transformers import LlamaForCausalLM

from tokloom import AsyncEngine, Engine, GenerateRequest, SamplingParams
from tokloom.sdk import RequestError


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    folder = tmp_path_factory.mktemp("base")
    return folder, tiny_llama(folder, seed=4, initializer_range=0.1)


def assert_is(found: tuple[float, ...], wanted: Any) -> None:
    assert list(found) == pytest.approx(wanted.tolist(), abs=1e-4)


ENGINES: dict[str, dict[str, Any]] = {
    "one chunk": {},
    "chunks of 5": {"max_batch_tokens": 5, "max_sequences": 3},
    "one row at a time": {"max_batch_tokens": 1, "max_sequences": 1},
    "a step in flight": {"depth": 1, "max_batch_tokens": 13},
    "preemption": {"kv_memory": "360KiB", "max_model_tokens": 56, "max_batch_tokens": 9, "max_sequences": 6},
}


@pytest.mark.parametrize("case", ENGINES)
def test_vectors_equal_transformers_beside_generation(base: tuple[Path, LlamaForCausalLM], case: str) -> None:
    folder, model = base
    rng = random.Random(case)
    shared = random_ids(case, 17)
    requests: list[GenerateRequest] = []
    for number in range(12):
        ids = shared[: rng.randrange(18)] + random_ids(f"{case}{number}", rng.randrange(1, 25))
        if number % 3 == 2:
            sampling = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
            requests.append(GenerateRequest(token_ids=ids, sampling=sampling))
        else:
            pooling = rng.choice(["", "last", "mean"])
            requests.append(
                GenerateRequest(task="embed", token_ids=ids, pooling=pooling, normalize=rng.random() < 0.5)  # type: ignore[arg-type]
            )
    with Engine.from_profile(profile(folder, {}, **ENGINES[case])) as engine:
        results = engine.generate(requests)
        assert engine.core.state.allocator.stats().held_pages == 0
    embedded = [result for result in results if result.embedding]
    assert any(result.usage and result.usage.preemptions for result in embedded) == (case == "preemption")
    for request, result in zip(requests, results, strict=True):
        if request.task == "generate":
            assert (result.finish_reason, len(result.token_ids), result.embedding) == ("length", 12, ())
            continue
        assert (result.finish_reason, result.token_ids, result.text) == ("embedded", (), "")
        assert result.usage is not None
        assert result.usage.prompt_tokens == len(result.prompt_token_ids)
        wanted = pooled(model, result.prompt_token_ids, request.pooling or "last", normalize=request.normalize)
        assert_is(result.embedding, wanted)


def test_the_last_row_takes_prefixes_from_the_cache_and_the_mean_does_not(base: tuple[Path, LlamaForCausalLM]) -> None:
    folder, model = base
    ids = random_ids("hits", 40)
    with Engine.from_profile(profile(folder, {})) as engine:
        for pooling, hit in (("mean", 0), ("last", 32), ("mean", 0), ("last", 32)):
            (result,) = engine.generate(GenerateRequest(task="embed", token_ids=ids, pooling=pooling))  # type: ignore[arg-type]
            assert result.usage is not None
            assert result.usage.hit_tokens == hit
            assert_is(result.embedding, pooled(model, ids, pooling, normalize=True))


def test_a_vector_is_the_adapters(base: tuple[Path, LlamaForCausalLM], tmp_path: Path) -> None:
    folder, model = base
    merged = make_adapter(model, tmp_path / "a", 1)
    ids = random_ids("adapter", 30)
    with Engine.from_profile(profile(folder, {"a": tmp_path / "a"})) as engine:
        requests = [
            GenerateRequest(task="embed", token_ids=ids, adapter=name, pooling="mean", normalize=False)
            for name in ("a", "")
        ]
        adapted, plain = engine.generate(requests)
    assert_is(adapted.embedding, pooled(merged, ids, "mean", normalize=False))
    assert_is(plain.embedding, pooled(model, ids, "mean", normalize=False))


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False, "word_embedding_dimension": 108}
LAST = {"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}


@pytest.mark.parametrize(
    ("modules", "pooling", "allowed"),
    [
        (None, None, ("last", "mean")),
        ([TRANSFORMER, POOLING, NORMALIZE], MEAN, ("mean",)),
        ([TRANSFORMER, POOLING], LAST, ("last",)),
        ([TRANSFORMER, POOLING], {"pooling_mode": "mean"}, ("mean",)),
        (None, LAST, ("last",)),
        ([TRANSFORMER, POOLING], {"pooling_mode_cls_token": True}, ()),
        ([TRANSFORMER, POOLING], {**MEAN, "pooling_mode_lasttoken": True}, ()),
        ([TRANSFORMER, POOLING, DENSE], MEAN, ()),
    ],
)
def test_a_folder_that_fixes_its_pooling_is_obeyed(
    tmp_path: Path, modules: Any, pooling: Any, allowed: tuple[str, ...]
) -> None:
    model = tiny_llama(tmp_path, num_hidden_layers=1)
    if modules is not None:
        write(tmp_path / "modules.json", modules)
    if pooling is not None:
        write(tmp_path / "1_Pooling" / "config.json", pooling)
    ids = random_ids("folder", 9)
    with Engine.from_profile(profile(tmp_path, {})) as engine:
        for name in ("last", "mean"):
            request = GenerateRequest(task="embed", token_ids=ids, pooling=name)
            if name in allowed:
                assert_is(engine.generate(request)[0].embedding, pooled(model, ids, name, normalize=True))
            else:
                with pytest.raises(RequestError, match="pooling is" if allowed else "gives no embeddings"):
                    engine.generate(request)
        if allowed:
            (result,) = engine.generate(GenerateRequest(task="embed", token_ids=ids))
            assert_is(result.embedding, pooled(model, ids, allowed[0], normalize=True))


def test_the_async_engine_gives_vectors_and_names_adapters(base: tuple[Path, LlamaForCausalLM], tmp_path: Path) -> None:
    folder, model = base
    make_adapter(model, tmp_path / "a", 1)
    asyncio.run(asyncio.wait_for(embed_and_ask_for_an_unknown_adapter(folder, model, tmp_path / "a"), 60))


async def embed_and_ask_for_an_unknown_adapter(folder: Path, model: LlamaForCausalLM, adapter: Path) -> None:
    async with await AsyncEngine.from_profile(profile(folder, {"a": adapter})) as engine:
        assert engine.adapters == ("a",)
        events = [event async for event in engine.generate(GenerateRequest(task="embed", token_ids=[1, 2, 3]))]
        assert [event.finish_reason for event in events] == ["embedded"]
        assert_is(events[0].embedding, pooled(model, [1, 2, 3], "last", normalize=True))
        with pytest.raises(RequestError, match="no adapter is called 'b'") as caught:
            await anext(engine.generate(GenerateRequest(token_ids=[1], adapter="b")))
        assert "a" in str(caught.value.remedy)
