"""The byte layout of KV pages, groups of layers, keys, hits, quotes and page operations."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from attrs import field, frozen

from tokloom.sdk.values.requests import SeqId

if TYPE_CHECKING:
    from torch import Tensor

GroupId = int
PageId = int
CacheKey = bytes
Pool = Literal["main", "open"]

#: bytes per element of the plane dtypes a format may use
DTYPE_BYTES: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "int64": 8,
    "int32": 4,
    "int8": 1,
    "uint8": 1,
}


@frozen
class KVPlane:
    """One array inside a page of one layer.

    Attributes:
        name: unique in its format, for example `k`, `v`, `k_scale`.
        dtype: a key of `DTYPE_BYTES`; sub-byte codes are packed into `uint8`.
        shape: C-contiguous shape within one page. For planes with one row per token the first axis is the token.
        offset: bytes from the start of the page; a multiple of 16.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        size = DTYPE_BYTES[self.dtype]
        for extent in self.shape:
            size *= extent
        return size


@frozen
class KVFormat:
    """The exact bytes of one page of one layer.

    Attributes:
        id: names layout and parameters; two formats with equal ids are byte-compatible.
        page_tokens: token positions per page.
        page_bytes: bytes per page and layer, padding included; a multiple of 16.
        planes: disjoint arrays inside the page.
    """

    id: str
    page_tokens: int
    page_bytes: int
    planes: tuple[KVPlane, ...]

    @classmethod
    def pack(cls, id: str, page_tokens: int, planes: Sequence[tuple[str, str, tuple[int, ...]]]) -> "KVFormat":
        """Lay `(name, dtype, shape)` planes one after another, each aligned to 16 bytes."""
        laid: list[KVPlane] = []
        end = 0
        for name, dtype, shape in planes:
            plane = KVPlane(name, dtype, shape, end)
            laid.append(plane)
            end += -(-plane.nbytes // 16) * 16
        return cls(id, page_tokens, end, tuple(laid))


@frozen
class FormatPair:
    """What a codec stores: published pages in `main`, and, for a codec that seals, fresh tokens in `open`.

    Without `open`, tokens are appended to main pages and pages are published as they fill.
    """

    main: KVFormat
    open: KVFormat | None = None


@frozen
class KVGroup:
    """Layers that share one page table, and one page id per page for all of them.

    Attributes:
        id: index in the layout, and what `GroupId` counts.
        owner: `model`, or `speculator` for draft KV on the same positions.
        layers: the owner's layer numbers; the i-th has row i of the group's buffer.
        main, open: see FormatPair.
        window: visible keys including self, or None for full attention.
        key_lookahead: tokens past a page that its bytes depend on (1 for EAGLE-like draft KV).
        residual_tokens: a page is sealed once this many tokens follow it; 0 without `open`.
    """

    id: GroupId
    owner: Literal["model", "speculator"]
    layers: tuple[int, ...]
    main: KVFormat
    open: KVFormat | None = None
    window: int | None = None
    key_lookahead: int = 0
    residual_tokens: int = 0

    @property
    def page_tokens(self) -> int:
        return self.main.page_tokens


@frozen
class KVLayout:
    """All groups of a composition and how many pages each pool has. Page ids run from 0 to the count minus 1.

    Attributes:
        main_pages, open_pages: per group; `open_pages` is 0 for a group without an open pool.
        namespace: what all cache keys of the composition start from; different bytes never share KV.
        zero_new_pages: a kernel reads past the last key, so that `allocate` must emit a ZeroPage for each page it takes
            that no tier fills.
    """

    groups: tuple[KVGroup, ...]
    main_pages: tuple[int, ...]
    open_pages: tuple[int, ...]
    namespace: bytes = b""
    zero_new_pages: bool = False


@frozen
class Pages:
    """One layer's pool as a kernel or codec sees it: plane name -> tensor `[pages, *plane.shape]` on the device.

    The planes are views of one byte buffer with the stride of a page along axis 0: only the inside of a page is
    contiguous. They stay the same tensors for the life of the engine.
    """

    format: KVFormat
    planes: "Mapping[str, Tensor]" = field(eq=False)


@frozen
class Hit:
    """What is resident of a prefix.

    Attributes:
        tokens: one length valid for all groups, at most the asked maximum and a multiple of every group's page size:
            a group without a window has all pages below it resident, a window group those that the query at `tokens`
            still sees. 0 is a miss.
        pages: per group, the page of each page index up to its longest resident prefix; -1 where none is resident
            (a window group needs only the pages its window still sees). A tier may fill missing ones.
        receipt: the allocator's own note, given back unread to `quote` and `allocate` in the same step. `Hit(0, ((),
            ...))` stands for no hit, and is what comes with sequences that have pages already.
    """

    tokens: int
    pages: tuple[tuple[PageId, ...], ...]
    receipt: int = 0


@frozen(kw_only=True)
class SlotRequest:
    """Which positions a span wants. All in tokens.

    Attributes:
        write_from: first position the span writes; pages that overlap `[write_from, stop)` must be exclusively owned.
        stop: one past the last position that needs a page, drafts and what a device speculator will draft included.
        external: positions `[hit.tokens, hit.tokens + external)` are filled by a tier: never zeroed. A multiple of
            every group's page size; then `write_from == stop == hit.tokens + external`.
        tokens: length the sequence may reach in all, for `fits_ever`; for a running sequence only what it wants now.
    """

    write_from: int
    stop: int
    external: int = 0
    tokens: int = 0


@frozen
class Quote:
    """The cost of an allocation. All fields are pages of one pool: the one with the least room after it.

    Attributes:
        new: pages to take.
        pinned: resident pages of the hit that stop being evictable.
        free: pages that could be taken now (free or evictable, after pinning).
        total: pages the pool has.
        needed_ever: pages the sequence may hold at the most.
        fits_now: `allocate` would succeed if nothing intervenes.
        fits_ever: it could succeed on an empty pool; False means the request must be rejected.
    """

    new: int
    pinned: int
    free: int
    total: int
    needed_ever: int
    fits_now: bool
    fits_ever: bool


@frozen
class TableDelta:
    """Entry `index` of a sequence's page table becomes `page`; -1 clears it (slid out, truncated, sealed away).

    Entry i covers positions `[i * page_tokens, (i + 1) * page_tokens)`. In a group with an open pool a page of
    positions lives in one of the two tables, and all before the last entry ever set in `main` count as sealed.
    """

    seq_id: SeqId
    group: GroupId
    pool: Pool
    index: int
    page: PageId


@frozen
class Evicted:
    """A published main page that is about to be reused, with the key it could be found by."""

    group: GroupId
    key: CacheKey
    page: PageId


@frozen
class Allocation:
    """Success: table entries to set, in order, and pages whose old content disappears when the next plan runs or the
    load that the allocation is for begins.
    """

    deltas: tuple[TableDelta, ...]
    evicted: tuple[Evicted, ...] = ()


@frozen
class NoSpace:
    """Failure that changed nothing. `short` pages are missing."""

    short: int


@frozen
class Published:
    """What `publish` did: pages that became matchable by this call, not those that were before, and table entries
    rewritten (deduplicated or sealed).
    """

    pages: tuple[tuple[GroupId, CacheKey, PageId], ...] = ()
    deltas: tuple[TableDelta, ...] = ()


@frozen
class ZeroPage:
    """Fill a page of every layer with zero bytes."""

    group: GroupId
    pool: Pool
    page: PageId


@frozen
class CopyPage:
    """Copy all bytes of a page of every layer."""

    group: GroupId
    pool: Pool
    src: PageId
    dst: PageId


@frozen
class SealPage:
    """Encode a full open page into a main page, in every layer."""

    group: GroupId
    src: PageId
    dst: PageId


PageOp = ZeroPage | CopyPage | SealPage


@frozen
class GroupStats:
    """Pages of one group, summed over its pools. `held`: by sequences, leases and operations; `cached`: kept for
    prefixes only.
    """

    group: GroupId
    total: int
    free: int
    cached: int
    held: int


@frozen
class AllocatorStats:
    """Counters since start, and the pool as it is. Pages summed over groups and pools; `groups` has them apart."""

    total_pages: int = 0
    free_pages: int = 0
    cached_pages: int = 0
    held_pages: int = 0
    fenced_pages: int = 0
    hit_tokens: int = 0
    evictions: int = 0
    copies: int = 0
    seals: int = 0
    groups: tuple[GroupStats, ...] = ()
