"""The hypothesis state machine over the real engine: any order of requests, aborts, stops, waits and steps."""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import attrs
import hypothesis.strategies as st
import pytest
from engine_checks import CheckedWorld
from engine_world import VOCAB, Clock, Outcome, World, compose, parity, request
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tokloom.core.events import TokenLogprobs
from tokloom.sdk import CapacityError, Objectives, Request

MODELS = ("tagged", "tagged-window", "tagged-eos")
SPECULATORS: tuple[Any, ...] = (
    None,
    {"plugin": "ngram"},
    {"plugin": "oracle", "options": {"mode": "trees", "seed": 3}},
    {"plugin": "oracle", "options": {"mode": "wrong"}},
    {"plugin": "garbage", "options": {"seed": 4}},
    {"plugin": "featured", "options": {"seed": 1}},
    {"plugin": "on-device", "options": {"mode": "trees", "seed": 5}},
    {"plugin": "on-device", "options": {"seed": 6}},
)
CODECS: tuple[Any, ...] = (
    "dense",
    "dense",
    "scaled",
    {"plugin": "sealing", "options": {"residual": 0}},
    {"plugin": "sealing", "options": {"residual": 3}},
)
TIERS: tuple[list[Any], ...] = (
    [],
    ["slow"],
    [{"plugin": "slow", "options": {"mode": "pending"}}],
    [{"plugin": "slow", "options": {"mode": "failing", "seed": 2}}],
    [{"plugin": "slow", "options": {"mode": "lying"}}],
    ["layered", {"plugin": "host", "options": {"capacity": "1MiB"}}],
)
SCHEDULERS: tuple[Any, ...] = ("plain", "fcfs", "chaos", {"plugin": "broken", "options": {"mode": "nonsense"}})
#: most prompts share a beginning: without hits, forks and waits for prefixes little can go wrong
PATTERN = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1, 3, 5, 7, 9, 2, 4, 6, 8]
LONGEST = 34
KINDS = (
    "plain",
    "plain",
    "plain",
    "score",
    "logprobs",
    "grammar",
    "shift",
    "stops",
    "deadline",
    "embed last",
    "embed mean",
)


class Reference:
    """What a request says alone, in a large engine without a prefix cache; remembered by its parameters."""

    def __init__(self) -> None:
        self._worlds: dict[str, World] = {}
        self._said: dict[tuple[str, str], dict[int, Outcome]] = {}

    def of(self, model: str, item: Request) -> dict[int, Outcome]:
        """Outcome per child."""
        alone = attrs.evolve(item, request_id="alone", priority=0, objectives=Objectives())
        key = model, repr(alone)
        if key not in self._said:
            world = self._worlds.get(model)
            if world is None:
                allocator = {"plugin": "paged", "options": {"prefix_cache": False}}
                options: dict[str, Any] = {
                    "pages": 400,
                    "batch": 400,
                    "sequences": 8,
                    "longest": LONGEST,
                    "allocator": allocator,
                }
                world = self._worlds[model] = World(compose(model=model, **options), check=False)
            world.outcomes.clear()
            world.run(alone)
            self._said[key] = {child: outcome for (_, child), outcome in world.outcomes.items()}
        return self._said[key]


def assert_same_logprobs(found: Sequence[TokenLogprobs], wanted: Sequence[TokenLogprobs]) -> None:
    """Equal tokens and, up to rounding, equal log-probabilities."""
    assert [entry.token for entry in found] == [entry.token for entry in wanted]
    assert [entry.logprob for entry in found] == pytest.approx([e.logprob for e in wanted], abs=1e-6, nan_ok=True)


class EngineMachine(RuleBasedStateMachine):
    """Random programs over one engine; everything is checked after every step and once more at the end."""

    reference: ClassVar[Reference] = Reference()
    #: what the programs so far made the engine do
    totals: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.world: CheckedWorld | None = None
        self.clock = Clock()
        self.requests: dict[str, Request] = {}
        self.cut: dict[tuple[str, int], set[str]] = {}

    @property
    def w(self) -> CheckedWorld:
        assert self.world is not None
        return self.world

    @initialize(
        model=st.sampled_from(MODELS),
        page=st.sampled_from([1, 2, 4, 4]),
        spare=st.integers(0, 12),
        depth=st.sampled_from([0, 1]),
        lazy=st.booleans(),
        batch=st.sampled_from([3, 7, 32]),
        sequences=st.integers(1, 5),
        speculator=st.sampled_from(range(len(SPECULATORS))),
        codec=st.sampled_from(range(len(CODECS))),
        tiers=st.sampled_from(range(len(TIERS))),
        scheduler=st.sampled_from(range(len(SCHEDULERS))),
    )
    def compose(self, page: int, spare: int, batch: int, speculator: int, **options: Any) -> None:
        codec = CODECS[options.pop("codec")]
        self.world = CheckedWorld(
            compose(
                page=page,
                pages=LONGEST // page + 3 + spare,
                batch=batch,
                sequences=min(options.pop("sequences"), batch),
                longest=LONGEST,
                speculator=SPECULATORS[speculator],
                codec=codec,
                tiers=TIERS[options.pop("tiers")],
                scheduler=SCHEDULERS[options.pop("scheduler")],
                max_waiting=12,
                clock=self.clock,
                **options,
            )
        )

    @rule(
        common=st.integers(0, len(PATTERN)),
        tail=st.lists(st.integers(0, VOCAB - 1), max_size=4),
        max_tokens=st.integers(0, 9),
        n=st.sampled_from([1, 1, 1, 2, 4]),
        hot=st.booleans(),
        seed=st.integers(0, 3),
        salt=st.sampled_from(["", "", "", "other"]),
        adapter=st.sampled_from(["", "", "", "red", "rouge", "blue"]),
        kind=st.sampled_from(KINDS),
        priority=st.sampled_from([0, 0, 1]),
        copies=st.sampled_from([1, 1, 2, 4]),
    )
    def add(
        self,
        common: int,
        tail: list[int],
        max_tokens: int,
        n: int,
        hot: bool,
        seed: int,
        salt: str,
        adapter: str,
        kind: str,
        priority: int,
        copies: int,
    ) -> None:
        kinds: dict[str, dict[str, Any]] = {
            "score": {"task": "score", "n": 1, "prompt_logprobs": 1},
            "logprobs": {"prompt_logprobs": 0, "logprobs": 2},
            "grammar": {"grammar": parity("5")},
            "shift": {"processors": ("shift",), "repetition_penalty": 1.3},
            "stops": {"stop_token_ids": (2, 5)},
            "deadline": {"objectives": Objectives(deadline=1.0)},
        }
        fields: dict[str, Any] = {"max_tokens": max_tokens, "n": n, "temperature": float(hot), "seed": seed}
        if kind.startswith("embed"):
            fields = {"task": "embed", "pooling": kind.removeprefix("embed "), "normalize": hot}
        fields |= kinds.get(kind, {})
        for copy in range(copies):
            prompt = [*PATTERN[:common], *tail, *range(copy)] or [0]
            name = str(len(self.requests))
            self._add(request(name, prompt, salt=salt, priority=priority, adapter=adapter, **fields))

    def _add(self, item: Request) -> None:
        try:
            self.w.add(item)
        except CapacityError:
            self.totals["refused"] += 1
            return
        self.requests[item.request_id] = item
        if item.objectives.deadline is not None:
            self._allow(item.request_id, "deadline")

    def _allow(self, name: str, reason: str) -> None:
        """From now on sequences of the request may end early for this reason."""
        for child in range(self.requests[name].sampling.n):
            self.cut.setdefault((name, child), set()).add(reason)

    @rule(rounds=st.integers(1, 6))
    def step(self, rounds: int) -> None:
        for _ in range(rounds):
            self.w.step()

    @precondition(lambda self: self.requests)
    @rule(which=st.integers(0, 7))
    def abort(self, which: int) -> None:
        """Any of the last eight requests, live or not."""
        name = list(self.requests)[-1 - which % len(self.requests)]
        live = name in self.w.core._known
        assert self.w.core.abort(name) == live
        if live:
            self._allow(name, "abort")

    @precondition(lambda self: self.w.core.state.live)
    @rule(which=st.integers(0, 7))
    def stop(self, which: int) -> None:
        live = list(self.w.core.state.live.values())
        seq = live[which % len(live)]
        name, child = seq.request.request_id, seq.child
        children = range(seq.request.sampling.n) if not seq.forked else [child]
        for one in children:
            self.cut.setdefault((name, one), set()).add("stop")
        self.w.core.stop(name, child)

    @precondition(lambda self: self.w.core.state.running)
    @rule(which=st.integers(0, 7))
    def preempt(self, which: int) -> None:
        """Whoever runs, whatever is in flight: results of the life before must not count."""
        running = list(self.w.core.state.running.values())
        self.w.core.state.preempt(running[which % len(running)])

    @rule()
    def time_passes(self) -> None:
        self.clock.time += 0.4

    @rule(sure=st.integers(0, 5))
    def forget_the_cache(self, sure: int) -> None:
        if sure == 5:
            self.w.core.state.allocator.invalidate(None)

    @rule(sure=st.integers(0, 3))
    def become_idle(self, sure: int) -> None:
        if sure == 3:
            self.run_dry()

    def run_dry(self) -> None:
        for _ in range(3000):
            if not self.w.core.busy:
                return
            self.w.step()
        raise AssertionError(f"still busy: {list(self.w.core.state.live.values())}")

    def teardown(self) -> None:
        failing = sys.exc_info()[0] is not None
        if self.world is None or failing:
            return
        self.run_dry()
        self.w.finish()
        self._compare()
        self._no_faults_of_sound_speculators()
        self._count()
        self.w.core.close()

    def _compare(self) -> None:
        model = self.w.composition.model.spec.name
        wanted = {
            (name, child): outcome
            for name, item in self.requests.items()
            for child, outcome in self.reference.of(model, item).items()
        }
        assert self.w.outcomes.keys() == wanted.keys()
        for key, outcome in self.w.outcomes.items():
            self.totals[f"ended by {outcome.reason}"] += 1
            if outcome.reason in self.cut.get(key, ()) and outcome.said != wanted[key].said:
                assert tuple(outcome.tokens) == wanted[key].said[0][: len(outcome.tokens)], key
            else:
                assert outcome.said == wanted[key].said, (key, self.requests[key[0]], outcome.error, self.w.faults)
                assert_same_logprobs(outcome.logprobs, wanted[key].logprobs)
                assert_same_logprobs(outcome.prompt_logprobs, wanted[key].prompt_logprobs)

    def _no_faults_of_sound_speculators(self) -> None:
        part = self.w.composition.speculator
        if part is not None and part.name != "garbage":
            assert part.id not in self.w.faults, self.w.faults

    def _count(self) -> None:
        state = self.w.core.state
        stats = state.allocator.stats()
        self.totals.update(
            preemptions=state.preempted,
            hits=state.hit_tokens,
            tier=state.tiers.loaded_tokens,
            evictions=stats.evictions,
            copies=stats.copies,
            seals=stats.seals,
            accepted=sum(outcome.usage.accepted for outcome in self.w.outcomes.values() if outcome.usage),
            **self.w.checked,
        )
