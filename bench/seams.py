"""`tokloom bench seams`: what the loop and its plugin seams cost per step.

First the loop alone, over a model and kernel that do nothing. Then, with a model, decode steps of the composed engine
beside the same model, kernel, codec and argmax called directly: same plugins, same batch, no scheduler, allocator,
composition or events. The sides alternate; the medians of paired differences are reported.
"""

import statistics
import time
from typing import Any

import click
from rich.console import Console

from tokloom.conformance.doubles import offers
from tokloom.core.catalog import Catalog
from tokloom.core.compose import compose
from tokloom.core.engine import EngineCore
from tokloom.core.profile import load_profile
from tokloom.sdk import Request, SamplingParams, TokenSegment


@click.command("seams")
@click.option("--model", help="Also measure the composed engine on this model against direct calls.")
@click.option("--set", "sets", multiple=True, help="Profile override key=value.")
@click.option("--steps", default=200, show_default=True)
@click.option("--sequences", "counts", multiple=True, type=int, default=(1, 32), show_default=True)
def command(model: str | None, sets: tuple[str, ...], steps: int, counts: tuple[int, ...]) -> None:
    """Microseconds per step of the loop, and the share of a real step that the seams take."""
    console = Console()
    for count in counts:
        times = _loop_times(count, steps)
        spread = f"[{min(times):.0f}-{max(times):.0f}]"
        console.print(f"loop over the null model, {count} sequences: {statistics.median(times):.0f} us/step {spread}")
    if model is None:
        return
    for count in counts:
        direct, composed = _paired(model, sets, count, max(8, steps // 5))
        extra = [c - d for c, d in zip(composed, direct, strict=True)]
        base = statistics.median(direct)
        share = statistics.median(extra) / base
        whole = statistics.median(composed)
        console.print(f"{count} sequences: direct {base * 1e3:.2f} ms, composed {whole * 1e3:.2f} ms per step")
        console.print(f"  seams {statistics.median(extra) * 1e6:.0f} us/step, {share:.2%} of the direct step")


def _null_profile() -> dict[str, Any]:
    return {
        "schema": 1,
        "model": {"path": "null"},
        "engine": {"kv_memory": "64MiB", "max_batch_tokens": 256, "max_sequences": 64, "max_model_tokens": 4096},
        "attention": "null",
        "kv": {"allocator": "paged", "codec": "null"},
        "scheduler": "fcfs",
        "weights": "none",
        "ops": "none",
    }


def _fill(core: EngineCore, count: int, tokens: int, prompt: int) -> None:
    """Start `count` sequences and run them past their prompts."""
    for index in range(count):
        ids = [1 + (index * 7 + position) % 50 for position in range(prompt)]
        sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        core.add(Request(request_id=str(index), segments=(TokenSegment(tuple(ids)),), sampling=sampling))
    while len(core.state.running) < count or any(seq.unscheduled > 1 for seq in core.state.running.values()):
        core.step()
    for _ in range(4):
        core.step()


def _loop_times(count: int, steps: int) -> list[float]:
    """Microseconds per step, in blocks of ten steps."""
    core = EngineCore(compose(load_profile(_null_profile(), environment={}), Catalog(extra=offers())))
    _fill(core, count, 4000, 8)
    times = []
    for _ in range(max(1, steps // 10)):
        begin = time.perf_counter()
        for _ in range(10):
            core.step()
        times.append((time.perf_counter() - begin) / 10 * 1e6)
    core.close()
    return times


def _paired(model: str, sets: tuple[str, ...], count: int, steps: int) -> tuple[list[float], list[float]]:
    """Seconds of direct and composed decode steps, alternating."""
    texts = [f"model.path={model}", *sets]
    core = EngineCore(compose(load_profile("builtin:cpu", sets=texts, ignore=("serve",))))
    _fill(core, count, 2 * steps + 64, 64)
    direct, composed = [], []
    for _ in range(steps):
        begin = time.perf_counter()
        core.step()
        composed.append(time.perf_counter() - begin)
        direct.append(_direct(core, count))
    core.close()
    return direct, composed


def _direct(core: EngineCore, count: int) -> float:
    """Seconds of the same work on the rows as they are, called by hand; leaves no trace in the engine."""
    import numpy as np
    import torch

    from tokloom.core.batch import StepRows, segments
    from tokloom.sdk import ForwardBatch, Hidden

    runner, composition = core.runner, core.composition
    rows = np.array([seq.row for seq in core.state.running.values()], dtype=np.int64)
    start = runner.rows.computed[rows]
    indptr = np.arange(count + 1, dtype=np.int32)
    kernel, codec = composition.decode.plugin, composition.codec.plugin
    group = composition.layout.groups[0]
    pools = core.pools.layers(group.id, "main")
    params = composition.model.spec.layers[0].params
    begin = time.perf_counter()
    with torch.inference_mode():
        step = StepRows(rows, start, np.ones(count, dtype=np.int64), indptr, rows, start, start, (), count, 0)
        (batch,) = segments(composition.device, runner.rows, group, step, 0, count, trim=True)
        plan = kernel.plan(batch, params, runner._attend._workspace, capture=False, reuse=None)

        def attention(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            codec.append(layer, k, v, pools[layer], batch.slots)
            out = torch.empty((count, params.q_heads, params.head_v), dtype=q.dtype)
            kernel.run(layer, q, pools[layer], plan, out, None)
            return out

        ids = torch.from_numpy(runner.rows.tokens[rows, start])
        forward = ForwardBatch(ids, torch.from_numpy(start), indptr)
        hidden: Hidden = runner._model.forward(forward, attention, composition.ops.plugin)
        runner._model.logits(hidden.last).argmax(-1).tolist()
    return time.perf_counter() - begin
