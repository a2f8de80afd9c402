"""Session: the text side of one engine: per sequence a detokenizer and a stop matcher over the core's events."""

from typing import Literal

import attrs
from attrs import define, field

from tokloom.api.detokenize import Detokenizer
from tokloom.api.requests import uses_template
from tokloom.api.stops import StopMatcher
from tokloom.api.types import Event, GenerateRequest
from tokloom.core.engine import EngineCore
from tokloom.core.events import OutputEvent
from tokloom.sdk import PluginFault, Request, Tokenizer, TokloomError


@define
class _Text:
    """One sequence.

    Attributes:
        ended: why its text ended before the core said so.
        count: tokens reported.
    """

    detokenizer: Detokenizer | None
    stops: StopMatcher
    ended: Literal["stop", "error"] | None = None
    error: TokloomError | None = None
    count: int = 0


@define
class _Live:
    request: GenerateRequest
    prompt: tuple[int, ...]
    texts: dict[int, _Text] = field(factory=dict)
    open: int = 1


class Session:
    """Turns the core's events into events with text. Loop thread only, but for `begin` and `drop`."""

    def __init__(self, core: EngineCore, tokenizer: Tokenizer | None) -> None:
        self._core = core
        self._tokenizer = tokenizer
        self._live: dict[str, _Live] = {}

    def begin(self, request: GenerateRequest, prepared: Request) -> None:
        """A request is about to be added to the core; none of that id is live."""
        self._live[prepared.request_id] = _Live(request, prepared.prompt_ids, open=prepared.sampling.n)

    def drop(self, request_id: str) -> None:
        """The core refused it."""
        self._live.pop(request_id, None)

    def prompt(self, request_id: str) -> tuple[int, ...]:
        """The prompt's ids."""
        return self._live[request_id].prompt

    def translate(self, event: OutputEvent) -> Event | None:
        """The event with text; None where nothing is left to report: after a stop string, until the sequence's end.

        If the tokenizer raises, the sequence ends with a PluginFault; other sequences go on.
        """
        live = self._live.get(event.request_id)
        if live is None:
            return None
        text = live.texts.get(event.child)
        if text is None:
            text = live.texts[event.child] = self._begin_text(live.request)
        shown, taken = "", 0
        if text.ended is None:
            shown, taken = self._read(event, text, live.request.sampling.min_tokens)
            if text.ended is not None and event.finish_reason is None:
                self._core.stop(event.request_id, event.child)
        text.count += taken
        if event.finish_reason is not None:
            live.open -= 1
            if not live.open:
                del self._live[event.request_id]
        elif not (taken or event.prompt_logprobs):
            return None
        return _event(event, text, shown, taken)

    def _begin_text(self, request: GenerateRequest) -> _Text:
        detokenizer = None
        if self._tokenizer is not None:
            detokenizer = Detokenizer(
                self._tokenizer, at_start=uses_template(request, self._tokenizer), shown=request.shown_special
            )
        return _Text(detokenizer, StopMatcher(request.stop, include=request.include_stop))

    def _read(self, event: OutputEvent, text: _Text, min_tokens: int) -> tuple[str, int]:
        """Text of an event's tokens, and how many of them stand before a stop string ended the text."""
        detokenizer, stops = text.detokenizer, text.stops
        if detokenizer is None:
            return "", len(event.tokens)
        pieces: list[str] = []
        taken = 0
        try:
            for token in event.tokens:
                piece = detokenizer.push(token)
                taken += 1
                pieces.append(piece if text.count + taken < min_tokens else stops.push(piece))
                if stops.matched is not None:
                    text.ended = "stop"
                    return "".join(pieces), taken
            if event.finish_reason is not None:
                pieces += stops.push(detokenizer.finish()), stops.finish()
                text.ended = "stop" if stops.matched is not None else None
        except Exception as error:
            text.ended = "error"
            text.error = PluginFault(
                f"the tokenizer raised {type(error).__name__}: {error}", subject=f"request {event.request_id!r}"
            )
            text.error.__cause__ = error
        return "".join(pieces), taken


def _event(event: OutputEvent, text: _Text, shown: str, taken: int) -> Event:
    """The core's event; at the end of a sequence, what the text says about its reason comes first."""
    reason, error, usage = event.finish_reason, event.error, event.usage
    if reason is not None and error is None and text.ended is not None:
        reason, error = text.ended, text.error
        if usage is not None:  # tokens that were drawn beyond the stop string are not the caller's
            usage = attrs.evolve(usage, output_tokens=text.count)
    return Event(
        request_id=event.request_id,
        index=event.child,
        text=shown,
        token_ids=event.tokens[:taken],
        logprobs=event.logprobs[:taken],
        prompt_logprobs=event.prompt_logprobs,
        embedding=event.embedding,
        finish_reason=reason,
        usage=usage,
        error=error,
    )
