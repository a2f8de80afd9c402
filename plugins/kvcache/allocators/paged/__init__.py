"""The `paged` allocator: hash-chained prefix cache, copy-on-write, LRU eviction, windows, open and sealed pools."""

from collections.abc import Sequence
from typing import Final, Literal

from attrs import field, frozen
from attrs.validators import in_, instance_of

from tokloom.sdk import AllocatorCaps, Context, KVAllocator, Offer, hookimpl


@frozen(kw_only=True)
class PagedOptions:
    """Options of the profile section `[kv.allocator]`.

    Attributes:
        eviction: which published page without a holder goes first; `lru` is the only order there is.
        prefix_cache: whether full pages become findable by later sequences. Off: every `lookup` misses.
    """

    eviction: Literal["lru"] = field(default="lru", validator=in_(("lru",)))
    prefix_cache: bool = field(default=True, validator=instance_of(bool))


def make_paged(options: PagedOptions, ctx: Context) -> KVAllocator:
    """Factory of the offer. Raises CompositionError for a layout that contradicts itself."""
    from tokloom.plugins.kvcache.allocators.paged.allocator import PagedAllocator

    return PagedAllocator(ctx.layout, prefix_cache=options.prefix_cache)


PAGED: Final[Offer[PagedOptions, KVAllocator]] = Offer(
    kind="allocator",
    name="paged",
    contract="0.1",
    capabilities=AllocatorCaps(max_groups=0, windows=True, seals=True, prefix_reuse=True),
    config=PagedOptions,
    factory=make_paged,
    summary="Pages with a hash-chained prefix cache, copy-on-write and LRU eviction; windows, open and sealed pools.",
)


@hookimpl
def tokloom_allocator() -> Sequence[Offer[PagedOptions, KVAllocator]]:
    """The offers of this package."""
    return (PAGED,)
