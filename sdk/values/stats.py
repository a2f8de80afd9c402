"""Numbers that observers get, and events that schedulers learn from."""

from typing import Literal

from attrs import field, frozen

from tokloom.sdk.values.kv import AllocatorStats
from tokloom.sdk.values.requests import SeqId

FinishReason = Literal["stop", "length", "abort", "deadline", "error", "scored"]


@frozen(kw_only=True)
class StepStats:
    """One committed step. Times in seconds on the engine's clock.

    Attributes:
        rows: target rows computed, of which `prefill_rows` were of prompts (recomputed ones too).
        drafted, accepted: draft tokens verified and kept.
        accepted_by_depth: how many drafts of each depth (1 first) stood.
        tier_tokens: prompt tokens loaded from tiers.
    """

    step: int
    started: float
    launched: float
    finished: float
    rows: int
    prefill_rows: int
    sequences: int
    waiting: int
    drafted: int = 0
    accepted: int = 0
    accepted_by_depth: tuple[int, ...] = ()
    preempted: int = 0
    hit_tokens: int = 0
    tier_tokens: int = 0
    faults: int = 0
    kv: AllocatorStats = field(factory=AllocatorStats)


@frozen(kw_only=True)
class RequestStats:
    """One finished sequence. Times in seconds since the request's arrival; negative where it never happened."""

    request_id: str
    tenant: str
    seq_id: SeqId
    finish_reason: FinishReason
    prompt_tokens: int
    output_tokens: int
    hit_tokens: int
    tier_tokens: int
    queued: float
    ttft: float
    total: float
    preemptions: int
    drafted: int = 0
    accepted: int = 0


@frozen(kw_only=True)
class SchedEvent:
    """Something a scheduling policy may learn from. Nothing about the future is in it.

    Attributes:
        kind: what happened.
        at: seconds on the engine's clock.
        seq_id: whom it concerns; -1 for a step.
        rows, seconds: of a step: rows computed and how long it took.
    """

    kind: Literal["arrived", "scheduled", "first_token", "finished", "preempted", "step"]
    at: float
    seq_id: SeqId = -1
    rows: int = 0
    seconds: float = 0.0
