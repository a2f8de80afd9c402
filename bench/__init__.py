"""Benchmarks: `tokloom bench NAME`."""

from importlib import import_module
from typing import Final

import click

if __name__ != "tokloom.bench":
    raise ImportError("import tokloom.bench, not bench: the folder is reached through the installed package")

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "seams": ("tokloom.bench.seams", "What the loop and the plugin seams cost per step."),
    "serve": ("tokloom.bench.serve", "Load on a server that speaks OpenAI's API."),
    "http": ("tokloom.bench.http", "What HTTP costs: streams through a server against the engine alone."),
    "compare": ("tokloom.bench.compare", "The same workload on Tokloom and on other engines."),
}


class _Benches(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group("bench", cls=_Benches)
def bench() -> None:
    """Measure speed. Ratios come from runs side by side."""
