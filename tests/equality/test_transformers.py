"""Greedy tokens of the real model equal transformers' on the same weights, in float32."""

from pathlib import Path

import pytest
import torch
from gguf_files import llama_from_gguf

from tokloom import ChatMessage, Engine, GenerateRequest, SamplingParams

TOKENS = 64
LONG = " ".join(f"In the year {1900 + i}, the town of Aldham counted {i * 37 % 991} houses." for i in range(36))
PLAIN = [
    "The capital of France is",
    "Once upon a time",
    "1, 1, 2, 3, 5, 8,",
    "Water boils at",
    "def fibonacci(n):\n    ",
    "class Stack:\n    def __init__(self):\n",
    "import os\n\nfor name in os.listdir('.'):\n",
    "SELECT name, count(*) FROM users WHERE",
    "<html>\n<head>\n<title>",
    "#include <stdio.h>\n\nint main(void) {\n",
    "Der schnelle braune Fuchs",
    "日本の首都は",
    "Привет, как",
    "Ça va très bien, merci. Et",
    "emoji: 🙂🙃🙂🙃",
    LONG,
    LONG[300:] + " The mayor said:",
    "A B C D E F G\nA B C D E F G\nA B C D",
]
CHATS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain gravity to a child.",
    "List three prime numbers.",
    "Translate 'good morning' into Spanish.",
    "Write a Python function that reverses a list.",
]


@pytest.mark.slow
@pytest.mark.model
def test_greedy_tokens_and_logprobs_equal_transformers(smollm2: Path) -> None:
    sampling = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True, logprobs=0)
    requests = [GenerateRequest(prompt=text, raw=True, sampling=sampling) for text in PLAIN]
    requests += [GenerateRequest(messages=[ChatMessage("user", text)], sampling=sampling) for text in CHATS]
    sets = ["model.dtype=float32", "engine.kv_memory=600MiB", "engine.max_batch_tokens=384"]
    with Engine.from_profile("builtin:cpu", model=smollm2, sets=sets) as engine:
        results = engine.generate(requests)
    assert len(results) == 24
    assert max(len(result.prompt_token_ids) for result in results) >= 600
    reference = llama_from_gguf(smollm2)
    for result in results:
        ids = [*result.prompt_token_ids, *result.token_ids]
        with torch.inference_mode():
            rows = reference(torch.tensor([ids[:-1]])).logits[0, len(result.prompt_token_ids) - 1 :]
        best = rows.argmax(-1).tolist()
        for at, (ours, theirs) in enumerate(zip(result.token_ids, best, strict=True)):
            gap = float(rows[at, theirs] - rows[at, ours])
            assert ours == theirs, f"token {at} after {result.prompt_token_ids[:8]}…: {ours}, not {theirs} (gap {gap})"
        wanted = rows.log_softmax(-1).gather(1, torch.tensor(best)[:, None])[:, 0]
        found = torch.tensor([entry.logprob for entry in result.logprobs])
        assert (found - wanted).abs().max() < 1e-3
