"""Every metric through the engine: a scenario makes it grow, and it is compared with an independent count."""

import random
import re
from pathlib import Path
from typing import Any

import pytest
from engine_world import World, compose, request

prometheus_client = pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from tokloom.plugins.observe.prometheus.exporter import WINDOW, PrometheusExporter  # noqa: E402
from tokloom.plugins.observe.prometheus.metrics import Metrics  # noqa: E402
from tokloom.sdk import CapacityError, Objectives, RequestError, RequestStats  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "observability.md"


class Watched(World):
    """A world whose engine has a recorder and the exporter."""

    def __init__(self, **options: Any) -> None:
        super().__init__(compose(observers=("recorder", "prometheus"), **options))
        recorder, exporter = self.composition.observers
        self.recorder: Any = recorder.plugin
        self.exporter: Any = exporter.plugin

    def samples(self) -> dict[tuple[str, tuple[str, ...]], float]:
        """Name and label values -> value."""
        kind, text = self.exporter.render()
        assert kind.startswith("text/plain")
        found = {}
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                found[sample.name.removeprefix("tokloom_"), tuple(sample.labels.values())] = sample.value
        return found

    def value(self, name: str, *labels: str) -> float:
        return self.samples().get((name, labels), 0.0)


def prompts(count: int, length: int, seed: int = 5) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(1, 11) for _ in range(length)] for _ in range(count)]


def test_tokens_times_and_sequences_are_counted() -> None:
    world = Watched()
    asked = [request(f"r{i}", p, max_tokens=3 + i, ignore_eos=True) for i, p in enumerate(prompts(4, 9))]
    outcomes = world.run(*asked)
    emitted = sum(len(outcome.tokens) for outcome in outcomes.values())
    assert world.value("generated_tokens_total") == emitted
    assert world.value("prefill_tokens_total") == 4 * 9
    assert world.value("sequences_total", "length") == 4
    assert world.value("time_to_first_token_seconds_count") == 4
    assert world.value("queue_seconds_count") == world.value("request_seconds_count") == 4
    assert world.value("inter_token_seconds_count") == emitted - 4
    assert world.value("time_per_output_token_seconds_count") == 4
    assert world.value("steps_total") == world.value("step_seconds_count") == len(world.recorder.steps)
    totals = sum(stats.total for stats in world.recorder.requests)
    assert world.value("request_seconds_sum") == pytest.approx(totals)
    usages = [outcome.usage for outcome in outcomes.values()]
    ttfts = sum(usage.ttft for usage in usages if usage is not None)
    assert world.value("time_to_first_token_seconds_sum") == pytest.approx(ttfts)
    gaps = sum(usage.total - usage.ttft for usage in usages if usage is not None)
    assert world.value("inter_token_seconds_sum") == pytest.approx(gaps, rel=0.2)
    assert world.value("generated_tokens_per_second") == pytest.approx(emitted / WINDOW)
    assert world.value("prefill_tokens_per_second") == pytest.approx(36 / WINDOW)
    assert world.value("model_info", world.composition.model.spec.name) == 1


def test_pages_of_each_group_and_fragmentation() -> None:
    world = Watched(model="tagged-window", page=4, pages=60)
    world.add(request("a", prompts(1, 10)[0], max_tokens=20, ignore_eos=True))
    for _ in range(4):
        world.step()
    stats = world.core.state.allocator.stats()
    groups = world.composition.context.layout.groups
    assert len(groups) > 1
    for group in stats.groups:
        name = str(group.group)
        assert world.value("kv_pages", name) == group.total == 60
        assert world.value("kv_pages_held", name) == group.held > 0
        assert world.value("kv_pages_free", name) == group.free
    assert sum(group.held for group in stats.groups) == stats.held_pages
    (seq,) = world.core.state.running.values()
    slots = -(-seq.allocated // 4) * 4
    assert world.value("kv_fragmentation") == pytest.approx((slots - seq.num_computed) / slots)
    assert world.value("running_sequences") == 1
    world.run()
    assert world.value("kv_pages_cached", "0") == world.core.state.allocator.stats().groups[0].cached > 0


def test_hits_evictions_preemptions_and_too_few_pages() -> None:
    world = Watched(page=4, pages=14, sequences=4, batch=16)
    first = prompts(1, 12)[0]
    world.run(request("a", first))
    world.run(request("b", first))
    usage = world.usage("b")
    assert world.value("prefix_hit_tokens_total") == usage.hit_tokens > 0
    asked = [request(f"c{i}", p, max_tokens=24, ignore_eos=True) for i, p in enumerate(prompts(4, 10, 8))]
    world.run(*asked)
    state = world.core.state
    assert world.value("preemptions_total") == state.preempted > 0
    assert world.value("kv_evictions_total") == state.allocator.stats().evictions > 0
    assert world.value("out_of_memory_total") == state.no_space >= state.preempted


def test_tier_hits_are_counted() -> None:
    world = Watched(page=4, pages=10, tiers=[{"plugin": "host", "options": {"capacity": "1MiB"}}])
    first, *others = prompts(6, 16, 3)
    world.run(request("a", first))
    for number, other in enumerate(others):
        world.run(request(f"o{number}", other))
    world.run(request("again", first))
    assert world.value("tier_hit_tokens_total") == world.core.state.tiers.loaded_tokens > 0


def test_drafts_by_position() -> None:
    world = Watched(speculator={"plugin": "oracle"})
    outcomes = world.run(*(request(f"r{i}", p, max_tokens=20) for i, p in enumerate(prompts(3, 8))))
    usages = [outcome.usage for outcome in outcomes.values() if outcome.usage is not None]
    drafted = sum(value for (name, _), value in world.samples().items() if name == "drafted_tokens_total")
    accepted = sum(value for (name, _), value in world.samples().items() if name == "accepted_tokens_total")
    assert drafted == sum(usage.drafted for usage in usages) > 0
    assert accepted == sum(usage.accepted for usage in usages) > 0
    assert world.value("drafted_tokens_total", "1") >= world.value("drafted_tokens_total", "2") > 0


def test_rejections_and_faults() -> None:
    world = Watched(speculator={"plugin": "garbage", "options": {"mode": "raise"}}, max_waiting=2)
    with pytest.raises(RequestError):
        world.core.add(request("bad", [10**6]))
    world.add(request("a", prompts(1, 8)[0], max_tokens=12), request("b", [1, 2]))
    with pytest.raises(CapacityError):
        world.core.add(request("c", [1, 2]))
    world.run()
    assert world.value("rejected_requests_total", "request") == 1
    assert world.value("rejected_requests_total", "capacity") == 1
    counts = world.core.state.faults.counts
    assert counts
    for plugin, count in counts.items():
        assert world.value("plugin_faults_total", plugin) == count > 0


def test_objectives_per_tenant() -> None:
    exporter = PrometheusExporter(2, "m", lambda: 0.0)

    def ended(tenant: str, first: float, total: float, reason: Any = "stop", **wanted: float) -> None:
        exporter.on_request(
            RequestStats(
                request_id="r",
                tenant=tenant,
                seq_id=1,
                finish_reason=reason,
                prompt_tokens=1,
                output_tokens=11,
                hit_tokens=0,
                tier_tokens=0,
                queued=0.0,
                ttft=first,
                total=total,
                preemptions=0,
                objectives=Objectives(**wanted),
            )
        )

    ended("a", 0.4, 1.4, ttft=0.5, tpot=0.2, deadline=2.0)
    ended("a", 0.6, 3.6, ttft=0.5, tpot=0.2)
    ended("b", -1.0, 1.0, "deadline", ttft=0.5, deadline=1.0)
    ended("b", -1.0, 1.0, "abort", ttft=0.5, deadline=1.0)
    ended("c", 0.1, 0.2, ttft=0.5)
    ended("d", 0.1, 0.2, ttft=0.5)
    ended("e", 0.1, 0.2)
    found = {
        tuple(sample.labels[key] for key in ("tenant", "objective", "met")): sample.value
        for family in text_string_to_metric_families(exporter.render()[1].decode())
        for sample in family.samples
        if sample.name == "tokloom_objectives_total"
    }
    assert found == {
        ("a", "ttft", "yes"): 1,
        ("a", "ttft", "no"): 1,
        ("a", "tpot", "yes"): 1,
        ("a", "tpot", "no"): 1,
        ("a", "deadline", "yes"): 1,
        ("b", "ttft", "no"): 1,
        ("b", "deadline", "no"): 1,
        ("other", "ttft", "yes"): 2,
    }


def test_two_engines_have_metrics_of_their_own() -> None:
    one, other = Watched(), Watched()
    one.run(request("a", [1, 2, 3]))
    assert one.value("steps_total") > 0
    assert other.value("steps_total") == 0


def test_every_metric_is_documented() -> None:
    text = PAGE.read_text(encoding="utf-8")
    families = list(Metrics().registry.collect())
    documented = set(re.findall(r"^\| `(tokloom_[a-z_]+)`", text, re.MULTILINE))
    names = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    assert documented == names
    for family in families:
        assert family.documentation in text, family.name
