"""`tokloom generate`: answer one prompt, or every line of a file."""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import click

from tokloom.api import Engine, Event, GenerateRequest
from tokloom.sdk import RequestError, SamplingParams, TokloomError
from tokloom.serve.cli.options import engine_options, plugin_names, sampling_options, start_engine

#: per-line overrides in a prompt file -> field of SamplingParams
_LINE_SAMPLING = {field.name for field in attrs.fields(SamplingParams)}
_LINE_OTHERS = {"prompt", "messages", "raw", "stop", "salt", "priority", "tenant"}


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
    params = SamplingParams(**sampling)
    if prompt_file is not None:
        if prompt is not None:
            raise click.UsageError("Give a prompt or --prompt-file, not both.")
        requests = read_prompts(prompt_file, params, raw, stop)
        with start_engine(profile, model, sets) as engine:
            return _run_file(engine, requests)
    text = sys.stdin.read() if prompt in (None, "-") else prompt
    with start_engine(profile, model, sets) as engine:
        answer = Answer(engine, GenerateRequest(prompt=text, raw=raw, sampling=params, stop=stop))
        for event in answer.run():
            if stream and not as_json:
                click.echo(event.text, nl=False)
        if as_json:
            click.echo(json.dumps(answer.summary(), ensure_ascii=False))
        else:
            click.echo("" if stream else answer.text)
        if report:
            _report(answer)
    return 0


class Answer:
    """One request's answer while it comes, with its times."""

    def __init__(self, engine: Engine, request: GenerateRequest) -> None:
        self._engine = engine
        self._request = request
        self.text = ""
        self.token_ids: list[int] = []
        self.prompt_ids: tuple[int, ...] = ()
        self.last: Event | None = None
        self._begin = self._first = self._end = 0.0

    def submit(self) -> str:
        """Queue the request; returns its id."""
        self._begin = time.perf_counter()
        request_id = self._engine.add(self._request)
        self.prompt_ids = self._engine.prompt_ids(request_id)
        return request_id

    def run(self) -> Iterator[Event]:
        """Events of the answer; an interrupt cancels the request."""
        request_id = self.submit()
        try:
            while self.last is None:
                for event in self._engine.step():
                    self.take(event)
                    if event.error is not None:
                        raise event.error
                    yield event
        finally:
            if self.last is None:
                self._engine.abort(request_id)

    def take(self, event: Event) -> None:
        """Add an event of this request."""
        if event.token_ids and not self.token_ids:
            self._first = time.perf_counter()
        self.text += event.text
        self.token_ids += event.token_ids
        if event.finish_reason is not None:
            self._end = time.perf_counter()
            self.last = event

    def stats(self) -> dict[str, Any]:
        """Times in seconds, rates, and which plugins did it."""
        count = len(self.token_ids)
        ttft = self._first - self._begin if count else None
        tpot = (self._end - self._first) / (count - 1) if count > 1 else None
        return {
            "ttft_s": ttft,
            "tpot_s": tpot,
            "tokens_per_second": 1 / tpot if tpot else None,
            "total_s": self._end - self._begin,
            "plugins": plugin_names(self._engine),
        }

    def summary(self) -> dict[str, Any]:
        """What `--json` prints."""
        assert self.last is not None
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "prompt_token_ids": list(self.prompt_ids),
            "finish_reason": self.last.finish_reason,
            "usage": usage(self.last),
            "stats": self.stats(),
        }


def usage(event: Event) -> dict[str, Any]:
    """Token counts of a finished sequence."""
    if event.usage is None:
        return {}
    counts = event.usage
    return {
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.output_tokens,
        "total_tokens": counts.prompt_tokens + counts.output_tokens,
        "cached_tokens": counts.hit_tokens,
        "tier_tokens": counts.tier_tokens,
        "drafted_tokens": counts.drafted,
        "accepted_tokens": counts.accepted,
        "preemptions": counts.preemptions,
    }


def _report(answer: Answer) -> None:
    stats = answer.stats()
    if stats["ttft_s"] is not None:
        line = f"TTFT {stats['ttft_s'] * 1000:.0f} ms"
        if stats["tpot_s"] is not None:
            line += f", TPOT {stats['tpot_s'] * 1000:.1f} ms, {stats['tokens_per_second']:.1f} tokens/s"
        click.echo(f"{line}, {len(answer.token_ids)} tokens", err=True)
    click.echo("plugins: " + ", ".join(f"{kind} {name}" for kind, name in stats["plugins"].items()), err=True)


# -- files ------------------------------------------------------------------------------------------------------------


def read_prompts(path: Path, params: SamplingParams, raw: bool, stop: tuple[str, ...]) -> list[GenerateRequest]:
    """All requests of a file of JSON lines. Raises RequestError naming file, line and key before anything runs."""
    requests = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="strict").splitlines(), 1):
        if line.strip():
            requests.append(_read_line(line, f"{path}:{number}", params, raw, stop))
    return requests


def _read_line(line: str, where: str, params: SamplingParams, raw: bool, stop: tuple[str, ...]) -> GenerateRequest:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"is not JSON: {error}", subject=where, remedy="Write one JSON object per line") from None
    if not isinstance(fields, Mapping):
        raise RequestError("is no JSON object", subject=where, remedy='Write {"prompt": "…"} or {"messages": […]}')
    unknown = sorted(fields.keys() - _LINE_SAMPLING - _LINE_OTHERS)
    if unknown:
        known = ", ".join(sorted(_LINE_OTHERS | _LINE_SAMPLING))
        raise RequestError(f"unknown key {unknown[0]!r}", subject=where, remedy=f"Known: {known}")
    if ("prompt" in fields) == ("messages" in fields):
        raise RequestError("needs either prompt or messages", subject=where, remedy="Give exactly one of them")
    try:
        changes = {key: _frozen(value) for key, value in fields.items() if key in _LINE_SAMPLING}
        request = GenerateRequest(
            prompt=fields.get("prompt"),
            messages=fields.get("messages"),
            raw=fields.get("raw", raw),
            stop=tuple(fields.get("stop", stop)),
            salt=fields.get("salt", ""),
            priority=fields.get("priority", 0),
            tenant=fields.get("tenant", ""),
            sampling=attrs.evolve(params, **changes),
        )
    except RequestError as error:
        raise RequestError(error.message, subject=f"{where}, {error.subject}", remedy=error.remedy) from None
    except (TypeError, AttributeError, ValueError) as error:
        raise RequestError(f"has a value of the wrong type: {error}", subject=where, remedy="See the docs") from None
    if request.sampling.n != 1:
        raise RequestError("n must be 1 in a file", subject=where, remedy="Repeat the line with different seeds")
    return request


def _frozen(value: Any) -> Any:
    """JSON arrays as tuples, and the string keys of a logit bias as ids."""
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, dict):
        return {int(key): item for key, item in value.items()}
    return value


def _run_file(engine: Engine, requests: list[GenerateRequest]) -> int:
    """All requests at once; lines are printed in order as soon as those before them are done."""
    answers = [Answer(engine, request) for request in requests]
    ids: dict[str, int] = {}
    done: dict[int, dict[str, Any]] = {}
    failed = printed = submitted = 0
    limit = 4 * engine.core.composition.settings.max_sequences
    while printed < len(answers):
        while submitted < len(answers) and submitted - printed < limit:
            try:
                ids[answers[submitted].submit()] = submitted
            except TokloomError as error:
                done[submitted] = {"error": str(error)}
                failed += 1
            submitted += 1
        for event in engine.step():
            index = ids[event.request_id]
            answers[index].take(event)
            if event.error is not None:
                done[index] = {"error": str(event.error)}
                failed += 1
            elif event.finish_reason is not None:
                done[index] = answers[index].summary()
        while printed in done:
            click.echo(json.dumps(done.pop(printed), ensure_ascii=False))
            printed += 1
    return 2 if failed else 0
