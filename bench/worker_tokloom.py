"""A worker process around a Tokloom engine. Reads JSON commands from standard input, answers with JSON lines."""

import json
import sys
import time
from collections.abc import Sequence

from tokloom import Engine, GenerateRequest, SamplingParams


def main(profile: str, model: str, dtype: str, threads: int, overrides: Sequence[str]) -> None:
    """Serve commands `{"prompts": [[id, …], …], "new": n}` until the input ends."""
    import torch

    torch.set_num_threads(threads)
    sets = [f"engine.threads={threads}", f"model.dtype={dtype}", *overrides]
    engine = Engine.from_profile(profile, model=model, sets=sets)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(generate(engine, command["prompts"], command["new"])), flush=True)


def generate(engine: Engine, prompts: Sequence[Sequence[int]], new: int) -> dict[str, list[float]]:
    """Greedy, end tokens ignored; seconds of each request's first and last token."""
    sampling = SamplingParams(max_tokens=new, temperature=0.0, ignore_eos=True)
    begin = time.perf_counter()
    ids = [engine.add(GenerateRequest(token_ids=prompt, sampling=sampling)) for prompt in prompts]
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    counts = dict.fromkeys(ids, 0)
    while len(last) < len(ids):
        for event in engine.step():
            now = time.perf_counter() - begin
            counts[event.request_id] += len(event.token_ids)
            if event.token_ids:
                first.setdefault(event.request_id, now)
            if event.finish_reason is not None:
                last[event.request_id] = now
    if any(count != new for count in counts.values()):
        raise RuntimeError(f"asked for {new} tokens, got {sorted(set(counts.values()))}")
    return {"first": [first[i] for i in ids], "last": [last[i] for i in ids]}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), json.loads(sys.argv[5]))
