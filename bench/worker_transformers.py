"""A worker process around transformers' `generate` (static batch, greedy, SDPA attention). Reads JSON commands from
standard input, answers with JSON lines.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path


def main(model: str, dtype: str, threads: int) -> None:
    """Serve commands `{"prompts": [[id, …], …], "new": n}` until the input ends."""
    import torch
    from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList

    torch.set_num_threads(threads)
    path = Path(model)
    where = {"gguf_file": path.name} if path.is_file() else {}
    folder = str(path.parent if path.is_file() else path)
    net = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation="sdpa", **where)
    net.requires_grad_(False)
    net.generation_config.eos_token_id = None
    net.generation_config.pad_token_id = 0

    class Clock(StoppingCriteria):
        def __init__(self) -> None:
            self.times: list[float] = []

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: object) -> torch.Tensor:
            self.times.append(time.perf_counter())
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    def generate(prompts: Sequence[Sequence[int]], new: int) -> dict[str, list[float]]:
        ids = torch.tensor(prompts)
        clock = Clock()
        begin = time.perf_counter()
        with torch.inference_mode():
            out = net.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
                stopping_criteria=StoppingCriteriaList([clock]),
            )
        if out.shape[1] != ids.shape[1] + new:
            raise RuntimeError(f"asked for {new} tokens, got {out.shape[1] - ids.shape[1]}")
        count = len(prompts)
        return {"first": [clock.times[0] - begin] * count, "last": [clock.times[-1] - begin] * count}

    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(generate(command["prompts"], command["new"])), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
