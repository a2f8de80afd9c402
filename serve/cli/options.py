"""Options that several commands share, and how they start an engine."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from tokloom.api import Engine

F = TypeVar("F", bound=Callable[..., Any])


def engine_options(function: F) -> F:
    """`--profile`, `--model`, `--set`."""
    options = [
        click.option("--profile", default="builtin:cpu", show_default=True, help="A profile file, or builtin:NAME."),
        click.option("--model", help="A model folder, a .gguf file, or a name a plugin provides."),
        click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a value of the profile."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def sampling_options(function: F) -> F:
    """`--max-tokens`, `--temperature` and the like."""
    options = [
        click.option("--max-tokens", type=click.IntRange(0), default=256, show_default=True),
        click.option("--temperature", type=float, default=0.0, show_default=True, help="0 always takes the best."),
        click.option("--top-p", type=float, default=1.0, show_default=True),
        click.option("--top-k", type=int, default=0, show_default=True),
        click.option("--seed", type=int, help="Makes random answers reproducible."),
        click.option("--stop", multiple=True, help="End the answer before this text."),
        click.option("--ignore-eos", is_flag=True, help="Go on after the model's end token."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def start_engine(profile: str, model: str | None, sets: tuple[str, ...]) -> "Engine":
    """Load an engine with a progress bar, and give torch the profile's threads."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    from tokloom.api import Engine

    console = Console(stderr=True)
    with Progress(
        TextColumn("loading {task.description}"),
        BarColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("profile", total=None)

        def report(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        engine = Engine.from_profile(profile, model=model, sets=sets, progress=report)
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
