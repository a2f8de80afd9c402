"""Events of one sequence put together."""

from collections.abc import Sequence

import attrs
from attrs import define, field

from tokloom.api.types import Event, Result


@define
class Gathered:
    """A sequence's events so far. Events hold few tokens each, so that adding one is cheap."""

    prompt: tuple[int, ...]
    events: list[Event] = field(factory=list)

    def take(self, event: Event) -> None:
        """Add the next event."""
        self.events.append(event)

    def result(self) -> Result:
        """All of it, after the last event."""
        whole = join(self.events)
        assert whole.finish_reason is not None
        return Result(
            request_id=whole.request_id,
            index=whole.index,
            text=whole.text,
            token_ids=whole.token_ids,
            prompt_token_ids=self.prompt,
            finish_reason=whole.finish_reason,
            usage=whole.usage,
            logprobs=whole.logprobs,
            prompt_logprobs=whole.prompt_logprobs,
            embedding=whole.embedding,
            error=whole.error,
        )


def join(events: Sequence[Event]) -> Event:
    """One event that says what several successive events of a sequence say."""
    if len(events) == 1:
        return events[0]
    return attrs.evolve(
        events[-1],
        text="".join(event.text for event in events),
        token_ids=tuple(token for event in events for token in event.token_ids),
        logprobs=tuple(entry for event in events for entry in event.logprobs),
        prompt_logprobs=tuple(entry for event in events for entry in event.prompt_logprobs),
    )
