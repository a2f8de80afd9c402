"""What a caller asks for: segments, sampling parameters, scope, objectives."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol

from attrs import field, frozen

from tokloom.sdk.values.tracing import TraceContext

SeqId = int
Task = Literal["generate", "score", "embed"]
#: how the hidden states of a prompt become one vector; empty: the model's own way
Pooling = Literal["", "last", "mean"]

#: what a grammar may be written in; a plugin's own are called `x-DIST.name`
GrammarSyntax = Literal["json_schema", "json_object", "regex", "lark", "choice"]


def _ints(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(values)


@frozen
class Scope:
    """What must match, besides the tokens, for KV to be shared between two requests.

    Attributes:
        salt: a tenant's secret; different salts never share KV.
        adapter: content digest of the adapter in use (`AdapterInfo.digest`), never its name; empty: none.
        media: content digests of embedded media, in order.
    """

    salt: str = ""
    adapter: str = ""
    media: tuple[str, ...] = ()


@frozen
class TokenSegment:
    """A run of token ids. A prompt is a sequence of segments; later kinds of segment carry embeddings."""

    ids: tuple[int, ...] = field(converter=_ints)


@frozen
class Objectives:
    """Service objectives in seconds above 0, at most 1e9; None means no objective.

    Attributes:
        ttft: until the first token, from arrival. For scheduling policies; the core does nothing with it.
        tpot: between two tokens. Likewise.
        deadline: from arrival; then the request's sequences end with finish reason `deadline`.
    """

    ttft: float | None = None
    tpot: float | None = None
    deadline: float | None = None


@frozen
class GrammarSpec:
    """What the output must look like, and who enforces it.

    Attributes:
        syntax: a `GrammarSyntax`: `json_schema` (text: the schema), `json_object` (any JSON object; text is empty),
            `regex` (of the whole output), `lark` (a Lark grammar), `choice` (a JSON array of texts, one of which is the
            output); or a plugin's own, `x-DIST.name`.
        text: the specification.
        offer: name of the grammar offer; empty takes the first one of the profile that lists the syntax.
    """

    syntax: str
    text: str = ""
    offer: str = ""


@frozen(kw_only=True)
class SamplingParams:
    """How tokens are drawn. Order of application: processors, logit bias, bad words, penalties, minimum length,
    grammar, temperature, top-k, top-p, min-p.

    An engine takes integers and reals of any library and any sized collection of ids or names, and hands plugins plain
    ints, floats and tuples; what is out of range is refused with a RequestError.

    Attributes:
        max_tokens: tokens to generate at the most; 0 computes the prompt only. A sequence also ends at the engine's
            `max_model_tokens`.
        min_tokens: end-of-sequence and stop ids are masked before this many tokens; at most `max_tokens`.
        temperature: 0 is greedy (argmax, lowest id on ties); at most 100.
        top_k: keep the k most likely; 0 keeps all.
        top_p: keep the smallest set whose probability reaches p (the token that crosses p stays); above 0, at most 1.
        min_p: drop tokens below `min_p * max probability`; 0 to 1.
        repetition_penalty: logits of tokens seen in prompt or output are divided (positive) or multiplied (negative);
            0.01 to 100.
        presence_penalty, frequency_penalty: subtracted once, or per occurrence in the output; -2 to 2.
        logit_bias: token id -> added to its logit; -1e9 to 1e9.
        bad_words: token sequences whose last token is masked when the others precede it; none is empty.
        stop_token_ids: ids that end the sequence besides the model's own; the id is the last token.
        ignore_eos: the model's own end-of-sequence ids do not end the sequence.
        seed: makes the draw reproducible whatever else runs; None takes a fresh one. A signed 64-bit integer.
        n: sequences to draw from the same prompt; 1 to 128, and 1 for scoring.
        logprobs: how many most likely alternatives to report per generated token (0: only the chosen one); None or 0 to
            20. Of the model's own logits, before anything in this class applies.
        prompt_logprobs: the same per prompt token.
        processors: names of logits offers that this request uses, in order; the profile must allow them.
        grammar: what the output must look like, or None; the profile must allow an offer that takes its syntax.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(factory=dict)
    bad_words: tuple[tuple[int, ...], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    processors: tuple[str, ...] = ()
    grammar: GrammarSpec | None = None


@frozen(kw_only=True)
class Request:
    """One immutable request, token ids only. Validation against a model happens when an engine admits it; plugins see
    the validated copy.

    Attributes:
        request_id: unique among the live requests of one engine; an id is free again once the last event was returned.
        segments: the prompt; at least one token in all.
        task: `generate` draws tokens; `score` reports the log-probability of each prompt token and draws none; `embed`
            reports one vector and draws none either, so `sampling` stays as it is by default.
        pooling: of `embed`: `last`, the last token's hidden state after the final norm, or `mean`, over all tokens;
            what `ModelSpec.poolings` allows. Empty, it becomes the model's own.
        normalize: of `embed`: divide the vector by its Euclidean length.
        priority: larger is more urgent; a signed 64-bit integer.
        tenant: whom fairness counts for; it does not separate KV, `scope.salt` does.
        chat: the prompt went through the model's chat template. Told to observers, nothing else.
        trace: the caller's span, for observers too.
    """

    request_id: str
    segments: tuple[TokenSegment, ...]
    sampling: SamplingParams = field(factory=SamplingParams)
    task: Task = "generate"
    pooling: Pooling = ""
    normalize: bool = True
    priority: int = 0
    tenant: str = ""
    objectives: Objectives = field(factory=Objectives)
    scope: Scope = field(factory=Scope)
    chat: bool = False
    trace: TraceContext | None = None

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """All token ids of the prompt, in order."""
        if len(self.segments) == 1:
            return self.segments[0].ids
        return tuple(token for segment in self.segments for token in segment.ids)


class SequenceView(Protocol):
    """A live, read-only window on a sequence that the core owns. Values change between calls, never during one.

    All counts are tokens. Of a running sequence `num_computed <= num_scheduled <= num_allocated`; with nothing in
    flight `num_computed == num_scheduled`. Of a waiting one all three are 0, but for the prefix hit that `chunk` is
    asked about while the sequence is being admitted. A view may be kept as long as its sequence lives.
    """

    @property
    def seq_id(self) -> SeqId:
        """Unique for the life of the engine, never reused."""
        ...

    @property
    def request(self) -> Request: ...

    @property
    def child(self) -> int:
        """Which of the request's `n` sequences this is, from 0."""
        ...

    @property
    def tokens(self) -> Sequence[int]:
        """Prompt and committed output. Do not keep or change it: it grows in place. Inside a launch (device
        speculators) it is exact; on the host it lags by the rows in flight.
        """
        ...

    @property
    def num_prompt(self) -> int: ...

    @property
    def num_computed(self) -> int:
        """Leading tokens whose KV is committed."""
        ...

    @property
    def num_scheduled(self) -> int:
        """Leading positions that launched spans cover, drafts included."""
        ...

    @property
    def num_allocated(self) -> int:
        """Leading positions that have pages."""
        ...

    @property
    def pending(self) -> int:
        """Upper bound of the tokens that spans in flight may still append."""
        ...

    @property
    def epoch(self) -> int:
        """Bumped whenever the sequence loses its pages (preemption, abort, end, failed load); results of an older epoch
        are dropped.
        """
        ...

    @property
    def arrival(self) -> float:
        """Seconds on the engine's clock."""
        ...

    @property
    def first_token(self) -> float:
        """Seconds on the engine's clock when the first token was committed; negative before."""
        ...

    @property
    def preemptions(self) -> int: ...
