"""Speculators that are right, wrong, malformed, need features and KV of their own, or draw from a law."""

import random
from collections.abc import Sequence

import torch

from tokloom.conformance.doubles import oracle
from tokloom.conformance.doubles.offers import Seeded
from tokloom.conformance.doubles.oracle import SHAPES, Shape
from tokloom.sdk import (
    AttnParams,
    Context,
    Draft,
    DraftLayer,
    IngestBatch,
    KVFormat,
    LayerSpec,
    ProposeBatch,
    SeqId,
    SequenceView,
    SpecNeeds,
)


class _Base:
    """Keeps views between begin and end, and checks that ingested rows are the history."""

    def __init__(self, options: Seeded, context: Context) -> None:
        self.options = options
        self.context = context
        self.rng = random.Random(options.seed)
        self.views: dict[SeqId, SequenceView] = {}
        self.begun = self.ended = self.proposed = self.ingested = 0
        self.faults: list[str] = []

    def needs(self, page_tokens: int) -> SpecNeeds:
        return SpecNeeds(max_k=8)

    @property
    def shape(self) -> Shape:
        """The model that is drafted for."""
        return SHAPES[self.context.model.name]

    def require(self, fine: bool, what: str) -> None:
        """Note a fault of the core, and raise."""
        if not fine:
            self.faults.append(what)
            raise AssertionError(what)

    def begin(self, view: SequenceView, parent: SeqId) -> None:
        self.require(view.seq_id not in self.views, f"sequence {view.seq_id} begins twice")
        self.require(parent < 0 or parent in self.views, f"sequence {view.seq_id} is forked from unknown {parent}")
        self.views[view.seq_id] = view
        self.begun += 1

    def ingest(self, batch: IngestBatch) -> None:
        for b, seq_id in enumerate(batch.seq_ids):
            tokens = self.views[seq_id].tokens
            for t in range(batch.indptr[b], batch.indptr[b + 1]):
                position, following = int(batch.positions[t]), int(batch.next_ids[t])
                then = tokens[position + 1] if position + 1 < len(tokens) else -1
                self.ingested += 1
                self.require(tokens[position] == batch.ids[t], f"row {t} of sequence {seq_id} is not the history")
                self.require(following == then, f"{following} follows row {t} of sequence {seq_id}, not {then}")

    def end(self, seq_id: SeqId) -> None:
        del self.views[seq_id]
        self.ended += 1

    def truth(self, seq_id: SeqId, count: int) -> list[int]:
        """The greedy continuation."""
        shape = self.shape
        adapter = self.adapter(seq_id)
        return oracle.greedy(self.views[seq_id].tokens, count, shape.windows, shape.vocab, shape.heads, adapter)

    def adapter(self, seq_id: SeqId) -> int:
        """What the sequence's adapter adds to tags."""
        return oracle.adapter_tag(self.views[seq_id].request.scope.adapter)


class Oracle(_Base):
    """Right for a random number of tokens, then wrong. Mode `trees` hides the truth in a random tree; `wrong` is always
    wrong.
    """

    def propose(self, batch: ProposeBatch) -> Sequence[Draft]:
        self.proposed += len(batch.proposals)
        return [self._draft(proposal.seq_id, proposal.k) for proposal in batch.proposals]

    def _draft(self, seq_id: SeqId, k: int) -> Draft:
        truth = self.truth(seq_id, k)
        right = 0 if self.options.mode == "wrong" else self.rng.randint(0, k)
        chain = truth[:right] + [(token + 1) % self.shape.vocab for token in truth[right:]]
        return self._tree(chain, k) if self.options.mode == "trees" else Draft.chain(chain)

    def _tree(self, chain: list[int], k: int) -> Draft:
        """The chain's nodes among random siblings, in a random topological order, at most k nodes."""
        tokens: list[int] = []
        parents: list[int] = []
        at = -1
        for token in chain:
            if len(tokens) >= k:
                break
            while len(tokens) < k - 1 and self.rng.random() < 0.5:
                parent = self.rng.randint(-1, len(tokens) - 1)
                other = self.rng.randrange(self.shape.vocab)
                clash = parent == at and other == token
                if not clash and not any(p == parent and t == other for p, t in zip(parents, tokens, strict=True)):
                    tokens.append(other)
                    parents.append(parent)
            if any(p == at and t == token for p, t in zip(parents, tokens, strict=True)):
                break
            tokens.append(token)
            parents.append(at)
            at = len(tokens) - 1
        return Draft(tuple(tokens), tuple(parents))


class Garbage(_Base):
    """Malformed in every way; mode picks one, empty mixes them."""

    MODES = ("ids", "negative", "parents", "cycle", "many", "twins", "count", "type", "raise", "ingest", "begin")

    def _mode(self) -> str:
        return self.options.mode or self.rng.choice(self.MODES)

    def begin(self, view: SequenceView, parent: SeqId) -> None:
        super().begin(view, parent)
        if self.options.mode == "begin":
            raise RuntimeError("begin")

    def ingest(self, batch: IngestBatch) -> None:
        if self.options.mode == "ingest":
            raise RuntimeError("ingest")

    def propose(self, batch: ProposeBatch) -> Sequence[Draft]:
        self.proposed += len(batch.proposals)
        mode = self._mode()
        if mode == "raise":
            raise RuntimeError("propose")
        drafts = {
            "ids": Draft.chain([self.shape.vocab]),
            "negative": Draft.chain([-1]),
            "parents": Draft((1, 2), (5, 7)),
            "cycle": Draft((1, 2), (1, 0)),
            "many": Draft.chain([1] * 60),
            "twins": Draft((1, 1), (-1, -1)),
        }
        if mode == "type":
            return ["draft"] * len(batch.proposals)  # type: ignore[list-item]
        made = [drafts.get(mode, Draft.chain([0]))] * len(batch.proposals)
        return made[:-1] if mode == "count" else made


class Sampled(_Base):
    """Drafts drawn through the core from a law that is not the target's."""

    def propose(self, batch: ProposeBatch) -> Sequence[Draft]:
        drafts = []
        for proposal in batch.proposals:
            tokens = []
            for depth in range(1, proposal.k + 1):
                logits = torch.linspace(-1.5, 1.5, self.shape.vocab) * (1 if (proposal.position + depth) % 2 else -1)
                tokens.append(self.context.sample_draft(proposal.seq_id, depth, logits))
            drafts.append(Draft.chain(tokens, sampled=True))
        return drafts


class Featured(_Base):
    """Wants the hidden state after layer 0 and has draft KV whose bytes depend on the next token (as EAGLE's does).

    Every proposal first checks the draft KV of all earlier positions, those of prefix hits and forks included. What is
    wrong is kept in `faults` and raised. Offered for the host and for the device.
    """

    def __init__(self, options: Seeded, context: Context) -> None:
        super().__init__(options, context)
        self.checked = 0

    def needs(self, page_tokens: int) -> SpecNeeds:
        format = KVFormat.pack(f"draft-{page_tokens}", page_tokens, [("tag", "float64", (page_tokens, 2))])
        spec = LayerSpec(0, AttnParams(1, 1, 1, 1, 1.0), "float64", key_lookahead=1)
        return SpecNeeds(features=(0,), layers=(DraftLayer(spec=spec, format=format),), max_k=8)

    def ingest(self, batch: IngestBatch) -> None:
        super().ingest(batch)
        (pages,) = batch.pages.values()
        plane = pages.layers[0].planes["tag"]
        page = plane.shape[1]
        for t, (token, following) in enumerate(zip(batch.ids, batch.next_ids, strict=True)):
            seen, position = batch.features[0][t].tolist()
            self.require(int(position) == batch.positions[t], f"features of row {t} are those of position {position}")
            if following >= 0:
                slot = int(pages.slots[t])
                tag = torch.tensor([oracle.mix(int(token) * 31 + int(following)), seen], dtype=torch.float64)
                plane[slot // page, slot % page] = tag

    def propose(self, batch: ProposeBatch) -> Sequence[Draft]:
        (pages,) = batch.pages.values()
        plane = pages.layers[0].planes["tag"]
        self.require(len(pages.tables) == len(batch.proposals), f"{len(pages.tables)} tables, not one per proposal")
        for row, proposal in enumerate(batch.proposals):
            self._check(proposal.seq_id, plane, pages.tables[row].tolist())
        self.proposed += len(batch.proposals)
        return [self._draft(p.seq_id, p.k) for p in batch.proposals]

    def _draft(self, seq_id: SeqId, k: int) -> Draft:
        chain = self.truth(seq_id, self.rng.randint(0, k))
        if self.options.mode != "trees" or not chain or len(chain) >= k:
            return Draft.chain(chain)
        other = (
            chain[0] + 1
        ) % self.shape.vocab  # a wrong sibling comes first: accepted nodes are not the leading ones
        return Draft((other, *chain), (-1, -1, *range(1, len(chain))))

    def _check(self, seq_id: SeqId, plane: torch.Tensor, table: list[int]) -> None:
        tokens = list(self.views[seq_id].tokens)
        page = plane.shape[1]
        seen = oracle.hidden(tokens, self.shape.windows[:1], self.shape.heads, self.adapter(seq_id))
        for position in range(len(tokens) - 1):
            stored = plane[table[position // page], position % page].tolist()
            wanted = [oracle.mix(tokens[position] * 31 + tokens[position + 1]), seen[position]]
            self.require(
                stored == wanted, f"draft KV at {position} of sequence {seq_id} is {stored}, should be {wanted}"
            )
            self.checked += 1
