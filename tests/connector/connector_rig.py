"""A connector between poisoned device pages and a bookkeeper that checks what an engine promises and expects."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from tokloom.plugins.kvcache.connectors.host import HostOptions, tokloom_connector
from tokloom.sdk import (
    Block,
    CacheKey,
    Context,
    Done,
    Evicted,
    KVConnector,
    KVFormat,
    KVGroup,
    KVLayout,
    Match,
    SequenceView,
)
from tokloom.sdk import Job as SdkJob

POISON = 0xFF
#: page bytes and layers of the two groups
SHAPES = ((2, 64), (1, 48))
PAGES = 12


def layout() -> KVLayout:
    groups = tuple(
        KVGroup(
            id=number,
            owner="model",
            layers=tuple(range(layers)),
            main=KVFormat(f"bytes{nbytes}", 4, nbytes, ()),
        )
        for number, (layers, nbytes) in enumerate(SHAPES)
    )
    return KVLayout(groups, (PAGES, PAGES), (0, 0))


def content(group: int, key: CacheKey) -> Tensor:
    """The only right bytes under a key."""
    generator = torch.Generator().manual_seed(int.from_bytes(key[:6], "big") * 2 + group)
    return torch.randint(0, 255, SHAPES[group], dtype=torch.uint8, generator=generator)


def key_of(number: int) -> CacheKey:
    return number.to_bytes(32, "big")[::-1]


class FakePages:
    """PageAccess over poisoned buffers. Touching a page that nobody leased is recorded as an offence."""

    def __init__(self) -> None:
        self.buffers = [torch.full((layers, PAGES, nbytes), POISON, dtype=torch.uint8) for layers, nbytes in SHAPES]
        self.leases: Counter[tuple[int, int]] = Counter()
        self.offences: list[str] = []
        self.handed: dict[tuple[int, int], Tensor] = {}
        self.before: Callable[[str, int, int], None] = lambda what, group, page: None
        self.lock = threading.Lock()

    def read(self, group: int, page: int) -> Tensor:
        self._enter("read", group, page)
        data = self.buffers[group][:, page].clone()
        self.handed[group, page] = data
        return data

    def write(self, group: int, page: int, data: Tensor) -> None:
        self._enter("write", group, page)
        self.buffers[group][:, page] = data

    def nbytes(self, group: int) -> int:
        layers, nbytes = SHAPES[group]
        return layers * nbytes

    def _enter(self, what: str, group: int, page: int) -> None:
        self.before(what, group, page)
        with self.lock:
            if not self.leases[group, page]:
                self.offences.append(f"{what} of page {page} of group {group} without a lease")


class SilentLog:
    def debug(self, event: str, **fields: str | int | float) -> None: ...

    info = warning = error = debug


class FakeContext:
    """The part of a Context that a tier uses. `pages` is bound late, as in an engine."""

    def __init__(self) -> None:
        self.layout = layout()
        self.woken = threading.Event()
        self.wake = self.woken.set
        self.log = SilentLog()
        self.bound: FakePages | None = None

    @property
    def pages(self) -> FakePages:
        assert self.bound is not None, "pages were used before they exist"
        return self.bound


class Rig:
    """Plays the core: leases pages for jobs, collects Dones, checks that each job has exactly one."""

    def __init__(self, **options: object) -> None:
        self._others = set(threading.enumerate())
        self.context = FakeContext()
        (offer,) = tokloom_connector()
        made = HostOptions(**{"capacity": "1MiB", **options})  # type: ignore[arg-type]
        self.tier: KVConnector = offer.factory(made, cast(Context, self.context))
        self.pages = self.context.bound = FakePages()
        self.live: dict[int, SdkJob] = {}
        self.done: dict[int, Done] = {}
        self.next_job = 1

    def runs_a_thread(self) -> bool:
        """Whether a tier's thread lives that did not before this one was made."""
        return any(thread.name == "tokloom-host-tier" for thread in {*threading.enumerate()} - self._others)

    def fill(self, group: int, page: int, number: int) -> None:
        """Compute: the device page now holds the content of a key."""
        self.pages.buffers[group][:, page] = content(group, key_of(number))

    def poison(self, group: int, page: int) -> None:
        self.pages.buffers[group][:, page] = POISON

    def holds(self, group: int, page: int, number: int) -> bool:
        return torch.equal(self.pages.buffers[group][:, page], content(group, key_of(number)))

    def is_poison(self, group: int, page: int) -> bool:
        return bool((self.pages.buffers[group][:, page] == POISON).all())

    def job(self, blocks: Sequence[tuple[int, int, int]], seq_id: int = -1) -> SdkJob:
        """A job over (group, key number, page), its pages leased."""
        job = SdkJob(self.next_job, seq_id, tuple(Block(g, key_of(n), p) for g, n, p in blocks))
        self.next_job += 1
        self.live[job.job_id] = job
        with self.pages.lock:
            self.pages.leases.update((block.group, block.page) for block in job.blocks)
        return job

    def store(self, *blocks: tuple[int, int, int]) -> int:
        job = self.job(blocks)
        self.tier.store(job)
        return job.job_id

    def load(self, *blocks: tuple[int, int, int]) -> int:
        job = self.job(blocks, seq_id=7)
        self.tier.load(job)
        return job.job_id

    def evict(self, *blocks: tuple[int, int, int]) -> None:
        """The device pool is about to reuse pages; they may be read inside the call only."""
        with self.pages.lock:
            self.pages.leases.update((g, p) for g, _, p in blocks)
        self.tier.on_evict([Evicted(g, key_of(n), p) for g, n, p in blocks])
        with self.pages.lock:
            self.pages.leases.subtract((g, p) for g, _, p in blocks)
        for group, _, page in blocks:
            self.poison(group, page)

    def poll(self) -> None:
        for done in self.tier.poll():
            assert done.job_id not in self.done, f"job {done.job_id} ended twice"
            job = self.live.pop(done.job_id)
            with self.pages.lock:
                self.pages.leases.subtract((block.group, block.page) for block in job.blocks)
            self.done[done.job_id] = done

    def wait(self, *job_ids: int) -> list[Done]:
        """Sleep as an idle engine does: only a wake-up makes it poll again."""
        while True:
            self.poll()
            if all(job_id in self.done for job_id in job_ids):
                assert not self.pages.offences, self.pages.offences
                return [self.done[job_id] for job_id in job_ids]
            assert self.context.woken.wait(20), f"nobody woke the engine for one of the jobs {job_ids}"
            self.context.woken.clear()

    def save(self, group: int, number: int, page: int = 0) -> Done:
        """Compute a page, store it, and overwrite the page."""
        self.fill(group, page, number)
        (done,) = self.wait(self.store((group, number, page)))
        self.poison(group, page)
        return done

    def held(self, group: int, numbers: Sequence[int]) -> set[int]:
        """Which keys a lookup finds."""
        keys: list[list[CacheKey]] = [[], []]
        keys[group] = [key_of(n) for n in numbers]
        match = self.tier.lookup(cast(SequenceView, None), keys, 0)
        assert isinstance(match, Match)
        assert len(match.pages) == 2
        return {numbers[index] for index in match.pages[group]}


class Gate:
    """Holds the tier's thread inside a copy until the test lets it go."""

    def __init__(self, rig: Rig) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        rig.pages.before = self._before

    def _before(self, what: str, group: int, page: int) -> None:
        self.reached.set()
        assert self.open.wait(20)

    def await_thread(self) -> None:
        assert self.reached.wait(20)


def random_delays(rig: Rig, seed: int) -> None:
    rng = random.Random(seed)

    def before(what: str, group: int, page: int) -> None:
        time.sleep(rng.choice((0.0, 0.0, 0.0005, 0.002)))

    rig.pages.before = before
