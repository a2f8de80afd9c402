"""Answer a few prompts at once and print what each cost.

python examples/script.py MODEL [PROMPT ...]
"""

import sys

from tokloom import Engine, SamplingParams


def main(model: str, prompts: list[str]) -> None:
    sampling = SamplingParams(max_tokens=48, temperature=0.0)
    with Engine.from_profile("builtin:cpu", model=model) as engine:
        for prompt, result in zip(prompts, engine.generate(prompts, sampling), strict=True):
            assert result.usage is not None
            print(f"{prompt}\n  {result.text.strip()}")
            print(f"  {result.usage.output_tokens} tokens, first after {result.usage.ttft * 1000:.0f} ms")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or ["Name three rivers.", "What is the capital of Peru?"])
