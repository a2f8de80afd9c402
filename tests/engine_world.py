"""A real engine over content-tagged doubles, with everything checked after every step."""

import hashlib
import importlib
import math
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from tokloom.conformance.doubles import oracle
from tokloom.conformance.doubles.harness import Clock as Clock
from tokloom.conformance.doubles.harness import compose_doubles
from tokloom.conformance.doubles.tagged import SHAPES
from tokloom.conformance.doubles.tagged import VOCAB as VOCAB
from tokloom.core.composition import Composition
from tokloom.core.engine import EngineCore
from tokloom.core.events import TokenLogprobs, Usage
from tokloom.sdk import GrammarSpec, Pool, Request, SamplingParams, Scope, TokenSegment, TokloomError

#: adapters of the tagged model, any file is one: two names have the same content
_FOLDER = Path(__file__).parent / "tagged_adapters"
ADAPTERS = {"red": str(_FOLDER / "red"), "rouge": str(_FOLDER / "red-again"), "blue": str(_FOLDER / "blue")}
DIGESTS = {name: hashlib.sha256(Path(path).read_bytes()).hexdigest() for name, path in ADAPTERS.items()}


def compose(
    *,
    model: str = "tagged",
    page: int = 4,
    pages: int = 200,
    depth: int = 0,
    lazy: bool = False,
    batch: int = 32,
    sequences: int = 6,
    longest: int = 120,
    attention: Any = "torch",
    codec: Any = "dense",
    allocator: Any = "paged",
    scheduler: Any = "plain",
    speculator: Any = None,
    drafts: int = 4,
    tiers: Sequence[Any] = (),
    adapters: Mapping[str, str] | None = None,
    observers: Sequence[Any] = ("recorder",),
    clock: Clock | None = None,
    logits: Sequence[str] = ("shift", "parity"),
    more: Sequence[Any] = (),
    **engine: Any,
) -> Composition:
    """A composition of real and double plugins through the real composer; every pool has `pages` pages."""
    return compose_doubles(
        model=model,
        attention=attention,
        codec=codec,
        allocator=allocator,
        scheduler=scheduler,
        speculator=speculator,
        connectors=tiers,
        observers=observers,
        adapters=ADAPTERS if adapters is None else adapters,
        page_tokens=page,
        pages=pages,
        depth=depth,
        lazy=lazy,
        max_batch_tokens=batch,
        max_sequences=sequences,
        max_model_tokens=longest,
        max_draft_tokens=drafts,
        logits=logits,
        extra=[*examples(), *more],
        clock=clock,
        **engine,
    )


def examples() -> list[Any]:
    """Offers of the example packages, without installing them."""
    folder = Path(__file__).parents[1] / "examples" / "plugins"
    made: list[Any] = []
    for kind in ("allocator", "scheduler", "codec", "attention"):
        if str(folder / kind) not in sys.path:
            sys.path.append(str(folder / kind))
        made += getattr(importlib.import_module(f"tokloom_example_{kind}"), f"tokloom_{kind}")()
    return made


def start(composition: Composition) -> EngineCore:
    """An engine whose memory is poisoned. The layout is the one the small pools were given."""
    composition = attrs.evolve(composition, layout=composition.context.layout)
    return EngineCore(composition, poison_pools=True)


def parity(count: str) -> GrammarSpec:
    """That tokens alternate between even and odd, `count` of them."""
    return GrammarSpec("x-tokloom.parity", count)


def request(name: str, prompt: Sequence[int], **options: Any) -> Request:
    """A request; sampling parameters and request fields by name. Greedy unless a temperature is given or it embeds.
    `adapter` is a name.
    """
    fields = {field.name for field in attrs.fields(SamplingParams)}
    defaults = {} if str(options.get("task")) == "embed" else {"temperature": 0.0, "max_tokens": 8}
    sampling = {**defaults, **{k: v for k, v in options.items() if k in fields}}
    others = {k: v for k, v in options.items() if k not in fields and k not in ("salt", "adapter")}
    adapter = options.get("adapter", "")
    return Request(
        request_id=name,
        segments=(TokenSegment(prompt),),
        sampling=SamplingParams(**sampling),
        scope=Scope(salt=options.get("salt", ""), adapter=DIGESTS[adapter] if adapter else ""),
        **others,
    )


@attrs.define
class Outcome:
    """All events of one sequence together."""

    tokens: list[int] = attrs.field(factory=list)
    logprobs: list[TokenLogprobs] = attrs.field(factory=list)
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    embedding: tuple[float, ...] = ()
    reason: str | None = None
    error: TokloomError | None = None
    usage: Usage | None = None

    @property
    def said(self) -> tuple[tuple[int, ...], str | None]:
        return tuple(self.tokens), self.reason


class World:
    """Drives one engine and checks it after every step."""

    def __init__(self, composition: Composition, *, check: bool = True) -> None:
        self.composition = composition
        self.core = start(composition)
        self.outcomes: dict[tuple[str, int], Outcome] = {}
        self.check = check
        self.shape = SHAPES[composition.model.spec.name]
        self.windows = self.shape.windows
        self.requests: dict[str, Request] = {}

    def add(self, *requests: Request) -> None:
        for item in requests:
            self.core.add(item)
            self.requests[item.request_id] = item

    def step(self) -> None:
        for event in self.core.step():
            outcome = self.outcomes.setdefault((event.request_id, event.child), Outcome())
            assert outcome.reason is None, f"an event after the last one: {event}"
            outcome.tokens += event.tokens
            outcome.logprobs += event.logprobs
            outcome.prompt_logprobs = event.prompt_logprobs or outcome.prompt_logprobs
            outcome.embedding = event.embedding
            outcome.reason, outcome.error, outcome.usage = event.finish_reason, event.error, event.usage
            assert bool(event.embedding) == (event.finish_reason == "embedded"), event
            if event.embedding:
                self._check_embedding(self.requests[event.request_id], event.embedding)
        if self.check:
            self.audit()

    def _check_embedding(self, item: Request, found: Sequence[float]) -> None:
        """The vector is the oracle's: what the last layer saw, and the position."""
        adapter = oracle.adapter_tag(item.scope.adapter)
        seen = oracle.hidden(item.prompt_ids, self.windows, self.shape.heads, adapter)
        rows = [(float(tag), float(position)) for position, tag in enumerate(seen)]
        if (item.pooling or "last") == "last":
            rows = rows[-1:]
        wanted = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        length = math.hypot(*wanted) if item.normalize else 1.0
        assert list(found) == pytest.approx([value / length for value in wanted], rel=1e-6, abs=1e-30), item

    def run(self, *requests: Request, limit: int = 4000) -> dict[tuple[str, int], Outcome]:
        """Add requests and run until nothing is left."""
        self.add(*requests)
        for _ in range(limit):
            if not self.core.busy:
                return self.outcomes
            self.step()
        raise AssertionError(f"still busy after {limit} steps: {list(self.core.state.live.values())}")

    def usage(self, name: str, child: int = 0) -> Usage:
        """Of a sequence that has ended."""
        usage = self.outcomes[name, child].usage
        assert usage is not None
        return usage

    def audit(self) -> None:
        """Counters in order, allocator invariants, and K1: committed KV of running sequences is f(prefix)."""
        state = self.core.state
        state.allocator.audit()
        for seq in state.live.values():
            assert 0 <= seq.num_computed <= seq.num_scheduled <= max(seq.allocated, seq.num_scheduled)
            assert seq.num_computed <= len(seq.tokens)
        if self.core._in_flight:
            return
        for seq in state.running.values():
            if not any(begin.seq_id == seq.seq_id for begin in state.begins) and not state.deltas:
                self._check_content(seq)

    def _check_content(self, seq: Any) -> None:
        rows, runner = self.core.runner.rows, self.core.runner
        if state_pending(self.core) or seq.seq_id not in rows._of:
            return
        row = rows.of(seq.seq_id)
        assert int(rows.computed[row]) == seq.num_computed
        wanted = oracle.tags(
            seq.tokens[: seq.num_computed], self.windows, adapter=oracle.adapter_tag(seq.request.scope.adapter)
        )
        for group in self.composition.context.layout.groups:
            if group.owner != "model":
                continue
            low = 0 if group.window is None else max(0, seq.num_computed - group.window + 1)
            sealed = int(rows.sealed[group.id][row]) if group.open is not None else None
            for index, layer in enumerate(group.layers):
                for position in range(low, seq.num_computed):
                    page = position // group.page_tokens
                    pool: Pool = "main" if sealed is None or page < sealed else "open"
                    number = int(rows.tables[group.id, pool][row, page])
                    assert number >= 0, f"position {position} of {seq.seq_id} has no page in group {group.id}"
                    pages = runner._pools.layers(group.id, pool)[index]
                    _, value = self.composition.codec.plugin.read(layer, pages, torch.tensor([number]))
                    found = float(value[0, position % group.page_tokens, 0, 0])
                    if self.composition.codec.name == "scaled":
                        found /= 2
                    assert found == wanted[layer][position], (
                        f"layer {layer}, position {position} of sequence {seq.seq_id}: {found}"
                    )

    def finish(self) -> None:
        """After everything: nothing is held, leased, fenced or remembered."""
        for _ in range(50):
            if self.core.busy:
                self.step()
        self.core._audit_after = 0.0
        self.core.step()
        stats = self.core.state.allocator.stats()
        assert stats.held_pages == 0, stats
        assert stats.fenced_pages == 0, stats
        assert len(self.core.state.free_rows) == self.composition.settings.max_sequences
        assert not self.core.runner._live
        assert len(self.core.runner.sampler) == 0
        assert not self.core.state.computing
        assert not self.core._known
        part = self.composition.speculator
        speculator: Any = part.plugin if part is not None else None
        if hasattr(speculator, "views"):
            assert not speculator.views, "a speculator was not told of an end"
            assert speculator.begun == speculator.ended

    @property
    def faults(self) -> dict[str, str]:
        """What plugins did wrong, by plugin."""
        return self.core.state.faults.last


def state_pending(core: EngineCore) -> bool:
    """Whether rows lag behind the host: something for the next plan is waiting."""
    state = core.state
    return bool(state.deltas or state.begins or state.ends or state.allocator.pending_ops())


def serial(requests: Sequence[Request], model: str = "tagged", **options: Any) -> dict[tuple[str, int], Any]:
    """What each request says when it is alone in a large engine: the reference of every random program."""
    said: dict[tuple[str, int], Any] = {}
    for item in requests:
        world = World(compose(model=model, pages=400, batch=400, sequences=140, **options), check=False)
        said.update({key: outcome.said for key, outcome in world.run(attrs.evolve(item, priority=0)).items()})
    return said


def greedy(prompt: Sequence[int], count: int, model: str = "tagged") -> tuple[int, ...]:
    """The oracle's continuation."""
    return tuple(oracle.greedy(prompt, count, SHAPES[model][0], VOCAB))


def random_requests(rng: random.Random, count: int, *, plain: bool = False) -> list[Request]:
    """Prompts over a small alphabet with shared prefixes, and all kinds of parameters."""
    shared = [rng.randrange(VOCAB) for _ in range(30)]
    made: list[Request] = []
    for index in range(count):
        prompt = shared[: rng.randrange(0, 30)] + [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 15))]
        if made and rng.random() < 0.2:
            prompt = list(rng.choice(made).prompt_ids)
        options: dict[str, Any] = {"max_tokens": rng.randint(1, 12), "seed": rng.randrange(1000)}
        options["salt"] = rng.choice(["", "", "tenant"])
        if not plain:
            options["temperature"] = rng.choice([0.0, 0.0, 1.0])
            options["n"] = rng.choice([1, 1, 1, 2, 3])
            options["priority"] = rng.choice([0, 0, 1])
            options["repetition_penalty"] = rng.choice([1.0, 1.0, 1.3])
            options["stop_token_ids"] = tuple(rng.sample(range(VOCAB), rng.choice([0, 0, 1])))
            options["prompt_logprobs"] = rng.choice([None, None, 1])
            options["logprobs"] = rng.choice([None, 2])
            options["processors"] = rng.choice([(), (), ("shift",)])
            options["grammar"] = rng.choice([None, None, None, parity("7")])
            if rng.random() < 0.1:
                options.update(task="score", n=1, grammar=None)
            own = random.Random(f"{index} {prompt}")
            options["adapter"] = own.choice(["", "", "red", "rouge", "blue"])
            if own.random() < 0.12:
                options = {"task": "embed", "salt": options["salt"], "adapter": options["adapter"]}
                options.update(pooling=own.choice(["", "last", "mean"]), normalize=own.random() < 0.5)
        made.append(request(str(index), prompt, **options))
    return made
