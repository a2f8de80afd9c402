"""Numbers: what an engine has counted since its start and what it holds, for whoever shows it."""

from collections.abc import Mapping

from attrs import define, field, frozen

from tokloom.sdk import AllocatorStats


@define
class Totals:
    """Counted at commit, whether anyone observes or not. Meanings as of `StepStats`, since start."""

    steps: int = 0
    prefill_tokens: int = 0
    generated_tokens: int = 0
    drafted: int = 0
    accepted: int = 0


@frozen(kw_only=True)
class Numbers:
    """All of it at one moment between two steps.

    Attributes:
        running, waiting: sequences that run, and that wait to start or are being loaded.
        steps: committed ones with rows.
        prefill_tokens: prompt tokens computed, recomputed ones too. `hit_tokens`, `tier_tokens`: those that were taken
            from the prefix cache, and loaded from tiers, instead.
        generated_tokens: tokens that sequences got.
        drafted, accepted: draft tokens verified and kept.
        preemptions: running sequences that gave up their pages.
        faults: by plugin, `KIND.NAME`.
        kv: the allocator's own numbers.
    """

    running: int = 0
    waiting: int = 0
    steps: int = 0
    prefill_tokens: int = 0
    hit_tokens: int = 0
    tier_tokens: int = 0
    generated_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0
    faults: Mapping[str, int] = field(factory=dict)
    kv: AllocatorStats = field(factory=AllocatorStats)
