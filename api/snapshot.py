"""Snapshot: what an engine is made of and what it has done so far, as plain values."""

from collections.abc import Mapping

from attrs import field, frozen

from tokloom.core.composition import Composition, Used
from tokloom.core.numbers import Numbers

__all__ = ["GroupPages", "Snapshot", "Used", "snapshot"]


@frozen(kw_only=True)
class GroupPages:
    """One KV group: a set of layers that share page tables.

    Attributes:
        owner: `model`, or `speculator` for draft KV.
        layers: how many.
        window: visible keys, or None for full attention.
        format, open_format: what pages hold, and what the pool of fresh tokens holds; empty without one.
        total: pages of its pools. `held`: by sequences, leases and operations; `cached`: kept for prefixes only;
            `free`: those that hold nothing.
    """

    group: int
    owner: str
    layers: int
    window: int | None
    format: str
    open_format: str
    page_tokens: int
    total: int = 0
    held: int = 0
    cached: int = 0
    free: int = 0


@frozen(kw_only=True)
class Snapshot:
    """An engine at the end of its last step. Counters only grow; rates are differences over differences of `uptime`.

    Attributes:
        model: its name.
        device, dtype: where and in what it computes.
        page_tokens: token positions of a KV page. max_sequences: that may run at once. max_model_tokens: the longest.
        uptime: seconds since the engine was made, by a monotonic clock, at the moment of asking.
        plugins: in use, in the order in which they were made.
        running, waiting: sequences that run, and that wait to start or are being loaded.
        steps: committed ones.
        prefill_tokens: prompt tokens computed, recomputed ones too. `hit_tokens`, `tier_tokens`: those that were taken
            from the prefix cache, and loaded from tiers, instead: together they are all that sequences started with.
        generated_tokens: tokens that sequences got.
        drafted, accepted: draft tokens verified and kept.
        preemptions: running sequences that gave up their pages.
        evictions: cached pages given to others.
        faults: by plugin, `KIND.NAME`.
    """

    model: str
    device: str
    dtype: str
    page_tokens: int
    max_sequences: int
    max_model_tokens: int
    uptime: float
    plugins: tuple[Used, ...]
    groups: tuple[GroupPages, ...]
    running: int
    waiting: int
    steps: int
    prefill_tokens: int
    hit_tokens: int
    tier_tokens: int
    generated_tokens: int
    drafted: int
    accepted: int
    preemptions: int
    evictions: int
    faults: Mapping[str, int] = field(factory=dict)


def snapshot(composition: Composition, numbers: Numbers, uptime: float) -> Snapshot:
    """Put together what never changes and what was counted. Reads frozen values only: from any thread."""
    spec, settings = composition.model.spec, composition.settings
    return Snapshot(
        model=spec.name,
        device=composition.device.info.name,
        dtype=spec.dtype,
        page_tokens=settings.page_tokens,
        max_sequences=settings.max_sequences,
        max_model_tokens=settings.max_model_tokens,
        uptime=uptime,
        plugins=composition.used,
        groups=_groups(composition, numbers),
        running=numbers.running,
        waiting=numbers.waiting,
        steps=numbers.steps,
        prefill_tokens=numbers.prefill_tokens,
        hit_tokens=numbers.hit_tokens,
        tier_tokens=numbers.tier_tokens,
        generated_tokens=numbers.generated_tokens,
        drafted=numbers.drafted,
        accepted=numbers.accepted,
        preemptions=numbers.preemptions,
        evictions=numbers.kv.evictions,
        faults=numbers.faults,
    )


def _groups(composition: Composition, numbers: Numbers) -> tuple[GroupPages, ...]:
    """By the layout, which every engine has; an allocator may leave its numbers per group out."""
    layout = composition.layout
    pages = {stats.group: stats for stats in numbers.kv.groups}
    found = []
    for group, main, opened in zip(layout.groups, layout.main_pages, layout.open_pages, strict=True):
        stats = pages.get(group.id)
        found.append(
            GroupPages(
                group=group.id,
                owner=group.owner,
                layers=len(group.layers),
                window=group.window,
                format=group.main.id,
                open_format=group.open.id if group.open is not None else "",
                page_tokens=group.page_tokens,
                total=main + opened if stats is None else stats.total,
                held=0 if stats is None else stats.held,
                cached=0 if stats is None else stats.cached,
                free=0 if stats is None else stats.free,
            )
        )
    return tuple(found)
