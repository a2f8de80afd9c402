"""What a release would give at once."""

from collections.abc import Sequence

from tokloom.plugins.kvcache.allocators.paged.pool import NONE, PagePool
from tokloom.sdk import PageId


def immediate_gain(held: Sequence[tuple[PagePool, PageId]]) -> int:
    """Pages that become free or cached when each of `held` (tails before heads) loses one reference, settled.

    A page that becomes cached no longer keeps its parent; `eased` counts that, so the walk changes nothing.
    """
    gain, mine = 0, set(held)
    eased: dict[tuple[PagePool, PageId], int] = {}
    for pool, page in held:
        while pool.refs[page] == ((pool, page) in mine) and not pool.holds[page]:
            if pool.fences[page] > pool.settled or pool.busy[page] > eased.get((pool, page), 0):
                break
            gain += 1
            page = pool.parents[page]
            if page == NONE:
                break
            eased[pool, page] = eased.get((pool, page), 0) + 1
            if (pool, page) in mine:
                break
    return gain
