"""Tiers that are slow, that fail, or that lie."""

import random
from collections.abc import Mapping, Sequence

from torch import Tensor

from tokloom.conformance.doubles.offers import Seeded
from tokloom.sdk import (
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
    """A tier whose jobs end some polls later. Modes: `pending` answers Pending first; `failing` fails random blocks and
    leaves garbage in them; `lying` ends jobs twice and ends unknown ones; `raising` raises everywhere.
    """

    def __init__(self, options: Seeded, context: Context) -> None:
        self._mode = options.mode
        self._context = context
        self._rng = random.Random(options.seed)
        self._blocks: dict[tuple[GroupId, CacheKey], Tensor] = {}
        self._jobs: list[tuple[int, Job, bool]] = []
        self._asked: dict[SeqId, int] = {}
        self._done: list[Done] = []
        self.stored = self.loaded = self.failed = 0
        self.preempted: list[SeqId] = []
        self.finished: list[SeqId] = []
        self.evicted: list[Evicted] = []
        self.closed = False

    def lookup(self, seq: SequenceView, keys: Sequence[Sequence[CacheKey]], start_page: int) -> Match | Pending:
        if self._mode == "raising":
            raise RuntimeError("lookup")
        if self._mode == "pending" and self._asked.setdefault(seq.seq_id, 0) < 3:
            self._asked[seq.seq_id] += 1
            return Pending()
        return Match(
            tuple(
                frozenset(i for i in range(start_page, len(own)) if (group, own[i]) in self._blocks)
                for group, own in enumerate(keys)
            )
        )

    def load(self, job: Job) -> None:
        self._start(job, True)

    def store(self, job: Job) -> None:
        self._start(job, False)

    def _start(self, job: Job, load: bool) -> None:
        if self._mode == "raising":
            raise RuntimeError("job")
        self._jobs.append((self._rng.randint(1, 4), job, load))

    def poll(self) -> Sequence[Done]:
        if self._mode == "raising":
            raise RuntimeError("poll")
        waiting = []
        for left, job, load in self._jobs:
            if left > 1:
                waiting.append((left - 1, job, load))
            else:
                self._done.append(self._finish(job, load))
        self._jobs = waiting
        done, self._done = self._done, []
        if self._mode == "lying":
            done += [Done(end.job_id, "ok") for end in done] + [Done(999_999, "ok")]
        return done

    def _finish(self, job: Job, load: bool) -> Done:
        pages = self._context.pages
        failed = []
        for index, block in enumerate(job.blocks):
            data = self._blocks.get((block.group, block.key))
            if not load:
                self._blocks.setdefault((block.group, block.key), pages.read(block.group, block.page))
                self.stored += 1
            elif data is None or (self._mode == "failing" and self._rng.random() < 0.4):
                failed.append(index)
                pages.write(block.group, block.page, pages.read(block.group, block.page).fill_(0x55))
                self.failed += 1
            else:
                pages.write(block.group, block.page, data)
                self.loaded += 1
        return Done(job.job_id, "failed", tuple(failed)) if failed else Done(job.job_id, "ok")

    def cancel(self, job_id: int) -> None:
        kept = [entry for entry in self._jobs if entry[1].job_id != job_id]
        if len(kept) < len(self._jobs):
            self._jobs = kept
            self._done.append(Done(job_id, "cancelled"))

    def on_evict(self, evicted: Sequence[Evicted]) -> None:
        self.evicted += evicted

    def on_preempt(self, seq_id: SeqId) -> None:
        self.preempted.append(seq_id)

    def on_finish(self, seq_id: SeqId) -> None:
        self.finished.append(seq_id)

    def events(self) -> Sequence[TierEvent]:
        return ()

    def stats(self) -> Mapping[str, int]:
        return {"stored": self.stored, "loaded": self.loaded, "failed": self.failed}

    def health(self) -> Health:
        return Health(True)

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
