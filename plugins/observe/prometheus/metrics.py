"""Every metric by name: what docs and dashboards refer to. Nothing is registered globally."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

#: seconds; fine where people notice, up to minutes
_LATENCY: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_BETWEEN: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 5.0)


class Metrics:
    """One engine's metrics in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.model = self._gauge("model_info", "1; the label names the model.", "model")
        self.prefill_tokens = self._counter("prefill_tokens", "Prompt tokens computed, recomputed ones too.")
        self.generated_tokens = self._counter("generated_tokens", "Tokens that sequences got.")
        self.prefill_rate = self._gauge("prefill_tokens_per_second", "Prompt tokens computed, over ten seconds.")
        self.generated_rate = self._gauge("generated_tokens_per_second", "Tokens generated, over ten seconds.")
        self.steps = self._counter("steps", "Steps committed.")
        self.step_seconds = self._histogram("step_seconds", "From a step's planning to its commit.", _BETWEEN)
        self.running = self._gauge("running_sequences", "Sequences that run.")
        self.waiting = self._gauge("waiting_sequences", "Sequences that wait to start.")
        self.sequences = self._counter("sequences", "Sequences that ended, by finish reason.", "reason")
        self.ttft = self._histogram("time_to_first_token_seconds", "From arrival to the first token.", _LATENCY)
        self.tpot = self._histogram("time_per_output_token_seconds", "Mean over a sequence's later tokens.", _BETWEEN)
        self.between = self._histogram("inter_token_seconds", "Between two tokens of a sequence.", _BETWEEN)
        self.queued = self._histogram("queue_seconds", "From arrival to the first start.", _LATENCY)
        self.total = self._histogram("request_seconds", "From arrival to the sequence's end.", _LATENCY)
        self.kv_total = self._gauge("kv_pages", "Pages of a KV group.", "group")
        self.kv_held = self._gauge("kv_pages_held", "Pages that sequences, leases or operations hold.", "group")
        self.kv_cached = self._gauge("kv_pages_cached", "Pages kept for prefixes only.", "group")
        self.kv_free = self._gauge("kv_pages_free", "Pages that hold nothing.", "group")
        self.fragmentation = self._gauge("kv_fragmentation", "Share of held token slots without a token.")
        self.hit_tokens = self._counter("prefix_hit_tokens", "Tokens taken from the prefix cache.")
        self.tier_tokens = self._counter("tier_hit_tokens", "Tokens loaded from tiers.")
        self.evictions = self._counter("kv_evictions", "Cached pages given to others.")
        self.preemptions = self._counter("preemptions", "Running sequences that gave up their pages.")
        self.no_space = self._counter("out_of_memory", "Times pages were asked for and there were too few.")
        self.rejected = self._counter("rejected_requests", "Requests refused, by the error's code.", "code")
        self.faults = self._counter("plugin_faults", "Faults by plugin.", "plugin")
        self.drafted = self._counter("drafted_tokens", "Draft tokens verified, by position in the draft.", "position")
        self.accepted = self._counter("accepted_tokens", "Draft tokens kept, by position in the draft.", "position")
        self.mask_seconds = self._counter("grammar_mask_seconds", "Work on grammars' masks.")
        self.mask_wait = self._counter("grammar_mask_wait_seconds", "Time that steps waited for masks.")
        self.objectives = self._counter(
            "objectives", "Sequences with an objective, by whether it was met.", "tenant", "objective", "met"
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"tokloom_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"tokloom_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"tokloom_{name}", text, buckets=buckets, registry=self.registry)
