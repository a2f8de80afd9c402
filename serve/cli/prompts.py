"""Files of prompts: JSON lines in, JSON lines out, in the same order."""

import codecs
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from tokloom.api import GenerateRequest
from tokloom.api.requests import check
from tokloom.sdk import CapacityError, RequestError, SamplingParams, TokloomError
from tokloom.serve.cli.answer import Answer
from tokloom.serve.cli.interrupts import Interrupts
from tokloom.serve.cli.options import progress_bar

if TYPE_CHECKING:
    from tokloom.api import Engine

#: what a line may have besides a sampling parameter
_OTHERS = {"prompt", "messages", "raw", "stop", "salt", "priority", "tenant"}
_SAMPLING = {field.name for field in attrs.fields(SamplingParams)}


def read_prompts(path: Path, params: SamplingParams, raw: bool, stop: tuple[str, ...]) -> list[GenerateRequest]:
    """All requests of a file of JSON lines; empty lines are left out. `params`, `raw` and `stop` are what a line that
    says nothing else takes. Raises RequestError naming file, line and key before anything runs.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RequestError(f"cannot be read: {error.strerror}", subject=str(path), remedy="Give a file") from None
    requests = []
    for number, line in enumerate(data.removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        if line.strip():
            requests.append(_read_line(line, f"{path}:{number}", params, raw, stop))
    return requests


def _read_line(line: bytes, where: str, params: SamplingParams, raw: bool, stop: tuple[str, ...]) -> GenerateRequest:
    try:
        fields = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise RequestError(f"is not UTF-8 at byte {error.start} of the line", subject=where) from None
    except (ValueError, RecursionError) as error:
        raise RequestError(f"is not JSON: {error}", subject=where, remedy="Write one JSON object per line") from None
    if not isinstance(fields, Mapping):
        raise RequestError("is no JSON object", subject=where, remedy='Write {"prompt": "…"} or {"messages": […]}')
    unknown = sorted(fields.keys() - _SAMPLING - _OTHERS)
    if unknown:
        known = ", ".join(sorted(_OTHERS | _SAMPLING))
        raise RequestError(f"unknown key {unknown[0]!r}", subject=where, remedy=f"Known: {known}")
    if ("prompt" in fields) == ("messages" in fields):
        raise RequestError("needs either prompt or messages", subject=where, remedy="Give exactly one of them")
    try:
        changes = {key: _frozen(key, value) for key, value in fields.items() if key in _SAMPLING}
        request = GenerateRequest(
            prompt=fields.get("prompt"),
            messages=fields.get("messages"),
            raw=fields.get("raw", raw),
            stop=fields.get("stop", stop),
            salt=fields.get("salt", ""),
            priority=fields.get("priority", 0),
            tenant=fields.get("tenant", ""),
            sampling=attrs.evolve(params, **changes),
        )
        check(request, where)
    except RequestError as error:
        subject = where if error.subject == where else f"{where}, {error.subject}"
        raise RequestError(error.message, subject=subject, remedy=error.remedy) from None
    if request.sampling.n != 1:
        raise RequestError("n must be 1 in a file", subject=where, remedy="Repeat the line with different seeds")
    return request


def _frozen(key: str, value: Any) -> Any:
    """JSON arrays as tuples, and the string keys of a logit bias as ids."""
    if isinstance(value, list):
        return tuple(_frozen(key, item) for item in value)
    if isinstance(value, dict):
        try:
            return {int(token): bias for token, bias in value.items()}
        except ValueError:
            raise RequestError(f"{key} has a key that is no token id", remedy="Use integers as keys") from None
    return value


def run_prompts(engine: "Engine", requests: list[GenerateRequest]) -> int:
    """Run all requests together; print lines in order, each as soon as those before it are done. Returns the exit code:
    2 if a line failed, which has `error` in its place.
    """
    run = _Run(engine, requests)
    with progress_bar("answering") as bar, Interrupts() as interrupts:
        while run.printed < len(requests):
            run.submit()
            run.advance()
            run.print_ready()
            bar(run.printed, len(requests), "answers")
            interrupts.check()
    return 2 if run.failed else 0


class _Run:
    def __init__(self, engine: "Engine", requests: list[GenerateRequest]) -> None:
        self._engine = engine
        self._requests = requests
        self._window = 4 * engine.core.composition.settings.max_sequences
        self._answers: dict[str, tuple[int, Answer]] = {}
        self._done: dict[int, dict[str, Any]] = {}
        self._submitted = self.printed = self.failed = 0

    def submit(self) -> None:
        """Queue what the engine takes, not too far ahead of what was printed."""
        while self._submitted < len(self._requests) and self._submitted - self.printed < self._window:
            answer = Answer(self._engine, self._requests[self._submitted])
            try:
                self._answers[answer.submit()] = (self._submitted, answer)
            except CapacityError as error:
                if self._answers:  # the queue is full: later
                    return
                self._fail(self._submitted, error)
            except TokloomError as error:
                self._fail(self._submitted, error)
            self._submitted += 1

    def advance(self) -> None:
        """One step of the engine."""
        for event in self._engine.step():
            number, answer = self._answers[event.request_id]
            answer.take(event)
            if event.finish_reason is None:
                continue
            del self._answers[event.request_id]
            if event.error is not None:
                self._fail(number, event.error)
            else:
                self._done[number] = answer.summary()

    def _fail(self, number: int, error: TokloomError) -> None:
        self._done[number] = {"error": str(error)}
        self.failed += 1

    def print_ready(self) -> None:
        """Print what is next in order."""
        while self.printed in self._done:
            click.echo(json.dumps(self._done.pop(self.printed), ensure_ascii=False))
            self.printed += 1
