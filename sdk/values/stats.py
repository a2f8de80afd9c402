"""Numbers that observers get, and events that schedulers learn from."""

from collections.abc import Mapping
from typing import Literal

from attrs import field, frozen

from tokloom.sdk.values.kv import AllocatorStats, CacheKey
from tokloom.sdk.values.requests import Objectives, SeqId, Task
from tokloom.sdk.values.tracing import TraceContext

FinishReason = Literal["stop", "length", "abort", "deadline", "error", "scored", "embedded"]


@frozen
class TierEvent:
    """A change of what a tier holds. `seq` counts from 1 without gaps."""

    seq: int
    kind: Literal["stored", "removed", "cleared"]
    keys: tuple[CacheKey, ...] = ()


@frozen
class TierStats:
    """One tier.

    Attributes:
        name: `connector.NAME`; several tiers of one plugin share it and stand in the profile's order.
        counters: the tier's own, since it was made.
        events: what changed since the last report. Whoever replays them has the tier's index.
    """

    name: str
    counters: Mapping[str, int] = field(factory=dict)
    events: tuple[TierEvent, ...] = ()


@frozen(kw_only=True)
class StepStats:
    """One committed step. Times in seconds on the engine's clock.

    Attributes:
        step: the step's id; ids grow, and steps that only ran page operations are not reported.
        started, launched, finished: when its planning began, when it was handed to the device, when it was committed.
        rows: target rows computed, drafts included, of which `prefill_rows` were of prompts (recomputed ones too).
        sequences: spans of the step. `running`, `waiting`: sequences that run and that wait to start, after it.
        generated: tokens that sequences got in it.
        gaps: seconds since the token before, of each sequence that got one and had one.
        drafted, accepted: draft tokens verified and kept.
        drafted_by_depth, accepted_by_depth: how many spans carried, and kept, at least 1, 2, ... drafts.
        preempted, hit_tokens, tier_tokens, faults: since the last report: preemptions; tokens taken from the prefix
            cache, and loaded from tiers, by sequences that started (again); faults of plugins.
        no_space: since the last report: how often pages were asked for and there were too few.
        rejected: since start: requests refused, by the error's code.
        faults_of: since start: faults by plugin, `KIND.NAME`.
        held_slots, unused_slots: token slots in the pages that running sequences hold, shared ones counted for each,
            and those of them without a computed token. Of the first group.
        mask_seconds, mask_wait_seconds: what worker threads spent on grammars' masks, added up, and how much of it the
            step waited for; by the processor's own clock.
        kv: the allocator's own numbers after the step.
        tiers: the tiers' own, in the order they are asked.
    """

    step: int
    started: float
    launched: float
    finished: float
    rows: int
    prefill_rows: int
    sequences: int
    waiting: int
    running: int = 0
    generated: int = 0
    gaps: tuple[float, ...] = ()
    drafted: int = 0
    accepted: int = 0
    drafted_by_depth: tuple[int, ...] = ()
    accepted_by_depth: tuple[int, ...] = ()
    preempted: int = 0
    hit_tokens: int = 0
    tier_tokens: int = 0
    faults: int = 0
    no_space: int = 0
    rejected: Mapping[str, int] = field(factory=dict)
    faults_of: Mapping[str, int] = field(factory=dict)
    held_slots: int = 0
    unused_slots: int = 0
    mask_seconds: float = 0.0
    mask_wait_seconds: float = 0.0
    kv: AllocatorStats = field(factory=AllocatorStats)
    tiers: tuple[TierStats, ...] = ()


@frozen(kw_only=True)
class RequestSummary:
    """What a request asked for, without a word of what its caller wrote.

    Attributes:
        chat: the prompt went through the model's chat template.
        adapter: a name of the adapter in use; empty: none.
        grammar: syntax of the grammar; empty: none.
        max_tokens ... seed: as in `SamplingParams`.
    """

    task: Task = "generate"
    chat: bool = False
    adapter: str = ""
    grammar: str = ""
    max_tokens: int = 16
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    n: int = 1
    seed: int | None = None


@frozen(kw_only=True)
class RequestStats:
    """One finished sequence. Times in seconds since the request's arrival; negative where it never happened.

    Attributes:
        child: which of the request's `n` sequences. `remaining`: how many of the others have not ended yet; 0: the
            request has. Those that were never forked are not among them.
        hit_tokens: prompt tokens taken from the prefix cache when the sequence first started.
        tier_tokens: tokens loaded from tiers, over all its starts.
        queued: until it first started. `ttft`: until its first token. `total`: until its end.
        drafted, accepted: draft tokens verified and kept.
        preempted: when it lost its pages; as many as `preemptions`.
        error: code of the error that ended it (`TokloomError.code`); empty: none.
        objectives, asked: what the request asked for.
        trace: the caller's span, if the request came with one.
    """

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
    objectives: Objectives = field(factory=Objectives)
    child: int = 0
    remaining: int = 0
    preempted: tuple[float, ...] = ()
    error: str = ""
    asked: RequestSummary = field(factory=RequestSummary)
    trace: TraceContext | None = None


@frozen(kw_only=True)
class SchedEvent:
    """Something a scheduling policy may learn from. Nothing about the future is in it.

    Attributes:
        kind: `arrived`: a request entered the queue; `scheduled`: a sequence left it, to run or to load; `preempted`:
            it is back; `first_token`: it was committed; `finished`: the sequence ended for whatever reason; `step`: a
            step was committed. Forked children neither arrive nor, where they run at once, are scheduled.
        at: seconds on the engine's clock.
        seq_id: whom it concerns; -1 for a step.
        rows, seconds: of a step: rows computed and how long it took.
    """

    kind: Literal["arrived", "scheduled", "first_token", "finished", "preempted", "step"]
    at: float
    seq_id: SeqId = -1
    rows: int = 0
    seconds: float = 0.0
