"""`tokloom chat`: a conversation on standard input and output."""

import sys
from typing import Any

import click

from tokloom.api import GenerateRequest
from tokloom.sdk import ChatMessage, SamplingParams, TokloomError
from tokloom.serve.cli.generate import Answer
from tokloom.serve.cli.options import engine_options, sampling_options, start_engine


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

    An interrupt stops the answer that is being written; a second one at the prompt ends.
    """
    params = SamplingParams(**sampling)
    terminal = sys.stdin.isatty()
    history = [ChatMessage("system", system)] if system else []
    with start_engine(profile, model, sets) as engine:
        while True:
            if terminal:
                click.echo("> ", nl=False, err=True)
            line = sys.stdin.readline().strip()
            if not line:
                return 0
            history.append(ChatMessage("user", line))
            answer = Answer(engine, GenerateRequest(messages=tuple(history), sampling=params, stop=stop))
            try:
                for event in answer.run():
                    click.echo(event.text, nl=False)
            except KeyboardInterrupt:
                if not terminal:
                    raise
            except TokloomError as error:
                click.echo(f"tokloom: {error}", err=True)
                history.pop()
                continue
            click.echo("")
            history.append(ChatMessage("assistant", answer.text))
