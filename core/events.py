"""What the engine tells its caller."""

from attrs import field, frozen

from tokloom.sdk import FinishReason, TokloomError


@frozen
class TokenLogprobs:
    """Log-probabilities (natural log, of the raw logits) of one token and its most likely alternatives.

    Attributes:
        token: the token that stands.
        logprob: its log-probability; NaN for the first token of a prompt.
        top: (token, log-probability), most likely first; as many as the request asked for.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@frozen(kw_only=True)
class Usage:
    """Token counts and times of one sequence. Times in seconds since arrival; negative where it never happened.

    Attributes:
        hit_tokens: prompt tokens taken from the prefix cache when the sequence first started.
        tier_tokens: prompt tokens loaded from tiers.
        drafted, accepted: draft tokens verified and kept.
    """

    prompt_tokens: int
    output_tokens: int
    hit_tokens: int = 0
    tier_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0
    queued: float = -1.0
    ttft: float = -1.0
    total: float = 0.0


@frozen(kw_only=True)
class OutputEvent:
    """Progress of one sequence of a request: new tokens, its end, or both.

    Attributes:
        child: which of the request's `n` sequences.
        tokens: committed since the last event of this sequence.
        logprobs: one per token where asked for; else empty.
        prompt_logprobs: with the first event of a sequence that scores its prompt; else empty.
        embedding: with the last event of a sequence that was embedded, float32 values; else empty.
        finish_reason: set exactly once, on the last event of the sequence.
        error: why, with finish reason `error`.
        usage: with the last event.
    """

    request_id: str
    child: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    embedding: tuple[float, ...] = ()
    finish_reason: FinishReason | None = None
    error: TokloomError | None = field(default=None, eq=False)
    usage: Usage | None = None
