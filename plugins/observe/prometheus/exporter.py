"""PrometheusExporter: takes the engine's numbers into metrics, and renders them."""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from prometheus_client import Counter, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from tokloom.plugins.observe.prometheus.metrics import Metrics
from tokloom.sdk import RequestStats, StepStats

#: seconds that rates look back
WINDOW: Final = 10.0


class PrometheusExporter:
    """Implements `tokloom.sdk.Exposition`.

    Args:
        max_tenants: tenants with a label of their own.
        model: name of the model.
        now: the engine's clock.
    """

    def __init__(self, max_tenants: int, model: str, now: Callable[[], float]) -> None:
        self._metrics = Metrics()
        self._metrics.model.labels(model).set(1)
        self._max_tenants = max_tenants
        self._tenants: set[str] = set()
        self._now = now
        self._lock = threading.Lock()
        self._recent: deque[tuple[float, int, int]] = deque()
        self._before: dict[tuple[str, str], float] = {}

    def on_step(self, stats: StepStats) -> None:
        m = self._metrics
        m.steps.inc()
        m.step_seconds.observe(stats.finished - stats.started)
        m.prefill_tokens.inc(stats.prefill_rows)
        m.generated_tokens.inc(stats.generated)
        for gap in stats.gaps:
            m.between.observe(gap)
        m.running.set(stats.running)
        m.waiting.set(stats.waiting)
        for group in stats.kv.groups:
            name = str(group.group)
            m.kv_total.labels(name).set(group.total)
            m.kv_held.labels(name).set(group.held)
            m.kv_cached.labels(name).set(group.cached)
            m.kv_free.labels(name).set(group.free)
        m.fragmentation.set(stats.unused_slots / stats.held_slots if stats.held_slots else 0.0)
        m.hit_tokens.inc(stats.hit_tokens)
        m.tier_tokens.inc(stats.tier_tokens)
        m.preemptions.inc(stats.preempted)
        m.no_space.inc(stats.no_space)
        m.mask_seconds.inc(stats.mask_seconds)
        m.mask_wait.inc(stats.mask_wait_seconds)
        self._raise("evictions", m.evictions, {"": stats.kv.evictions})
        self._raise("rejected", m.rejected, stats.rejected)
        self._raise("faults", m.faults, stats.faults_of)
        _add_depths(m.drafted, stats.drafted_by_depth)
        _add_depths(m.accepted, stats.accepted_by_depth)
        with self._lock:
            self._recent.append((stats.finished, stats.prefill_rows, stats.generated))
            self._forget(stats.finished)

    def on_request(self, stats: RequestStats) -> None:
        m = self._metrics
        m.sequences.labels(stats.finish_reason).inc()
        m.total.observe(stats.total)
        if stats.queued >= 0:
            m.queued.observe(stats.queued)
        tpot = -1.0
        if stats.ttft >= 0:
            m.ttft.observe(stats.ttft)
            if stats.output_tokens > 1:
                tpot = (stats.total - stats.ttft) / (stats.output_tokens - 1)
                m.tpot.observe(tpot)
        self._judge(stats, tpot)

    def render(self) -> tuple[str, bytes]:
        with self._lock:
            self._forget(self._now())
            prefill = sum(item[1] for item in self._recent)
            generated = sum(item[2] for item in self._recent)
        self._metrics.prefill_rate.set(prefill / WINDOW)
        self._metrics.generated_rate.set(generated / WINDOW)
        return CONTENT_TYPE_LATEST, generate_latest(self._metrics.registry)

    def close(self) -> None:
        """Nothing to give back; what was counted can still be read."""

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0][0] < now - WINDOW:
            self._recent.popleft()

    def _raise(self, name: str, counter: Counter, totals: Mapping[str, float]) -> None:
        """Bring a counter, or one per label, up to what the engine has counted since its start."""
        for label, total in totals.items():
            key = (name, label)
            grown = total - self._before.get(key, 0)
            if grown > 0:
                self._before[key] = total
                (counter.labels(label) if label else counter).inc(grown)

    def _judge(self, stats: RequestStats, tpot: float) -> None:
        """A sequence that ended before it could miss an objective says nothing about it."""
        wanted = stats.objectives
        verdicts: dict[str, bool] = {}
        late = stats.finish_reason == "deadline"
        if wanted.ttft is not None and (stats.ttft >= 0 or late):
            verdicts["ttft"] = 0 <= stats.ttft <= wanted.ttft
        if wanted.tpot is not None and tpot >= 0:
            verdicts["tpot"] = tpot <= wanted.tpot
        if wanted.deadline is not None and stats.finish_reason not in ("abort", "error"):
            verdicts["deadline"] = not late
        if verdicts:
            tenant = self._tenant(stats.tenant)
            for objective, met in verdicts.items():
                self._metrics.objectives.labels(tenant, objective, "yes" if met else "no").inc()

    def _tenant(self, tenant: str) -> str:
        if tenant in self._tenants:
            return tenant
        if len(self._tenants) < self._max_tenants:
            self._tenants.add(tenant)
            return tenant
        return "other"


def _add_depths(counter: Counter, counts: Sequence[int]) -> None:
    for depth, count in enumerate(counts, 1):
        counter.labels(str(depth)).inc(count)
