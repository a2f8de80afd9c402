"""HostTier: the `host` connector. One thread of its own copies bytes between device pages and blocks in main memory.

```text
loop thread     load/store ─► JobQueue                      poll ◄─ ended
                                 │                                    ▲
tier's thread                  take ─► per block: read/write pages ─► finish ─► wake
```
"""

import ctypes
import hashlib
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tokloom.plugins.kvcache.connectors.host.blocks import BlockId, BlockStore, StoredBlock
from tokloom.plugins.kvcache.connectors.host.jobs import JobQueue, Work
from tokloom.plugins.kvcache.connectors.host.sizes import parse_size
from tokloom.sdk import (
    Block,
    CacheKey,
    CompositionError,
    Context,
    Done,
    Evicted,
    GroupId,
    Health,
    Job,
    Match,
    PageId,
    SeqId,
    SequenceView,
    TierEvent,
)

if TYPE_CHECKING:
    from torch import Tensor

    from tokloom.plugins.kvcache.connectors.host import HostOptions


class HostTier:
    """A KVConnector over main memory: least recently used blocks leave first, content is found by (group, key).

    Raises CompositionError where the capacity does not hold one page of every group.
    """

    def __init__(self, options: "HostOptions", context: Context) -> None:
        self._context = context
        self._write_back = options.write_policy == "back"
        self._verify = options.verify
        self._block_bytes = tuple(len(group.layers) * group.main.page_bytes for group in context.layout.groups)
        capacity = parse_size(options.capacity)
        if capacity < sum(self._block_bytes):
            raise CompositionError(
                f"a capacity of {capacity} bytes does not hold one page of each group ({sum(self._block_bytes)} bytes)",
                subject="connector.host",
                remedy="Raise its option `capacity`, or leave the tier out",
            )
        self._blocks = BlockStore(capacity)
        self._queue = JobQueue(options.max_jobs, context.wake)
        self._counts_lock = threading.Lock()
        self._counts = {"stored": 0, "loaded": 0, "failed": 0}
        self._thread: threading.Thread | None = None
        self._closed = False
        self._fault = ""

    def lookup(self, seq: SequenceView, keys: Sequence[Sequence[CacheKey]], start_page: int) -> Match:
        """What is held now. Never Pending: the index is in memory."""
        return Match(
            tuple(
                frozenset(page for page in range(start_page, len(chain)) if (group, chain[page]) in self._blocks)
                for group, chain in enumerate(keys)
            )
        )

    def load(self, job: Job) -> None:
        self._submit(Work(job, "load"))

    def store(self, job: Job) -> None:
        """Under the policy `back` nothing is copied here, and the job ends as cancelled."""
        if self._write_back:
            self._queue.decline(job)
        else:
            self._submit(Work(job, "store"))

    def poll(self) -> Sequence[Done]:
        return self._queue.poll()

    def cancel(self, job_id: int) -> None:
        self._queue.cancel(job_id)

    def on_evict(self, evicted: Sequence[Evicted]) -> None:
        """Under the policy `back`: copies what the tier does not hold yet. Under `through`: nothing is left to do."""
        if not self._write_back or self._closed:
            return
        batch = frozenset((gone.group, gone.key) for gone in evicted)
        for gone in evicted:
            self._save(gone.group, gone.key, gone.page, batch)
        self._blocks.touch((gone.group, gone.key) for gone in reversed(evicted))

    def on_preempt(self, seq_id: SeqId) -> None:
        """Blocks outlive sequences: nothing to do."""

    def on_finish(self, seq_id: SeqId) -> None:
        """Blocks outlive sequences: nothing to do."""

    def events(self) -> Sequence[TierEvent]:
        return self._blocks.events()

    def stats(self) -> Mapping[str, int]:
        """The mandatory counters, and `dropped`: jobs for which there was no room in the queue."""
        with self._counts_lock:
            return {**self._counts, **self._blocks.counts(), "dropped": self._queue.dropped}

    def health(self) -> Health:
        if self._closed:
            return Health(False, "closed")
        return Health(not self._fault, self._fault)

    def close(self) -> None:
        """Waits for the block that is being copied, for no longer transfer."""
        if self._closed:
            return
        self._closed = True
        self._queue.close()
        if self._thread is not None:
            self._thread.join()
        self._blocks.clear()

    def _submit(self, work: Work) -> None:
        if self._thread is None and not self._closed and not self._fault:
            thread = threading.Thread(target=self._work, name="tokloom-host-tier", daemon=True)
            try:
                thread.start()
                self._thread = thread
            except RuntimeError as error:
                self._fault = f"its thread cannot be started: {error}"
        if self._fault:
            self._queue.decline(work.job)
        else:
            self._queue.submit(work)

    def _work(self) -> None:
        while (work := self._queue.take()) is not None:
            self._queue.finish(self._run(work))

    def _run(self, work: Work) -> Done:
        blocks = work.job.blocks
        mine = frozenset((block.group, block.key) for block in blocks)
        failed: list[int] = []
        for index, block in enumerate(blocks):
            if work.cancelled:
                return Done(work.job.job_id, "cancelled")
            if work.kind == "load":
                arrived = self._restore(block)
            else:
                arrived = self._save(block.group, block.key, block.page, mine)
            if not arrived:
                failed.append(index)
        # A chain is of use from its head on, so its tail is to leave first.
        self._blocks.touch((block.group, block.key) for block in reversed(blocks))
        return Done(work.job.job_id, "failed" if failed else "ok", tuple(failed))

    def _save(self, group: GroupId, key: CacheKey, page: PageId, keep: frozenset[BlockId]) -> bool:
        """Copy a page into a block. False: it does not fit beside `keep`, or its bytes could not be read."""
        if (group, key) in self._blocks:
            return True
        try:
            data = self._context.pages.read(group, page).contiguous()
            self._check_size(group, data)
            stored = StoredBlock(data, data.nbytes, digest(data) if self._verify else b"")
        except Exception as error:
            self._report("store", group, error)
            return False
        kept = self._blocks.put((group, key), stored, keep)
        if kept:
            self._count("stored")
        return kept

    def _restore(self, block: Block) -> bool:
        """Copy a block into its page. False: it is not held, is damaged, or could not be written."""
        place = (block.group, block.key)
        stored = self._blocks.get(place)
        if stored is None:
            self._count("failed")
            return False
        try:
            self._check_size(block.group, stored.data)
            if stored.digest and digest(stored.data) != stored.digest:
                raise ValueError("the stored bytes are not those that were saved")
        except Exception as error:
            self._blocks.remove(place, stored)
            self._report("load", block.group, error)
            return False
        try:
            self._context.pages.write(block.group, block.page, stored.data)
        except Exception as error:
            self._report("load", block.group, error)
            return False
        self._count("loaded")
        return True

    def _check_size(self, group: GroupId, data: "Tensor") -> None:
        if data.nbytes != self._block_bytes[group]:
            raise ValueError(f"a block has {data.nbytes} bytes, a page of group {group} {self._block_bytes[group]}")

    def _report(self, what: str, group: GroupId, error: Exception) -> None:
        self._count("failed")
        self._context.log.warning(f"{what} failed", connector="host", group=group, reason=str(error))

    def _count(self, name: str) -> None:
        with self._counts_lock:
            self._counts[name] += 1


def digest(data: "Tensor") -> bytes:
    """BLAKE2b-128 of a contiguous host tensor's bytes, without copying them. Lets other threads run meanwhile."""
    view = (ctypes.c_ubyte * data.nbytes).from_address(data.data_ptr())
    return hashlib.blake2b(view, digest_size=16).digest()
