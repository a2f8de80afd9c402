"""Sequence: the mutable state of one sequence, owned by the core, and the read-only view that plugins get."""

from collections.abc import Sequence as Items
from typing import TYPE_CHECKING

from tokloom.core.events import TokenLogprobs
from tokloom.core.keys import KeyChain
from tokloom.sdk import Draft, DraftStats, Request, SeqId

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Sequence:
    """One of a request's `n` sequences.

    `num_computed <= num_scheduled <= num_allocated`. num_scheduled counts drafts and is set back at commit by the
    rejected rows. With nothing in flight `num_computed == num_scheduled`, which is `len(tokens) - 1` while generating
    and `len(tokens)` once a prompt is scored or embedded. No phase is stored: what comes next follows from the
    counters.
    """

    __slots__ = (
        "accepted",
        "allocated",
        "arrival",
        "bad_blocks",
        "begun",
        "child",
        "declined_blocks",
        "device_k",
        "draft_stats",
        "drafted",
        "embedding",
        "epoch",
        "finish_asked",
        "first_scheduled",
        "first_token",
        "forked",
        "hit_tokens",
        "keys",
        "last_token",
        "num_computed",
        "num_prompt",
        "num_scheduled",
        "pending",
        "pooled",
        "preempted",
        "preemptions",
        "prefix_waits",
        "prompt_logprobs",
        "prompt_scored",
        "published",
        "request",
        "row",
        "seed",
        "seq_id",
        "slid",
        "speculating",
        "tier_tokens",
        "tier_wait_since",
        "tokens",
        "view",
    )

    def __init__(
        self, seq_id: SeqId, request: Request, child: int, tokens: list[int], keys: KeyChain, arrival: float, seed: int
    ) -> None:
        self.seq_id = seq_id
        self.request = request
        self.child = child
        self.tokens = tokens
        self.num_prompt = len(request.prompt_ids)
        self.keys = keys
        self.arrival = arrival
        self.seed = seed
        self.row = -1
        self.begun = 0
        self.epoch = 0
        self.num_computed = 0
        self.num_scheduled = 0
        self.allocated = 0
        self.pending = 0
        self.published = 0
        self.slid = 0
        self.first_scheduled = -1.0
        self.first_token = -1.0
        self.last_token = -1.0  # when the newest one was committed; only where somebody observes
        self.preemptions = 0
        self.preempted: list[float] = []  # when, on the engine's clock; only where somebody observes
        self.hit_tokens = 0
        self.tier_tokens = 0
        self.bad_blocks: set[tuple[int, bytes]] = set()
        self.declined_blocks: set[tuple[int, bytes]] = set()
        self.tier_wait_since = -1.0
        self.prefix_waits = 0
        self.forked = child > 0
        self.speculating = False
        self.device_k = 0
        self.draft_stats = DraftStats()
        self.drafted = 0
        self.accepted = 0
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.prompt_scored = False
        self.finish_asked = False
        #: sum of the hidden states of the rows computed so far, of those that go into the embedding
        self.pooled: NDArray[np.float64] | None = None
        self.embedding: tuple[float, ...] = ()
        self.view = View(self)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def generates(self) -> bool:
        """Whether the last prompt row is sampled."""
        return self.request.task == "generate" and self.request.sampling.max_tokens > 0

    @property
    def scores_prompt(self) -> bool:
        """Whether every prompt row's logits are still wanted."""
        wanted = self.request.task == "score" or self.request.sampling.prompt_logprobs is not None
        return wanted and not self.prompt_scored and self.child == 0

    @property
    def embeds(self) -> bool:
        """Whether its hidden states become one vector."""
        return self.request.task == "embed"

    @property
    def needs_all_rows(self) -> bool:
        """Whether every prompt row must be computed, so that a prefix hit is of no use."""
        return self.scores_prompt or (self.embeds and self.request.pooling == "mean")

    @property
    def unscheduled(self) -> int:
        """Upper bound of the known or awaited tokens that no span covers yet."""
        return len(self.tokens) + self.pending - self.num_scheduled

    def length_limit(self, max_model_tokens: int) -> int:
        """The longest the sequence may become."""
        output = self.request.sampling.max_tokens if self.request.task == "generate" else 0
        return min(max_model_tokens, self.num_prompt + output)

    def restart(self) -> None:
        """Forget everything that depended on pages; tokens stay."""
        self.epoch += 1
        self.row = -1
        self.num_computed = self.num_scheduled = self.allocated = 0
        self.pending = self.published = self.slid = self.device_k = 0
        self.pooled = None
        if not self.prompt_scored:
            self.prompt_logprobs.clear()

    def note_drafts(self, draft: Draft | int, accepted: int) -> None:
        """Count a verified span."""
        count = draft if isinstance(draft, int) else len(draft.tokens)
        if not count:
            return
        old = self.draft_stats
        recent = float(accepted) if not old.steps else 0.8 * old.recent + 0.2 * accepted
        self.draft_stats = DraftStats(old.steps + 1, old.drafted + count, old.accepted + accepted, recent)
        self.drafted += count
        self.accepted += accepted


class View:
    """Implements `tokloom.sdk.SequenceView` over a live sequence."""

    __slots__ = ("_seq",)

    def __init__(self, seq: Sequence) -> None:
        self._seq = seq

    def __repr__(self) -> str:
        seq = self._seq
        return f"<sequence {seq.seq_id} of {seq.request.request_id!r}: {seq.num_computed}/{len(seq.tokens)} tokens>"

    @property
    def seq_id(self) -> SeqId:
        return self._seq.seq_id

    @property
    def request(self) -> Request:
        return self._seq.request

    @property
    def child(self) -> int:
        return self._seq.child

    @property
    def tokens(self) -> Items[int]:
        return self._seq.tokens

    @property
    def num_prompt(self) -> int:
        return self._seq.num_prompt

    @property
    def num_computed(self) -> int:
        return self._seq.num_computed

    @property
    def num_scheduled(self) -> int:
        return self._seq.num_scheduled

    @property
    def num_allocated(self) -> int:
        return self._seq.allocated

    @property
    def pending(self) -> int:
        return self._seq.pending

    @property
    def epoch(self) -> int:
        return self._seq.epoch

    @property
    def arrival(self) -> float:
        return self._seq.arrival

    @property
    def first_token(self) -> float:
        return self._seq.first_token

    @property
    def preemptions(self) -> int:
        return self._seq.preemptions
