"""StopMatcher: finds stop strings in a stream of text, also across pieces, and holds back what may become one."""

from collections.abc import Sequence


class StopMatcher:
    """The stop string that is complete first wins; of those that complete at the same character, the longest.

    The result does not depend on how the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._longest = max((len(stop) for stop in stops), default=0)
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Text that is safe to show now. After a match, `matched` is set and nothing more comes."""
        if not self._stops:
            return text
        if self.matched is not None:
            return ""
        self._held += text
        ends = [(at + len(stop), -len(stop), stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if ends:
            end, _, self.matched = min(ends)
            shown = self._held[: end if self._include else end - len(self.matched)]
            self._held = ""
            return shown
        keep = self._pending()
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def finish(self) -> str:
        """What was held back; nothing after a match."""
        held, self._held = self._held, ""
        return held

    def _pending(self) -> int:
        """Length of the longest tail that begins a stop string."""
        for size in range(min(self._longest - 1, len(self._held)), 0, -1):
            tail = self._held[len(self._held) - size :]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0
