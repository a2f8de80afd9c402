"""Speculator: proposes tokens. The core verifies; a proposal can never change or fail a request."""

from collections.abc import Sequence
from typing import Literal, Protocol

from attrs import frozen

from tokloom.sdk.values.batches import IngestBatch, LayerSpec, ProposeBatch
from tokloom.sdk.values.drafts import Draft
from tokloom.sdk.values.kv import KVFormat
from tokloom.sdk.values.requests import SeqId, SequenceView


@frozen(kw_only=True)
class SpeculatorCaps:
    """What a speculator does.

    Attributes:
        placement: `host`: proposes from committed history between steps. `device`: ingests and proposes inside the
            launch, right after sampling, so that it also works with steps in flight.
        trees: drafts may branch.
        dense_q: drafts may be drawn through `Context.sample_draft` for rejection sampling.
    """

    placement: Literal["host", "device"] = "host"
    trees: bool = False
    dense_q: bool = False


@frozen(kw_only=True)
class DraftLayer:
    """One layer of draft KV: its spec and page format. Layers with equal window and lookahead form a group."""

    spec: LayerSpec
    format: KVFormat
    window: int | None = None


@frozen(kw_only=True)
class SpecNeeds:
    """What a speculator needs from the core.

    Attributes:
        features: target layers after which it wants the hidden state of committed rows (0 is the first layer).
        layers: its own draft KV.
        max_k: the most tokens it proposes; the profile's `max_draft_tokens` bounds it too.
    """

    features: tuple[int, ...] = ()
    layers: tuple[DraftLayer, ...] = ()
    max_k: int = 64


class Speculator(Protocol):
    """Call order for a sequence: `begin` once; then per step that computed rows of it `ingest` (all sequences in one
    call) and, when drafts are wanted, `propose`; `end` exactly once, from whatever state. After a preemption: `end`,
    later `begin` again. Only committed rows are ingested: nothing is ever withdrawn. (A device speculator ingests
    inside the launch: if the step's results are dropped, or a sequence ends before the last of its rows, `end`
    follows.)

    Where `begin` or `ingest` raises, `end` is called at once and the sequence is decoded plainly until it starts again;
    after eight faults a host speculator gets no more `ingest` and `propose`. It owns its state per sequence and the
    bytes of its own KV layers; pages and tables are the core's.
    """

    def needs(self, page_tokens: int) -> SpecNeeds:
        """Constant; asked at composition."""
        ...

    def begin(self, view: SequenceView, parent: SeqId) -> None:
        """A sequence starts (or is forked from `parent`; -1 if it is not). The view stays valid until `end`. Its KV may
        be there up to `view.num_computed` already, from a prefix hit, a tier or the parent.
        """
        ...

    def ingest(self, batch: IngestBatch) -> None:
        """Committed rows, oldest step first. Own KV of these rows is written here, at `batch.pages[...].slots`."""
        ...

    def propose(self, batch: ProposeBatch) -> Sequence[Draft]:
        """One draft per proposal, in order, of at most its `k` nodes; `NO_DRAFT` is always right. The core may verify a
        prefix of it only.
        """
        ...

    def end(self, seq_id: SeqId) -> None:
        """The sequence is gone; drop its state."""
        ...
