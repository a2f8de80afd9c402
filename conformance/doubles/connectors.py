"""Tiers that are slow, that fail, or that lie."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from tokloom.conformance.doubles.offers import Seeded
from tokloom.sdk import (
    Block,
    CacheKey,
    Context,
    Done,
    Evicted,
    GroupId,
    Health,
    Job,
    Match,
    Pending,
    SeqId,
    SequenceView,
    TierEvent,
)


class Slow:
    """A tier whose jobs end some polls later. Modes:

    - `pending` answers Pending to the first lookups of a sequence;
    - `failing` fails random blocks and leaves garbage in them;
    - `boasting` claims to hold every page: blocks it does not hold fail;
    - `short` ends every other load as failed without saying which blocks, after writing none of them;
    - `sick` is unhealthy;
    - `lying` ends jobs twice and ends unknown ones;
    - `nonsense` gives answers of wrong types and sizes;
    - `raising` raises everywhere.
    """

    def __init__(self, options: Seeded, context: Context) -> None:
        self._mode = options.mode
        self._context = context
        self._rng = random.Random(options.seed)
        self._blocks: dict[tuple[GroupId, CacheKey], Tensor] = {}
        self._jobs: list[tuple[int, Job, bool]] = []
        self._asked: dict[SeqId, int] = {}
        self._done: list[Done] = []
        self._events: list[TierEvent] = []
        self._told = 0
        self.started = self.ended = 0
        self.stored = self.loaded = self.failed = self.lookups = 0
        self.preempted: list[SeqId] = []
        self.finished: list[SeqId] = []
        self.evicted: list[Evicted] = []
        self.closed = False

    def _raise(self, what: str) -> None:
        if self._mode == "raising":
            raise RuntimeError(what)

    def lookup(self, seq: SequenceView, keys: Sequence[Sequence[CacheKey]], start_page: int) -> Match | Pending:
        self._raise("lookup")
        self.lookups += 1
        if self._mode == "nonsense":
            nobody: Any = (None,) * len(keys)
            far = frozenset({10_000})
            answers: list[Any] = [None, Match(()), "match", Match((far,) * len(keys)), Match(nobody)]
            return answers[self.lookups % len(answers)]  # type: ignore[no-any-return]
        if self._mode == "pending" and self._asked.setdefault(seq.seq_id, 0) < 3:
            self._asked[seq.seq_id] += 1
            return Pending()
        return Match(
            tuple(
                frozenset(i for i in range(start_page, len(own)) if self._claims(group, own[i]))
                for group, own in enumerate(keys)
            )
        )

    def _claims(self, group: GroupId, key: CacheKey) -> bool:
        return self._mode == "boasting" or (group, key) in self._blocks

    def load(self, job: Job) -> None:
        self._start(job, True)

    def store(self, job: Job) -> None:
        self._start(job, False)

    def _start(self, job: Job, load: bool) -> None:
        self._raise("job")
        self.started += 1
        self._jobs.append((self._rng.randint(1, 4), job, load))

    def poll(self) -> Sequence[Done]:
        self._raise("poll")
        waiting = []
        for left, job, load in self._jobs:
            if left > 1:
                waiting.append((left - 1, job, load))
            else:
                self._done.append(self._finish(job, load))
        self._jobs = waiting
        done, self._done = self._done, []
        self.ended += len(done)
        if self._mode == "lying":
            done += [Done(end.job_id, "ok") for end in done] + [Done(999_999, "ok")]
        if self._mode == "nonsense":
            return [*done, "done"]  # type: ignore[list-item]
        return done

    def _finish(self, job: Job, load: bool) -> Done:
        if load and self._mode == "short" and self._rng.random() < 0.5:
            self.failed += len(job.blocks)
            return Done(job.job_id, "failed")
        failed = [index for index, block in enumerate(job.blocks) if not self._transfer(block, load)]
        return Done(job.job_id, "failed", tuple(failed)) if failed else Done(job.job_id, "ok")

    def _transfer(self, block: Block, load: bool) -> bool:
        """Move one page; False after leaving garbage in it."""
        pages, place = self._context.pages, (block.group, block.key)
        if not load:
            self.stored += 1
            if place not in self._blocks:
                self._blocks[place] = pages.read(block.group, block.page)
                self._told += 1
                self._events.append(TierEvent(self._told, "stored", (block.key,)))
            return True
        data = self._blocks.get(place)
        if data is None or (self._mode == "failing" and self._rng.random() < 0.4):
            pages.write(block.group, block.page, pages.read(block.group, block.page).fill_(0x55))
            self.failed += 1
            return False
        pages.write(block.group, block.page, data)
        self.loaded += 1
        return True

    def cancel(self, job_id: int) -> None:
        kept = [entry for entry in self._jobs if entry[1].job_id != job_id]
        if len(kept) < len(self._jobs):
            self._jobs = kept
            self._done.append(Done(job_id, "cancelled"))

    def on_evict(self, evicted: Sequence[Evicted]) -> None:
        self._raise("on_evict")
        self.evicted += evicted

    def on_preempt(self, seq_id: SeqId) -> None:
        self._raise("on_preempt")
        self.preempted.append(seq_id)

    def on_finish(self, seq_id: SeqId) -> None:
        self._raise("on_finish")
        self.finished.append(seq_id)

    def events(self) -> Sequence[TierEvent]:
        told, self._events = self._events, []
        return told

    def stats(self) -> Mapping[str, int]:
        return {
            "blocks": len(self._blocks),
            "bytes": sum(data.numel() for data in self._blocks.values()),
            "stored": self.stored,
            "loaded": self.loaded,
            "failed": self.failed,
            "evicted": 0,
        }

    def health(self) -> Health:
        self._raise("health")
        return Health(self._mode != "sick", "it is sick" if self._mode == "sick" else "")

    def close(self) -> None:
        self.closed = True
        self._done += [Done(job.job_id, "cancelled") for _, job, _ in self._jobs]
        self._jobs = []


class Layered(Slow):
    """Also wants to know of every layer. Implements `tokloom.sdk.LayerwiseConnector`."""

    def __init__(self, options: Seeded, context: Context) -> None:
        super().__init__(options, context)
        self.layers: list[tuple[str, int, int]] = []

    def before_layer(self, step: int, layer: int) -> None:
        self.layers.append(("before", step, layer))

    def after_layer(self, step: int, layer: int) -> None:
        self.layers.append(("after", step, layer))
