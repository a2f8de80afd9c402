"""Options that several commands share, and how they start an engine."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from tokloom.api.recommended import recommended
from tokloom.sdk import RequestError, SamplingParams

if TYPE_CHECKING:
    from tokloom.api import Engine

F = TypeVar("F", bound=Callable[..., Any])


def engine_options(function: F) -> F:
    """`--profile`, `--model`, `--set`."""
    return options_of_engine("builtin:cpu")(function)


def options_of_engine(profile: str) -> Callable[[F], F]:
    """The same, with another default profile."""
    options = [
        click.option("--profile", default=profile, show_default=True, help="A profile file, or builtin:NAME."),
        click.option("--model", help="A model folder, a .gguf file, org/name@revision, or a name a plugin provides."),
        click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a value of the profile."),
    ]

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def sampling_options(function: F) -> F:
    """`--max-tokens`, `--temperature` and the like."""
    options = [
        click.option("--max-tokens", type=click.IntRange(0), help="[default: the model's, or 256]"),
        click.option(
            "--temperature", type=float, help="0 always takes the best. [default: the model's recommendation, or 0]"
        ),
        click.option("--top-p", type=float, help="[default: the model's, or 1]"),
        click.option("--top-k", type=int, help="[default: the model's, or 0]"),
        click.option("--seed", type=int, help="Makes random answers reproducible."),
        click.option("--stop", multiple=True, help="End the answer before this text."),
        click.option("--ignore-eos", is_flag=True, help="Go on after the model's end token."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def sampling_given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters that the command line names."""
    return {key: value for key, value in options.items() if value is not None}


def sampling_of(engine: "Engine", given: Mapping[str, Any]) -> SamplingParams:
    """What the command line names, else what the model recommends, else greedy and 256 tokens at the most."""
    base = SamplingParams(max_tokens=256, temperature=0.0)
    return attrs.evolve(recommended(engine.core.composition.model.spec, base), **given)


def read_stdin() -> str:
    """All of standard input. Raises RequestError if it is no text."""
    if sys.stdin.isatty():
        click.echo("reading the prompt from standard input; end it with Ctrl-D", err=True)
    data = sys.stdin.buffer.read()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RequestError(
            f"is not UTF-8 at byte {error.start}", subject="standard input", remedy="Send UTF-8 text"
        ) from None


@contextmanager
def progress_bar(verb: str) -> Iterator[Callable[[int, int, str], None]]:
    """A function that shows (done, total, what) on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total, what: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn(f"{verb} {{task.description}}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


def start_engine(profile: str, model: str | None, sets: tuple[str, ...]) -> "Engine":
    """Load an engine with a progress bar, and give torch the profile's threads."""
    with progress_bar("loading") as bar:
        from tokloom.api import Engine

        engine = Engine.from_profile(profile, model=model, sets=sets, progress=bar)
    import torch

    torch.set_num_threads(engine.core.composition.settings.threads)
    return engine


def plugin_names(engine: "Engine") -> dict[str, str]:
    """Section -> plugin of a running engine."""
    composition = engine.core.composition
    names = {
        "attention": composition.decode.name
        if composition.decode is composition.prefill
        else f"{composition.decode.name}, {composition.prefill.name}",
        "allocator": composition.allocator.name,
        "codec": composition.codec.name,
        "weights": composition.weights.name,
        "ops": composition.ops.name,
        "scheduler": composition.scheduler.name,
    }
    if composition.speculator is not None:
        names["speculator"] = composition.speculator.name
    if composition.connectors:
        names["connectors"] = ", ".join(part.name for part in composition.connectors)
    return names
