"""AdaptiveK: how many drafts to ask for, from what drafts bring and what rows cost.

Per step it maximises (expected tokens per sequence) / (expected seconds), over K = 0, 1, …, max_k:

    tokens(K) = 1 + sum over j <= K of offered_j * accepted_1 * … * accepted_j
    seconds(K) = cost(batch * (1 + sum over j <= K of offered_j))

`offered_j`: how often a sequence that is asked for j drafts gets that many; `accepted_j`: how often the j-th stands
given that the ones before it do; `cost(rows)`: seconds of a step of that many rows. All are moving averages of what
was observed; no clock is read. A change must promise a margin and wait for a few steps, and now and then one step
tries another K so that no average grows stale.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence

from attrs import field, frozen, validators


@frozen(kw_only=True)
class ControllerOptions:
    """How quickly K follows.

    Attributes:
        smoothing: weight of a new observation in the moving averages.
        margin: relative gain that a change of K must promise.
        dwell: steps between two changes.
        probe_every: steps between two probes of another K; 0 never probes.
        prior: acceptance assumed before anything was seen.
    """

    smoothing: float = field(default=0.1, validator=[validators.gt(0.0), validators.le(1.0)])
    margin: float = field(default=0.05, validator=validators.ge(0.0))
    dwell: int = field(default=8, validator=validators.ge(1))
    probe_every: int = field(default=64, validator=validators.ge(0))
    prior: float = field(default=0.8, validator=[validators.ge(0.0), validators.le(1.0)])


class AdaptiveK:
    """One per engine. Deterministic: equal calls give equal answers."""

    def __init__(self, options: ControllerOptions | None = None) -> None:
        self._options = options or ControllerOptions()
        self._cost = _Cost(self._options.smoothing)
        self._offered: list[float] = []
        self._accepted: list[float] = []
        self._current = -1
        self._batch = 0
        self._steps_here = 0
        self._steps_since_probe = 0
        self._probes = 0
        self._asked = 0

    def observe(
        self, rows: int, sequences: int, seconds: float, drafted_by_seq: Sequence[int], accepted_by_seq: Sequence[int]
    ) -> None:
        """One finished step.

        Args:
            rows: target rows computed, prefill included.
            sequences: sequences in the step.
            seconds: how long it took, drafting included.
            drafted_by_seq, accepted_by_seq: per sequence that was asked for drafts, the depth of its draft (0: it got
                none) and how many of its nodes stand.
        """
        if rows <= 0 or sequences <= 0 or not (math.isfinite(seconds) and seconds > 0.0):
            return
        self._cost.observe(rows, seconds)
        for drafted, accepted in zip(drafted_by_seq, accepted_by_seq, strict=True):
            for depth in range(max(self._asked, drafted)):
                self._blend(self._offered, depth, 1.0, drafted > depth)
            for depth in range(min(drafted, accepted + 1)):
                self._blend(self._accepted, depth, self._options.prior, accepted > depth)

    def choose(self, batch_decoding: int, max_k: int) -> int:
        """K for the next step, 0 to `max_k`, when `batch_decoding` sequences decode. Counts as a step."""
        if batch_decoding <= 0 or max_k <= 0:
            self._asked = 0
            return 0
        self._settle(batch_decoding, max_k)
        self._asked = self._probe(max_k)
        return self._asked

    def rate(self, k: int, batch: int) -> float:
        """Expected tokens per second and sequence with k drafts; infinity while no step was observed."""
        tokens, rows, stands = 1.0, 1.0, 1.0
        for depth in range(k):
            offered = _at(self._offered, depth, 1.0)
            stands *= _at(self._accepted, depth, self._options.prior)
            tokens += offered * stands
            rows += offered
        seconds = self._cost.seconds(batch * rows)
        return tokens / seconds if seconds > 0.0 else math.inf

    def _settle(self, batch: int, max_k: int) -> None:
        """Move the current K if that pays."""
        self._steps_here += 1
        moved = self._batch == 0 or not 0.5 <= batch / self._batch <= 2.0
        if self._current < 0 or self._cost.empty:
            self._current, self._batch, self._steps_here = max_k, batch, 0
            return
        self._current = min(self._current, max_k)
        if self._steps_here < self._options.dwell and not moved:
            return
        rates = [self.rate(k, batch) for k in range(max_k + 1)]
        best = max(range(max_k + 1), key=lambda k: (rates[k], -k))
        if best != self._current and rates[best] > rates[self._current] * (1.0 + self._options.margin):
            self._current, self._steps_here = best, 0
        self._batch = batch

    def _probe(self, max_k: int) -> int:
        """The current K, or once in a while its neighbour, or 0 to time a plain step."""
        self._steps_since_probe += 1
        if not self._options.probe_every or self._steps_since_probe < self._options.probe_every:
            return self._current
        self._steps_since_probe = 0
        self._probes += 1
        if self._current == 0:
            return 1
        above = min(self._current + 1, max_k)
        return above if self._probes % 2 == 0 and above != self._current else 0

    def _blend(self, averages: list[float], depth: int, prior: float, hit: bool) -> None:
        while len(averages) <= depth:
            averages.append(_at(averages, len(averages), prior))
        averages[depth] += self._options.smoothing * (hit - averages[depth])


class _Cost:
    """Seconds of a step as a function of its rows: moving averages in classes of rows, linear between them.

    Below the smallest class seen the cost is that class's; above the largest it goes on with the last slope, and is
    flat while only one class is known: optimistic, so that larger steps get tried and then measured.
    """

    #: An observation counts for at most this many times what was expected (cost grows at most as rows do): a pause of
    #: the host is no property of a size.
    _OUTLIER = 3.0
    #: A class that was not seen for this many steps is forgotten.
    _MEMORY = 1000

    def __init__(self, smoothing: float) -> None:
        self._smoothing = smoothing
        self._classes: dict[int, tuple[float, float]] = {}
        self._seen: dict[int, int] = {}
        self._now = 0
        self._line: list[tuple[float, float]] = []

    @property
    def empty(self) -> bool:
        return not self._line

    def observe(self, rows: int, seconds: float) -> None:
        key = rows if rows <= 16 else 16 + round(math.log(rows / 16) / math.log(1.125))
        if self._line:
            growth = max(1.0, rows / self._line[-1][0])
            expected = self._classes[key][1] if key in self._classes else self.seconds(rows) * growth
            seconds = min(seconds, expected * self._OUTLIER)
        old_rows, old = self._classes.get(key, (float(rows), seconds))
        a = self._smoothing
        self._now += 1
        self._seen[key] = self._now
        for stale in [c for c, seen in self._seen.items() if seen < self._now - self._MEMORY]:
            del self._seen[stale], self._classes[stale]
        self._classes[key] = (old_rows + a * (rows - old_rows), old + a * (seconds - old))
        self._line = sorted(self._classes.values())

    def seconds(self, rows: float) -> float:
        line = self._line
        if not line:
            return 0.0
        if rows <= line[0][0] or len(line) == 1:
            return line[0][1]
        at = min(max(bisect_left(line, (rows, 0.0)), 1), len(line) - 1)
        (low, below), (high, above) = line[at - 1], line[at]
        slope = (above - below) / (high - low)
        if rows > high:
            return above + max(slope, 0.0) * (rows - high)
        return below + slope * (rows - low)


def _at(averages: Sequence[float], depth: int, prior: float) -> float:
    """The average at a depth; deeper than anything seen, the deepest one."""
    if depth < len(averages):
        return averages[depth]
    return averages[-1] if averages else prior
