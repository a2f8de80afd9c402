"""`tokloom bench http`: what HTTP costs: the same requests through a server's streams and through the engine alone."""

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
from attrs import asdict, frozen
from rich.console import Console
from rich.table import Table

from tokloom.api import open_tokenizer
from tokloom.bench.compare import Worker
from tokloom.bench.machine import describe, main_thread_seconds, wait_quiet
from tokloom.bench.workload import CASES, metric, prompts, text_tokens
from tokloom.sdk import CapacityError

_CASE: Final = "conc32"
_SERVE: Final = "from tokloom.serve.cli import main; main()"


@frozen
class Round:
    """One repetition.

    Attributes:
        engine, http: output tokens per second.
        loop_us: processor time of the server's event loop per streamed token, microseconds.
    """

    engine: float
    http: float
    loop_us: float


@click.command("http")
@click.option("--profile", default="builtin:serve", show_default=True)
@click.option("--model", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--dtype", default="bfloat16", show_default=True)
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True)
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Write all of it.")
def command(profile: str, model: Path, dtype: str, threads: int, repeats: int, out: Path | None) -> None:
    """32 streams over HTTP against the engine alone, in turns: 128 tokens for each prompt of 128."""
    tokenizer = open_tokenizer(model)
    stream = text_tokens(lambda text: tokenizer.encode(text, add_special=False))
    sets = [f"engine.threads={threads}", f"model.dtype={dtype}"]
    logs = Path(tempfile.mkdtemp(prefix="tokloom-bench-"))
    settings = [profile, str(model), dtype, str(threads), json.dumps(sets)]
    worker = Worker.start("engine", "tokloom.bench.worker_tokloom", settings, logs / "engine.log")
    server, port = _server(profile, model, sets)
    rounds: list[Round] = []
    try:
        for number in range(repeats + 1):
            asked = prompts(stream, _CASE, f"round {number}")
            found = _round(worker, server.pid, port, asked, logs, engine_first=number % 2 == 0)
            if number:  # the first one warms up
                rounds.append(found)
    finally:
        server.kill()
        server.wait()
        worker.stop()
    Console().print(_table(rounds))
    if out is not None:
        out.write_text(json.dumps({"machine": describe(), "rounds": [asdict(one) for one in rounds]}, indent=1))


def _server(profile: str, model: Path, sets: Sequence[str]) -> tuple["subprocess.Popen[str]", int]:
    """A server on a free port, ready. Raises CapacityError if it ends before."""
    arguments = ["serve", "--profile", profile, "--model", str(model), "--port", "0"]
    arguments += [part for text in sets for part in ("--set", text)]
    server = subprocess.Popen([sys.executable, "-c", _SERVE, *arguments], stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    said: list[str] = []
    for line in server.stderr:
        if "serving" in line:
            return server, int(line.rsplit(":", 1)[1])
        said.append(line)
    raise CapacityError(f"the server ended: {''.join(said)[-500:]}", subject="bench http", remedy="See what it says")


def _round(
    worker: Worker, pid: int, port: int, asked: Sequence[Sequence[int]], logs: Path, *, engine_first: bool
) -> Round:
    tokens = CASES[_CASE].requests * CASES[_CASE].new
    values: dict[str, float] = {}
    for way in ("engine", "http") if engine_first else ("http", "engine"):
        wait_quiet([worker.process.pid, pid])
        if way == "engine":
            values[way] = metric(_CASE, worker.run([list(one) for one in asked], CASES[_CASE].new, logs / "engine.log"))
            continue
        spent, begin = main_thread_seconds(pid), time.perf_counter()
        asyncio.run(_streams(port, asked))
        values[way] = tokens / (time.perf_counter() - begin)
        values["loop"] = (main_thread_seconds(pid) - spent) / tokens * 1e6
    return Round(values["engine"], values["http"], values["loop"])


async def _streams(port: int, asked: Sequence[Sequence[int]]) -> None:
    await asyncio.gather(*(_stream(port, prompt) for prompt in asked))


async def _stream(port: int, prompt: Sequence[int]) -> None:
    """Reads one answer to its end, without looking at more than that: the client shares the processors."""
    new = CASES[_CASE].new
    body: dict[str, Any] = {"prompt": list(prompt), "max_tokens": new, "temperature": 0, "ignore_eos": True}
    data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
        )
        writer.write(head.encode() + b"\r\nconnection: close\r\n\r\n" + data)
        seen = await reader.read()
    finally:
        writer.close()
    if b'"completion_tokens":%d,' % new not in seen:
        raise CapacityError(f"an answer is not whole: {seen[-300:]!r}", subject="bench http")


def _table(rounds: Sequence[Round]) -> Table:
    table = Table(title="32 streams, medians (least to most)")
    for name in ("", "median", "spread"):
        table.add_column(name)
    rows = {
        "engine alone, output tokens/s": [one.engine for one in rounds],
        "over HTTP, output tokens/s": [one.http for one in rounds],
        "ratio": [one.http / one.engine for one in rounds],
        "event loop, µs per streamed token": [one.loop_us for one in rounds],
    }
    for name, values in rows.items():
        table.add_row(name, f"{statistics.median(values):.3g}", f"{min(values):.3g} to {max(values):.3g}")
    return table
