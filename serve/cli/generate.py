"""`tokloom generate`: answer one prompt, or every line of a file."""

import json
from pathlib import Path
from typing import Any

import click

from tokloom.api import GenerateRequest
from tokloom.sdk import SamplingParams
from tokloom.serve.cli.answer import Answer
from tokloom.serve.cli.options import (
    engine_options,
    read_stdin,
    sampling_given,
    sampling_of,
    sampling_options,
    start_engine,
)
from tokloom.serve.cli.prompts import read_prompts, run_prompts


@click.command("generate")
@click.argument("prompt", required=False)
@engine_options
@sampling_options
@click.option("--raw", is_flag=True, help="Continue the prompt as text, without the chat template.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with text, ids, usage and stats.")
@click.option("--stream/--no-stream", default=True, help="Print text as it comes.")
@click.option("--report", is_flag=True, help="After the answer, print times and plugins to standard error.")
@click.option(
    "--prompt-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON lines with prompt or messages; one JSON result line each, in order.",
)
def generate(
    prompt: str | None,
    profile: str,
    model: str | None,
    sets: tuple[str, ...],
    raw: bool,
    as_json: bool,
    stream: bool,
    report: bool,
    prompt_file: Path | None,
    stop: tuple[str, ...],
    **sampling: Any,
) -> int:
    """Answer PROMPT; without one, or with -, standard input is read."""
    given = sampling_given(sampling)
    if prompt_file is not None:
        if prompt is not None:
            raise click.UsageError("Give a prompt or --prompt-file, not both.")
        read_prompts(prompt_file, SamplingParams(**given), raw, stop)  # its faults before a model is loaded
        with start_engine(profile, model, sets) as engine:
            return run_prompts(engine, read_prompts(prompt_file, sampling_of(engine, given), raw, stop))
    text = read_stdin() if prompt is None or prompt == "-" else prompt
    with start_engine(profile, model, sets) as engine:
        params = sampling_of(engine, given)
        answer = Answer(engine, GenerateRequest(prompt=text, raw=raw, sampling=params, stop=stop))
        for event in answer.run():
            if stream and not as_json:
                click.echo(event.text, nl=False)
        if as_json:
            click.echo(json.dumps(answer.summary(), ensure_ascii=False))
        else:
            click.echo("" if stream else answer.text)
        if report:
            click.echo(answer.report(), err=True)
    return 0
