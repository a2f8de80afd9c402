"""Gemma 3: what window groups hold, on tiny and on real weights, and what the real model answers."""

from pathlib import Path

import pytest
from tiny_models import random_ids, tiny

from tokloom import Engine, GenerateRequest, SamplingParams


def pages_held(engine: Engine, prompt: list[int]) -> dict[int, tuple[int | None, int]]:
    """Per group its window and the most pages in its table at any step, once what the prompt's step left is dropped."""
    groups = engine.core.composition.layout.groups
    engine.add(
        GenerateRequest(token_ids=prompt, sampling=SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True))
    )
    held: dict[int, tuple[int | None, int]] = {group.id: (group.window, 0) for group in groups}
    drawn = 0
    while engine.busy:
        drawn += sum(len(event.token_ids) for event in engine.step())
        if drawn > 2 and engine.busy:
            rows = engine.core.runner.rows
            for group in groups:
                count = int((rows.tables[group.id, "main"] >= 0).sum(1).max())
                held[group.id] = group.window, max(held[group.id][1], count)
    assert drawn == 6
    return held


def check(held: dict[int, tuple[int | None, int]], page: int, tokens: int) -> None:
    windows = [window for window, _ in held.values()]
    assert None in windows
    assert len(windows) == 2
    for window, count in held.values():
        if window is None:
            assert count >= tokens // page
        else:
            assert 0 < count <= -(-window // page) + 1


@pytest.mark.parametrize("page", [4, 16])
def test_a_window_group_holds_its_window(tmp_path: Path, page: int) -> None:
    tiny(tmp_path, "gemma3_text")
    sets = ["engine.kv_memory=16MiB", "engine.max_sequences=1", f"engine.page_tokens={page}", "engine.depth=0"]
    with Engine.from_profile("builtin:cpu", model=tmp_path, sets=sets) as engine:
        check(pages_held(engine, random_ids(1, 200)), page, 200)


@pytest.mark.model
@pytest.mark.slow
def test_the_real_model_answers_and_holds_its_windows(gemma3: Path) -> None:
    sets = ["engine.kv_memory=128MiB", "engine.max_sequences=1", "engine.depth=0"]
    with Engine.from_profile("builtin:cpu", model=gemma3, sets=sets) as engine:
        sampling = SamplingParams(max_tokens=3, temperature=0.0)
        prompt = "Question: What is the capital of France?\nAnswer:"  # a base model: the file has no chat template
        answer = engine.generate([GenerateRequest(prompt=prompt, raw=True, sampling=sampling)])[0]
        assert "Paris" in answer.text
        page = engine.core.composition.layout.groups[0].page_tokens
        check(pages_held(engine, random_ids(2, 4096, 200_000)), page, 4096)
