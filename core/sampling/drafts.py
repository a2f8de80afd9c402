"""Drafts before verification: cleaning what a speculator proposes, and the laws of drafts that the core drew."""

from collections.abc import Sequence
from typing import Final

import torch
from attrs import field, frozen
from torch import Tensor

from tokloom.core.sampling import rng
from tokloom.core.sampling.laws import invert
from tokloom.core.sampling.verify import Law
from tokloom.sdk import NO_DRAFT, Draft, PluginFault, SeqId

_SUBJECT: Final = "speculator"


@frozen
class Cleaned:
    """A draft that may be verified; `kept[i]` is the proposed index of node i, `fault` says what was wrong."""

    draft: Draft
    kept: tuple[int, ...] = ()
    fault: str = ""


def clean(draft: Draft, vocab_size: int, k: int) -> Cleaned:
    """Bound a proposal. More than `k` nodes are cut to the first k; a node whose token an earlier sibling has is
    dropped with its descendants, which changes no law; anything else that is malformed leaves no draft.
    """
    fault = _malformed(draft, vocab_size)
    if fault:
        return Cleaned(NO_DRAFT, (), fault)
    cut = draft.prefix(max(k, 0))
    place: dict[int, int] = {-1: -1}
    taken: set[tuple[int, int]] = set()
    for node, (token, parent) in enumerate(zip(cut.tokens, cut.parents, strict=True)):
        if parent in place and (parent, token) not in taken:
            taken.add((parent, token))
            place[node] = len(place) - 1
    kept = tuple(node for node in place if node >= 0)
    if len(kept) < len(cut.tokens):
        parents = [place[cut.parents[n]] for n in kept]
        return Cleaned(Draft([cut.tokens[n] for n in kept], parents, cut.sampled), kept, "siblings share a token")
    return Cleaned(cut, kept, f"{len(draft.tokens)} tokens, at most {k} asked for" if cut is not draft else "")


def _malformed(draft: Draft, vocab_size: int) -> str:
    if len(draft.tokens) != len(draft.parents):
        return f"{len(draft.tokens)} tokens but {len(draft.parents)} parents"
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if not isinstance(token, int) or not 0 <= token < vocab_size:
            return f"token {token!r} of node {node} is outside the vocabulary of {vocab_size}"
        if not isinstance(parent, int) or not -1 <= parent < node:
            return f"parent {parent!r} of node {node} does not come before it"
    return ""


@frozen(eq=False)
class Drawn:
    """A token that the core drew for a draft, with the law it was drawn from, `[V]` float64."""

    token: int = field()
    depth: int = field()
    law: Law = field()


class DraftBook:
    """Laws of the drafts drawn for each sequence since its last verified span.

    Rejection sampling is exact only if whether a law is used does not depend on the token drawn from it. Therefore the
    draft of a speculator must hold every token drawn for it, in order; one that leaves out or replaces some loses the
    laws, and its sequence is verified by matching from then on.
    """

    def __init__(self) -> None:
        self._drawn: dict[SeqId, list[Drawn]] = {}
        self._claimed: dict[SeqId, tuple[Draft, list[Law | None]]] = {}
        self._count: dict[SeqId, int] = {}
        self._distrusted: set[SeqId] = set()

    def draw(self, seq_id: SeqId, seed: int, depth: int, position: int, q_logits: Tensor, vocab_size: int) -> int:
        """A token from `softmax(q_logits)` `[V]`, kept with its law.

        Raises:
            PluginFault: `q_logits` is no law over the vocabulary.
        """
        if q_logits.shape != (vocab_size,):
            raise PluginFault(
                f"sample_draft got logits of shape {tuple(q_logits.shape)}, not ({vocab_size},)", subject=_SUBJECT
            )
        x = q_logits.detach().to(torch.float64)
        top = x.max()
        if not bool(torch.isfinite(top)):
            raise PluginFault("sample_draft got logits that are NaN, infinite, or all -inf", subject=_SUBJECT)
        w = (x - top).exp_()
        nonce = self._count.get(seq_id, 0)
        u = rng.uniform(seed, position, rng.stream("draft", nonce))
        token = int(invert(w[None], torch.tensor([[u]], dtype=torch.float64, device=w.device))[0, 0])
        self._count[seq_id] = nonce + 1
        self._drawn.setdefault(seq_id, []).append(Drawn(token, depth, (w / w.cumsum(0)[-1]).numpy(force=True)))
        return token

    def claim(self, seq_id: SeqId, draft: Draft, kept: Sequence[int], proposed: Draft) -> Draft:
        """Tie the drawn laws to the draft that a speculator proposed, of which `draft` is what cleaning kept."""
        drawn = self._drawn.pop(seq_id, [])
        self._claimed.pop(seq_id, None)
        if not proposed.sampled and not drawn:
            return draft
        told = [(t, d) for t, d in zip(proposed.tokens, depths(proposed), strict=True)] if proposed.sampled else []
        if told != [(e.token, e.depth) for e in drawn]:
            self._distrusted.add(seq_id)
        if seq_id in self._distrusted:
            return Draft(draft.tokens, draft.parents)
        self._claimed[seq_id] = (draft, [trusted_law(proposed, drawn, node) for node in kept])
        return draft

    def laws(self, seq_id: SeqId, draft: Draft) -> list[Law | None] | None:
        """The law of each node of a prefix of the claimed draft; None: verify by matching."""
        claimed, laws = self._claimed.pop(seq_id, (NO_DRAFT, []))
        if self._drawn.pop(seq_id, None):
            self._distrusted.add(seq_id)
        n = len(draft.tokens)
        if not draft.sampled or n == 0 or claimed.tokens[:n] != draft.tokens or claimed.parents[:n] != draft.parents:
            return None
        return laws[:n]

    def end(self, seq_id: SeqId) -> None:
        """Drop everything about a sequence."""
        self._drawn.pop(seq_id, None)
        self._claimed.pop(seq_id, None)
        self._count.pop(seq_id, None)
        self._distrusted.discard(seq_id)

    def __len__(self) -> int:
        return len(self._drawn.keys() | self._claimed.keys() | self._count.keys() | self._distrusted)


def depths(draft: Draft) -> list[int]:
    """Depth of each node; children of the root have 1."""
    out: list[int] = []
    for parent in draft.parents:
        out.append(1 if parent < 0 else out[parent] + 1)
    return out


def trusted_law(proposed: Draft, drawn: Sequence[Drawn], node: int) -> Law | None:
    """The node's law, or None (one-hot, always exact) where it could have repeated an earlier sibling.

    Such repeats are dropped before verification, a choice that depends on the token drawn. Whether the law could
    repeat one is known before the token is drawn.
    """
    law = drawn[node].law
    parent = proposed.parents[node]
    siblings = [proposed.tokens[i] for i in range(node) if proposed.parents[i] == parent]
    return None if any(law[token] > 0.0 for token in siblings) else law
