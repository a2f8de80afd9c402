"""`tokloom chat`: a conversation on standard input and output."""

import sys
from typing import Any

import click

from tokloom.api import GenerateRequest
from tokloom.sdk import ChatMessage, PluginFault, RequestError, TokloomError
from tokloom.serve.cli.answer import Answer
from tokloom.serve.cli.options import engine_options, sampling_given, sampling_of, sampling_options, start_engine


@click.command("chat")
@engine_options
@sampling_options
@click.option("--system", help="A system message to begin with.")
def chat(
    profile: str,
    model: str | None,
    sets: tuple[str, ...],
    system: str | None,
    stop: tuple[str, ...],
    **sampling: Any,
) -> int:
    """Send each line of standard input as a message; an empty line or its end ends the conversation.

    On a terminal, an interrupt stops the answer that is being written, and ends the conversation at the prompt. A
    message that is refused is forgotten and the conversation goes on; without a terminal the exit code is then 2.
    """
    terminal = sys.stdin.isatty()
    history = [ChatMessage("system", system)] if system else []
    failed = False
    with start_engine(profile, model, sets) as engine:
        params = sampling_of(engine, sampling_given(sampling))
        while True:
            line = _next_line(terminal)
            if not line:
                return 2 if failed and not terminal else 0
            request = GenerateRequest(messages=(*history, ChatMessage("user", line)), sampling=params, stop=stop)
            answer = Answer(engine, request)
            try:
                for event in answer.run():
                    click.echo(event.text, nl=False)
            except KeyboardInterrupt:
                if not terminal:
                    raise
            except PluginFault:
                raise
            except TokloomError as error:
                click.echo(f"tokloom: {error}", err=True)
                failed = True
                continue
            click.echo("")
            history += ChatMessage("user", line), ChatMessage("assistant", answer.text)


def _next_line(terminal: bool) -> str:
    if terminal:
        click.echo("> ", nl=False, err=True)
    try:
        return sys.stdin.readline().strip()
    except UnicodeDecodeError as error:
        raise RequestError(f"is not UTF-8: {error.reason}", subject="standard input", remedy="Send UTF-8") from None
