"""`tokloom`: the group of commands, and how errors reach a person."""

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

import click

from tokloom import __version__
from tokloom.sdk import TokloomError
from tokloom.sdk.errors import exit_code
from tokloom.serve.cli.logs import LEVELS, Format, configure

#: command -> (module, attribute, one line); modules are imported when the command is used
COMMANDS: dict[str, tuple[str, str, str]] = {
    "generate": ("tokloom.serve.cli.generate", "generate", "Answer one prompt, or a file of them."),
    "chat": ("tokloom.serve.cli.chat", "chat", "Talk to a model, one message per line."),
    "serve": ("tokloom.serve.cli.serve", "serve", "Serve a model over HTTP, as OpenAI's API."),
    "compose": ("tokloom.serve.cli.inspect", "compose", "Check, explain or lock a profile."),
    "plugins": ("tokloom.serve.cli.inspect", "plugins", "List installed plugins."),
    "profile": ("tokloom.serve.cli.inspect", "profile", "Show, describe or migrate profiles."),
    "bench": ("tokloom.bench", "bench", "Measure."),
    "doctor": ("tokloom.serve.cli.doctor", "doctor", "Find out what is wrong with this installation."),
}


class _Lazy(click.Group):
    """Imports a command's module when it runs or its help is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(import_module(entry[0]), entry[1])
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry[2]) for name, entry in COMMANDS.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tokloom")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.option("--verbose", "-v", is_flag=True, help="The same as --log-level info.")
@click.option("--log-level", type=click.Choice(LEVELS), help="Log to standard error from here on.  [default: warning]")
@click.option("--log-format", type=click.Choice(["console", "json"]), default="console", show_default=True)
@click.pass_obj
def cli(own_process: bool | None, debug: bool, verbose: bool, log_level: str | None, log_format: Format) -> None:
    """A plugin-based microkernel for LLM inference."""
    if own_process:
        configure(log_level or ("info" if verbose else "warning"), log_format)


def main() -> None:
    """Entry point: run a command, turn what happens into an exit code."""
    for stream in (sys.stdout, sys.stderr):  # a terminal that cannot show a character gets a stand-in, not an error
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    sys.exit(_guarded(lambda: cli.main(standalone_mode=False, obj=True)))


def _guarded(run: Callable[[], Any]) -> int:
    debug = "--debug" in sys.argv
    try:
        code = run()
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return 130
    except BrokenPipeError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except TokloomError as error:
        if debug:
            traceback.print_exc()
        click.echo(f"tokloom: {error}", err=True)
        return exit_code(error)
    except Exception as error:
        if debug:
            traceback.print_exc()
        click.echo(f"tokloom: internal error: {type(error).__name__}: {error}. Run with --debug for details.", err=True)
        return 1
