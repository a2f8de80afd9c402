"""KVConnector: a tier or peer that keeps KV pages outside the device pool."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from attrs import frozen

from tokloom.sdk.values.kv import CacheKey, Evicted, GroupId, PageId
from tokloom.sdk.values.requests import SeqId, SequenceView
from tokloom.sdk.values.stats import TierEvent

if TYPE_CHECKING:
    from torch import Tensor


@frozen(kw_only=True)
class ConnectorCaps:
    """What a connector can do.

    Attributes:
        stores: it wants published pages.
        layerwise: the plugin is also a LayerwiseConnector.
        persistent: content survives the process.
    """

    stores: bool = True
    layerwise: bool = False
    persistent: bool = False


@frozen
class Block:
    """One page to move: its key, its group and the device page."""

    group: GroupId
    key: CacheKey
    page: PageId


@frozen
class Job:
    """A transfer of whole pages. The core keeps every page leased until the job's Done.

    Attributes:
        job_id: unique for the life of the engine.
        seq_id: for whom a load runs; -1 for stores.
        blocks: in position order per group.
    """

    job_id: int
    seq_id: SeqId
    blocks: tuple[Block, ...]


@frozen
class Done:
    """The end of a job, exactly one per job whatever happens (cancel, peer death, close).

    Attributes:
        status: `ok`: all blocks arrived and were checked; `failed`: `failed` blocks hold garbage, and the sequence
            never asks for them again; `cancelled`: any may, because of `cancel` or because the tier had no room for the
            job: nothing is held against the blocks, but the sequence does not ask again before it has run.
        failed: indices into the job's blocks; empty with status `failed`: all of them.
    """

    job_id: int
    status: Literal["ok", "failed", "cancelled"]
    failed: tuple[int, ...] = ()


@frozen
class Match:
    """What the tier could supply: per group, page indices (into the `keys` of the lookup) that it holds from the asked
    one on. A hint, not a promise.
    """

    pages: tuple[frozenset[int], ...]


@frozen
class Pending:
    """The tier does not know yet; the policy chooses a bounded wait (then it is looked up again in the next steps) or a
    start without any tier.
    """


@frozen
class Health:
    """Whether the tier works. An unhealthy one is left out of lookups and stores."""

    ok: bool
    reason: str = ""


class PageAccess(Protocol):
    """The bytes of device pages. Thread-safe for pages the caller has leased through a job."""

    def read(self, group: GroupId, page: PageId) -> "Tensor":
        """A copy of a main page of every layer: `[layers, page_bytes]` uint8 on the host."""
        ...

    def write(self, group: GroupId, page: PageId, data: "Tensor") -> None:
        """Overwrite a main page with `[layers, page_bytes]` uint8 bytes. Complete on return."""
        ...

    def nbytes(self, group: GroupId) -> int:
        """`layers * page_bytes` of the group."""
        ...


class KVConnector(Protocol):
    """A connector owns the bytes and the residency of its tier and its own threads; threads touch only pages of live
    jobs and end each with `Context.wake()`. Transfers never block the loop thread.

    Call order per step: `poll`; `lookup` beyond the local hit; `load` once pages are allocated and settled; `store`
    once the pages' operations have settled; `on_evict` before the plan that overwrites the pages is launched;
    `on_preempt`, `on_finish` when they happen. A damaged, short or foreign block is a failed block, never data.
    """

    def lookup(self, seq: SequenceView, keys: Sequence[Sequence[CacheKey]], start_page: int) -> Match | Pending:
        """Which pages from `start_page` on the tier may supply. No I/O, no side effects: asked in every step in which
        the sequence could start.

        Args:
            keys: per group, the keys of the full pages of `seq.tokens`, in order.
            start_page: index of the first page that is asked for, the same for all groups.
        """
        ...

    def load(self, job: Job) -> None:
        """Start filling the job's pages. Returns at once."""
        ...

    def store(self, job: Job) -> None:
        """Start saving the job's pages. Best effort: a full tier drops, and still sends Done. Returns at once. The same
        key may be stored again.
        """
        ...

    def poll(self) -> Sequence[Done]:
        """Jobs that ended since the last call. Called in every step, and once after `close`."""
        ...

    def cancel(self, job_id: int) -> None:
        """Ask a job to end early. Its pages stay leased until its Done. Unknown ids are ignored."""
        ...

    def on_evict(self, evicted: Sequence[Evicted]) -> None:
        """Device pages whose content is about to go. Their bytes may be read inside this call, not after it."""
        ...

    def on_preempt(self, seq_id: SeqId) -> None:
        """A sequence lost its pages and will start again."""
        ...

    def on_finish(self, seq_id: SeqId) -> None:
        """A sequence is over."""
        ...

    def events(self) -> Sequence[TierEvent]:
        """Changes since the last call. Asked, with `stats`, after a commit where the profile names observers."""
        ...

    def stats(self) -> Mapping[str, int]:
        """Numbers by name: at least `blocks` and `bytes` held, and `stored`, `loaded`, `failed`, `evicted` blocks since
        the tier was made.
        """
        ...

    def health(self) -> Health:
        """Cheap: asked before every lookup and store."""
        ...

    def close(self) -> None:
        """End all jobs (each with its Done from a last `poll`), stop threads, release memory. Idempotent."""
        ...


class LayerwiseConnector(Protocol):
    """A connector that works layer by layer during the forward (capability `layerwise`); excludes graph capture."""

    def before_layer(self, step: int, layer: int) -> None:
        """Before the layer's keys and values are written and its attention reads pages. `layer` is the model's
        number.
        """
        ...

    def after_layer(self, step: int, layer: int) -> None:
        """After the layer's keys and values were written and attention ran."""
        ...
