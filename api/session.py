"""Session: the text side of one engine: per sequence a detokenizer and a stop matcher over the core's events."""

from attrs import define, field

from tokloom.api.detokenize import Detokenizer
from tokloom.api.stops import StopMatcher
from tokloom.api.types import Event, GenerateRequest
from tokloom.core.engine import EngineCore
from tokloom.core.events import OutputEvent, TokenLogprobs
from tokloom.sdk import Request, Tokenizer


@define
class _Text:
    detokenizer: Detokenizer | None
    stops: StopMatcher
    stopped: bool = False


@define
class _Live:
    request: GenerateRequest
    prompt: tuple[int, ...]
    texts: dict[int, _Text] = field(factory=dict)
    open: int = 1


class Session:
    """Turns the core's events into events with text. Loop thread only, but for `begin`."""

    def __init__(self, core: EngineCore, tokenizer: Tokenizer | None) -> None:
        self._core = core
        self._tokenizer = tokenizer
        self._live: dict[str, _Live] = {}

    def begin(self, request: GenerateRequest, prepared: Request) -> None:
        """A request is about to be added to the core."""
        self._live[prepared.request_id] = _Live(request, prepared.prompt_ids, open=prepared.sampling.n)

    def drop(self, request_id: str) -> None:
        """The core refused it."""
        self._live.pop(request_id, None)

    def prompt(self, request_id: str) -> tuple[int, ...]:
        """The prompt's ids."""
        return self._live[request_id].prompt

    def translate(self, event: OutputEvent) -> Event | None:
        """The event with text; None for what comes after a stop string, until the sequence's end."""
        live = self._live.get(event.request_id)
        if live is None:
            return None
        text = live.texts.get(event.child)
        if text is None:
            detokenizer = None
            if self._tokenizer is not None:
                detokenizer = Detokenizer(self._tokenizer, at_start=live.request.messages is not None)
            text = _Text(detokenizer, StopMatcher(live.request.stop, include=live.request.include_stop))
            live.texts[event.child] = text
        made = self._event(event, text)
        if event.finish_reason is not None:
            live.open -= 1
            if not live.open:
                del self._live[event.request_id]
        return made

    def _event(self, event: OutputEvent, text: _Text) -> Event | None:
        if text.stopped:
            if event.finish_reason is None:
                return None
            return Event(
                request_id=event.request_id, index=event.child, finish_reason=event.finish_reason, usage=event.usage
            )
        shown, taken = self._push(event.tokens, text)
        if text.stopped:
            self._core.stop(event.request_id, event.child)
        elif event.finish_reason is not None and text.detokenizer is not None:
            shown += text.stops.push(text.detokenizer.finish()) + text.stops.finish()
        logprobs: tuple[TokenLogprobs, ...] = event.logprobs[:taken]
        reason = event.finish_reason
        if text.stopped and reason == "length":
            reason = "stop"
        return Event(
            request_id=event.request_id,
            index=event.child,
            text=shown,
            token_ids=event.tokens[:taken],
            logprobs=logprobs,
            prompt_logprobs=event.prompt_logprobs,
            finish_reason=reason,
            usage=event.usage,
            error=event.error,
        )

    def _push(self, tokens: tuple[int, ...], text: _Text) -> tuple[str, int]:
        """Text of new tokens, and how many of them stand before a stop string ended the text."""
        if text.detokenizer is None:
            return "", len(tokens)
        shown = ""
        for index, token in enumerate(tokens):
            shown += text.stops.push(text.detokenizer.push(token))
            if text.stops.matched is not None:
                text.stopped = True
                return shown, index + 1
        return shown, len(tokens)
