"""BlockStore: blocks by (group, key), least recently used first out, and a log of what came and went."""

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final

from attrs import field, frozen

from tokloom.sdk import CacheKey, GroupId, TierEvent

if TYPE_CHECKING:
    from torch import Tensor

BlockId = tuple[GroupId, CacheKey]

#: undelivered events beyond which the log is replaced by `cleared` and what is held
MAX_EVENTS: Final = 4096


@frozen(eq=False)
class StoredBlock:
    """Bytes of one page of every layer, and their digest when they were stored (empty: not kept)."""

    data: "Tensor" = field(repr=False)
    nbytes: int
    digest: bytes = b""


class BlockStore:
    """At most `capacity` bytes of blocks. Thread-safe: every method holds the lock for dictionary work only, never
    for a copy or a digest, so that the loop thread does not wait for a transfer.

    Events speak of keys, blocks are per group: a key is `stored` with its first block and `removed` with its last.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._blocks: OrderedDict[BlockId, StoredBlock] = OrderedDict()
        self._bytes = 0
        self._evicted = 0
        self._groups_of: dict[CacheKey, int] = {}
        self._log: list[tuple[str, CacheKey]] = []
        self._next_event = 1

    def __contains__(self, block: object) -> bool:
        """Whether it is held. Does not count as a use."""
        with self._lock:
            return block in self._blocks

    def get(self, block: BlockId) -> StoredBlock | None:
        """The block, without counting as a use: see `touch`."""
        with self._lock:
            return self._blocks.get(block)

    def put(self, block: BlockId, stored: StoredBlock, keep: Collection[BlockId] = ()) -> bool:
        """Add a block as the most recently used one, evicting others but never those in `keep`.

        False changes nothing: the block does not fit. A block that is held already stays as it is.
        """
        with self._lock:
            if block in self._blocks:
                return True
            excess = self._bytes + stored.nbytes - self._capacity
            victims: list[BlockId] = []
            for other, held in self._blocks.items():
                if excess <= 0:
                    break
                if other not in keep:
                    victims.append(other)
                    excess -= held.nbytes
            if excess > 0:
                return False
            for victim in victims:
                self._drop(victim)
            self._evicted += len(victims)
            self._blocks[block] = stored
            self._bytes += stored.nbytes
            self._note("stored", block[1])
            return True

    def touch(self, blocks: Iterable[BlockId]) -> None:
        """Count a use of each that is held, the last one as the most recent."""
        with self._lock:
            for block in blocks:
                if block in self._blocks:
                    self._blocks.move_to_end(block)

    def remove(self, block: BlockId, stored: StoredBlock) -> None:
        """Remove a block if it is still this copy."""
        with self._lock:
            if self._blocks.get(block) is stored:
                self._drop(block)

    def clear(self) -> None:
        """Remove everything."""
        with self._lock:
            self._blocks.clear()
            self._bytes = 0
            self._groups_of.clear()
            self._log = [("cleared", b"")]

    def counts(self) -> dict[str, int]:
        """`blocks` and `bytes` held, `evicted` since the start."""
        with self._lock:
            return {"blocks": len(self._blocks), "bytes": self._bytes, "evicted": self._evicted}

    def events(self) -> list[TierEvent]:
        """Changes since the last call, neighbours of one kind in one event. Numbered on delivery: no gaps."""
        with self._lock:
            runs: list[tuple[str, list[CacheKey]]] = []
            for kind, key in self._log:
                if not runs or runs[-1][0] != kind:
                    runs.append((kind, []))
                if kind != "cleared":
                    runs[-1][1].append(key)
            self._log = []
            first = self._next_event
            self._next_event += len(runs)
        return [TierEvent(first + i, kind, tuple(keys)) for i, (kind, keys) in enumerate(runs)]  # type: ignore[arg-type]

    def _drop(self, block: BlockId) -> None:
        self._bytes -= self._blocks.pop(block).nbytes
        self._note("removed", block[1])

    def _note(self, kind: str, key: CacheKey) -> None:
        groups = self._groups_of.get(key, 0) + (1 if kind == "stored" else -1)
        if groups:
            self._groups_of[key] = groups
        else:
            del self._groups_of[key]
        if groups != (1 if kind == "stored" else 0):
            return
        self._log.append((kind, key))
        if len(self._log) > MAX_EVENTS + len(self._groups_of):
            self._log = [("cleared", b""), *(("stored", held) for held in self._groups_of)]
