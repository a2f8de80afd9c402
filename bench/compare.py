"""`tokloom bench compare`: the same workload on Tokloom and on other engines, alternating, in one run."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from attrs import asdict, define, field, frozen
from rich.console import Console
from rich.table import Table

from tokloom.bench.machine import ForeignLoad, peak_memory_mb, wait_quiet
from tokloom.bench.workload import CASES, Case, Timing, metric, prompts, text_tokens


@define
class Worker:
    """An engine in a process of its own, driven over pipes. Only one worker computes at a time."""

    name: str
    process: "subprocess.Popen[str]"

    @classmethod
    def start(cls, name: str, module: str, arguments: Sequence[str], log: Path) -> "Worker":
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
        )
        worker = cls(name, process)
        worker._read(log)
        return worker

    def run(self, batch: Sequence[Sequence[int]], new: int, log: Path) -> Timing:
        """Generate `new` tokens after each prompt, all submitted at once."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"prompts": batch, "new": new}) + "\n")
        self.process.stdin.flush()
        answer = self._read(log)
        return Timing(tuple(answer["first"]), tuple(answer["last"]))

    def _read(self, log: Path) -> dict[str, list[float]]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise click.ClickException(f"worker {self.name} ended early; see {log}")
        answer: dict[str, list[float]] = json.loads(line)
        return answer

    def stop(self) -> int:
        """Peak memory of the process in MB, which ends."""
        peak = peak_memory_mb(self.process.pid)
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)
        return peak


@frozen
class Row:
    """One engine in one case: the number of each repetition, and how much of the machine others used meanwhile."""

    case: str
    engine: str
    values: list[float] = field(factory=list)
    foreign: list[float] = field(factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)


@click.command("compare")
@click.option("--model", required=True, help="A Hugging Face folder or a .gguf file.")
@click.option("--profile", default="builtin:cpu", show_default=True)
@click.option("--set", "overrides", multiple=True, help="Profile override key=value for Tokloom.")
@click.option("--peer", "peers", multiple=True, default=("transformers",), show_default=True)
@click.option("--dtype", default="bfloat16", show_default=True)
@click.option("--threads", default=os.cpu_count() or 1, show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("--case", "cases", multiple=True, type=click.Choice(list(CASES)), default=tuple(CASES))
@click.option("--tokens", type=click.Path(exists=True, path_type=Path), help="JSON list of ids to cut prompts from.")
@click.option("--out", type=click.Path(path_type=Path), help="Write all numbers as JSON.")
def command(
    model: str,
    profile: str,
    overrides: tuple[str, ...],
    peers: tuple[str, ...],
    dtype: str,
    threads: int,
    repeats: int,
    cases: tuple[Case, ...],
    tokens: Path | None,
    out: Path | None,
) -> None:
    """Measure Tokloom beside other engines on the same weights, alternating after every repetition."""
    console = Console()
    stream = text_tokens(_tokenizer(model), tokens)
    logs = Path(os.environ.get("TMPDIR", "/tmp"))
    settings = [profile, model, dtype, str(threads), json.dumps(list(overrides))]
    workers = [Worker.start("tokloom", "tokloom.bench.worker_tokloom", settings, logs / "tokloom-bench.log")]
    for peer in peers:
        module = f"tokloom.bench.worker_{peer}"
        workers.append(Worker.start(peer, module, [model, dtype, str(threads)], logs / f"{peer}-bench.log"))
    rows = [row for case in cases for row in _measure(workers, case, stream, repeats, logs, console)]
    memory = {worker.name: worker.stop() for worker in workers}
    console.print(_table(rows, [worker.name for worker in workers]))
    console.print("peak memory, MB: " + ", ".join(f"{name} {mb}" for name, mb in memory.items()))
    if out is not None:
        out.write_text(json.dumps({"rows": [asdict(row) for row in rows], "memory_mb": memory}, indent=1))


def _tokenizer(model: str) -> Callable[[str], Sequence[int]]:
    from tokloom.api import open_tokenizer

    tokenizer = open_tokenizer(model)
    return lambda text: tokenizer.encode(text, add_special=False)


def _measure(
    workers: Sequence[Worker], case: Case, stream: Sequence[int], repeats: int, logs: Path, console: Console
) -> list[Row]:
    spec = CASES[case]
    rows = [Row(case, worker.name) for worker in workers]
    pids = [worker.process.pid for worker in workers]
    for repeat in range(-1, repeats):  # the first repetition warms up
        for worker, row in zip(workers, rows, strict=True):
            wait_quiet([*pids, os.getpid()])
            batch = prompts(stream, case, f"{case}/{repeat}")
            load = ForeignLoad([*pids, os.getpid()])
            value = metric(case, worker.run(batch, spec.new, logs / f"{worker.name}-bench.log"))
            if repeat >= 0:
                row.values.append(value)
                row.foreign.append(load.share())
                console.print(f"{case} {worker.name}: {value:.2f} {spec.metric} (others {row.foreign[-1]:.0%})")
    return rows


def _table(rows: Sequence[Row], names: Sequence[str]) -> Table:
    table = Table(title="median [min-max]; ratio > 1: Tokloom is better")
    for title in ("case", "unit", *names, *(f"ratio to {name}" for name in names[1:]), "others, max"):
        table.add_column(title, justify="right" if title not in ("case", "unit") else "left")
    for case in dict.fromkeys(row.case for row in rows):
        mine, *others = [row for row in rows if row.case == case]
        spec = CASES[case]  # type: ignore[index]
        cells = [f"{r.median:.2f} [{min(r.values):.2f}-{max(r.values):.2f}]" for r in (mine, *others)]
        ratios = [mine.median / r.median if spec.larger_is_better else r.median / mine.median for r in others]
        foreign = max(share for r in (mine, *others) for share in r.foreign)
        table.add_row(case, spec.metric, *cells, *(f"{ratio:.2f}" for ratio in ratios), f"{foreign:.0%}")
    return table
