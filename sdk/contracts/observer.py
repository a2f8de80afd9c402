"""Observer: is told numbers after each commit. Nothing it does can reach the engine."""

from typing import Protocol

from attrs import frozen

from tokloom.sdk.values.stats import RequestStats, StepStats


@frozen(kw_only=True)
class ObserverCaps:
    """What an observer can do. `exposition`: it is an Exposition."""

    exposition: bool = False


class Observer(Protocol):
    """Called on the loop thread after commit; an exception is counted and ignored. Must not block."""

    def on_step(self, stats: StepStats) -> None:
        """A step with rows was committed."""
        ...

    def on_request(self, stats: RequestStats) -> None:
        """A sequence ended, each of a request's `n`; those that were never forked are not reported."""
        ...

    def close(self) -> None:
        """The engine closes. Idempotent."""
        ...


class Exposition(Observer, Protocol):
    """An observer with something to show to whoever asks over HTTP."""

    def render(self) -> tuple[str, bytes]:
        """Content type and content. Thread-safe: called off the loop thread, also after `close`."""
        ...
