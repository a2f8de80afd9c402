"""Memory of the KV pools: how many pages each group gets so that all groups hold the same number of tokens."""

from attrs import frozen

from tokloom.core.compose.explain import GroupBudget
from tokloom.core.composition import EngineSettings
from tokloom.sdk import CompositionError, KVGroup

#: share of memory that `auto` leaves to everything else
HEADROOM = 0.5


@frozen
class Budget:
    """Pages per group and pool; `tokens` that all groups can hold."""

    main_pages: tuple[int, ...]
    open_pages: tuple[int, ...]
    tokens: int
    groups: tuple[GroupBudget, ...]


def plan_memory(
    groups: tuple[KVGroup, ...], settings: EngineSettings, wanted: int, device_bytes: int, weight_bytes: int
) -> Budget:
    """Pages for `wanted` bytes; 0 means as much as useful within half of what the weights leave.

    Raises CompositionError if not even two pages of one sequence fit in every group.
    """
    most = settings.max_sequences * (settings.max_model_tokens + settings.max_draft_tokens + settings.page_tokens)
    limit = wanted or max(0, int((device_bytes - weight_bytes) * (1 - HEADROOM)))
    origin = "" if wanted else f" (auto: half of what weights of {weight_bytes} leave of {device_bytes})"
    low, high = 0, most
    while low < high:  # the largest token count whose pools fit
        middle = (low + high + 1) // 2
        if _bytes(groups, settings, middle) <= limit:
            low = middle
        else:
            high = middle - 1
    least = min(settings.max_model_tokens, 2 * settings.page_tokens)
    if low < least:
        raise CompositionError(
            f"{limit} bytes{origin} hold {low} tokens of KV; pools for {least} tokens need "
            f"{_bytes(groups, settings, least)}",
            subject="engine.kv_memory",
            remedy="Raise engine.kv_memory, or lower max_sequences or max_batch_tokens",
        )
    main = tuple(_main_pages(group, settings, low) for group in groups)
    opened = tuple(_open_pages(group, settings, low) for group in groups)
    rows = tuple(_row(group, m, o) for group, m, o in zip(groups, main, opened, strict=True))
    return Budget(main, opened, low, rows)


def _main_pages(group: KVGroup, settings: EngineSettings, tokens: int) -> int:
    pages = -(-tokens // group.page_tokens)
    if group.window is not None:
        held = -(-(group.window - 1 + settings.max_batch_tokens) // group.page_tokens) + 1
        pages = min(pages, settings.max_sequences * held)
    return max(1, pages)


def _open_pages(group: KVGroup, settings: EngineSettings, tokens: int) -> int:
    """Unsealed tokens: the residual and a page per sequence, and what a step may add."""
    if group.open is None:
        return 0
    each = -(-group.residual_tokens // group.page_tokens) + 2
    step = -(-settings.max_batch_tokens // group.page_tokens)
    return min(settings.max_sequences * each + step, -(-tokens // group.page_tokens) + 2)


def _bytes(groups: tuple[KVGroup, ...], settings: EngineSettings, tokens: int) -> int:
    total = 0
    for group in groups:
        total += len(group.layers) * group.main.page_bytes * _main_pages(group, settings, tokens)
        if group.open is not None:
            total += len(group.layers) * group.open.page_bytes * _open_pages(group, settings, tokens)
    return total


def _row(group: KVGroup, main: int, opened: int) -> GroupBudget:
    layers = len(group.layers)
    open_bytes = group.open.page_bytes if group.open is not None else 0
    return GroupBudget(
        group=group.id,
        owner=group.owner,
        layers=layers,
        window=group.window,
        main_format=group.main.id,
        open_format=group.open.id if group.open is not None else "",
        bytes_per_token=layers * group.main.page_bytes // group.page_tokens,
        pages=main,
        open_pages=opened,
        nbytes=layers * (main * group.main.page_bytes + opened * open_bytes),
    )
