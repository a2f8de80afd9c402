"""POST /v1/completions: texts or token ids, continued."""

import time
from collections.abc import Sequence
from typing import Any, Literal, NotRequired
from uuid import uuid4

from attrs import define, field
from starlette.requests import Request
from typing_extensions import TypedDict

from tokloom import Event, GenerateRequest, TokenLogprobs
from tokloom.sdk import RequestError, Tokenizer
from tokloom.serve.http.bodies import read_request
from tokloom.serve.http.errors import encode
from tokloom.serve.http.generation import Generation
from tokloom.serve.http.rendering import DONE, Counts, Offsets, TokenTexts, UsageObject, finite, frame, given, quote
from tokloom.serve.http.requests import MAX_SEQUENCES, CompletionRequest, Input
from tokloom.serve.http.service import Service
from tokloom.serve.http.structured import grammar_of
from tokloom.serve.tracing import trace_of

Prompt = str | list[int]


class TextLogprobs(TypedDict):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(TypedDict):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: str | None


class TextCompletion(TypedDict):
    """The answer, and also one `data:` line of a stream, whose last line is `[DONE]`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: NotRequired[UsageObject | None]


async def completions(service: Service, request: Request) -> Generation:
    """Continue texts."""
    engine, section = service.engine(), service.section
    body = await read_request(request, CompletionRequest, limit=section.max_body_bytes, seconds=section.body_seconds)
    model = service.model(body.model)
    prompts = prompts_of(body.prompt)
    if len(prompts) * body.n > MAX_SEQUENCES:
        raise RequestError(
            f"{len(prompts)} prompts with n = {body.n} are more than {MAX_SEQUENCES} answers", remedy="Send fewer"
        )
    sampling = body.sampling(
        engine.default_sampling,
        max_tokens=body.max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
        grammar=grammar_of(None, body.structured_outputs),
    )
    requests = [
        GenerateRequest(
            prompt=prompt if isinstance(prompt, str) else None,
            token_ids=None if isinstance(prompt, str) else prompt,
            raw=True,
            sampling=sampling,
            adapter=service.adapter(model),
            stop=body.stops,
            include_stop=body.include_stop_str_in_output,
            priority=body.priority,
            tenant=body.user,
            salt=body.cache_salt,
            trace=trace_of(request.scope["headers"]),
        )
        for prompt in prompts
    ]
    echoes = [text_of(prompt, engine.tokenizer) for prompt in prompts] if body.echo else []
    rendering = TextRendering(
        model,
        engine.tokenizer,
        [echo for echo in echoes for _ in range(body.n)],
        logprobs=body.logprobs is not None,
        with_usage=body.with_usage,
    )
    return Generation(service, requests, rendering, stream=body.stream)


def prompts_of(prompt: Input) -> list[Prompt]:
    """One prompt per text or list of ids."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [[token for token in prompt if isinstance(token, int)]]
    return [item for item in prompt if not isinstance(item, int)]


def text_of(prompt: Prompt, tokenizer: Tokenizer | None) -> str:
    """A prompt as `echo` repeats it. Raises RequestError for ids that the model does not have."""
    if isinstance(prompt, str) or tokenizer is None:
        return prompt if isinstance(prompt, str) else ""
    try:
        return tokenizer.decode(prompt, skip_special=False)
    except (IndexError, KeyError, ValueError, OverflowError) as error:
        raise RequestError(f"the prompt has a token id that the model does not have: {error}") from None


@define
class _Choice:
    """One answer. `head` is a chunk up to its text, `echo` what stands before the answer."""

    head: bytes
    echo: str
    offsets: Offsets
    begun: bool = False
    finish_reason: str = ""
    texts: list[str] = field(factory=list)
    logprobs: TextLogprobs = field(factory=lambda: _no_logprobs())


class TextRendering:
    """Answers as `text_completion`, whole or as events. `echoes`: per choice, empty without `echo`."""

    def __init__(
        self, model: str, tokenizer: Tokenizer | None, echoes: Sequence[str], *, logprobs: bool, with_usage: bool
    ) -> None:
        self._texts = TokenTexts(tokenizer)
        self._special = tokenizer.special_ids if tokenizer is not None else frozenset[int]()
        self._echoes = echoes
        self._with_logprobs = logprobs
        self._with_usage = with_usage
        self._base: dict[str, Any] = {
            "id": f"cmpl-{uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._choices: dict[int, _Choice] = {}
        self._counts = Counts()
        self._end = b',"usage":null}\n\n' if with_usage else b"}\n\n"
        self._tail = b',"logprobs":null,"finish_reason":null}]' + self._end

    def _choice(self, index: int) -> _Choice:
        choice = self._choices.get(index)
        if choice is None:
            base = encode(self._base)[:-1]
            head = b"data: " + base + b',"choices":[{"index":%d,"text":' % index
            echo = self._echoes[index] if self._echoes else ""
            choice = self._choices[index] = _Choice(head, echo, self._texts.offsets())
        return choice

    # -- streaming -----------------------------------------------------------------------------------------------------

    def chunk(self, choice: int, event: Event) -> bytes:
        state = self._choice(choice)
        text = event.text
        if not state.begun:
            state.begun = True
            text = state.echo + text
        if self._with_logprobs and (event.logprobs or event.prompt_logprobs):
            logs = _no_logprobs()
            self._add(logs, state, event)
            reason = b"null" if event.finish_reason is None else quote(event.finish_reason).encode()
            rest = b',"logprobs":' + encode(logs) + b',"finish_reason":' + reason + b"}]" + self._end
        elif event.finish_reason is not None:
            rest = b',"logprobs":null,"finish_reason":' + quote(event.finish_reason).encode() + b"}]" + self._end
        elif text:
            rest = self._tail
        else:
            return b""
        if event.finish_reason is not None:
            self._counts.add(event)
        return state.head + quote(text).encode() + rest

    def last(self) -> bytes:
        if not self._with_usage:
            return DONE
        return frame({**self._base, "choices": [], "usage": self._counts.usage()}) + DONE

    # -- one body ------------------------------------------------------------------------------------------------------

    def take(self, choice: int, event: Event) -> None:
        state = self._choice(choice)
        state.texts.append(event.text)
        if self._with_logprobs:
            self._add(state.logprobs, state, event)
        if event.finish_reason is not None:
            self._counts.add(event)
            state.finish_reason = event.finish_reason

    def body(self) -> TextCompletion:
        choices: list[TextChoice] = [
            {
                "index": index,
                "text": state.echo + "".join(state.texts),
                "logprobs": state.logprobs if self._with_logprobs else None,
                "finish_reason": state.finish_reason,
            }
            for index, state in sorted(self._choices.items())
        ]
        return {
            "id": self._base["id"],
            "object": "text_completion",
            "created": self._base["created"],
            "model": self._base["model"],
            "choices": choices,
            "usage": self._counts.usage(),
        }

    def _add(self, logs: TextLogprobs, state: _Choice, event: Event) -> None:
        for entry in (*event.prompt_logprobs, *event.logprobs):
            logs["tokens"].append(self._texts.text(entry.token))
            logs["token_logprobs"].append(finite(entry.logprob) if given(entry) else None)
            logs["top_logprobs"].append(self._top(entry) if given(entry) else None)
            logs["text_offset"].append(state.offsets.next(entry.token, entry.token in self._special))

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        pairs = ((entry.token, entry.logprob), *entry.top)
        return {self._texts.text(token): finite(logprob) for token, logprob in pairs}


def _no_logprobs() -> TextLogprobs:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
