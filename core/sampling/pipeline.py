"""The logits pipeline before temperature, for rows of any sequences at once; each row has its own prefix.

Order: processors, logit bias, bad words, penalties, minimum length, grammar. (Temperature and what follows: `laws`.)
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray
from torch import Tensor

from tokloom.core.sampling.state import Row
from tokloom.sdk import LogitsProcessor, LogitsRow, PluginFault, RequestError, TokloomError

Faults = dict[int, TokloomError]
Mask = NDArray[np.bool_]


@frozen(eq=False)
class Batch:
    """Rows to process. `masks[i]` is the grammar's answer for row i (`[V]` bool), None where no grammar applies."""

    rows: Sequence[Row] = field()
    masks: Sequence[Mask | None] = field()


def process(batch: Batch, logits: Tensor, faults: Faults) -> Tensor:
    """Run the pipeline on `logits` `[R, V]`, which may be overwritten. Rows of a faulty processor land in `faults`."""
    x = _processors(batch.rows, logits, faults)
    _bias(batch.rows, x)
    _forbid(x, [np.concatenate([r.state.bad_always, np.array(r.state.bad_next(r), np.int64)]) for r in batch.rows])
    _penalties(batch.rows, x)
    _forbid(x, [_endings(row) for row in batch.rows])
    _grammar(batch.masks, x)
    return x


def _processors(rows: Sequence[Row], logits: Tensor, faults: Faults) -> Tensor:
    """Each processor once for all rows whose requests use it, in each request's own order.

    Processors are called in rounds: a round calls every processor that is first in line for some rows.
    """
    lines = [list(row.state.processors) for row in rows]
    while any(lines):
        turn: dict[str, tuple[LogitsProcessor, list[int]]] = {}
        for index, line in enumerate(lines):
            if line:
                name, processor = line.pop(0)
                turn.setdefault(name, (processor, []))[1].append(index)
        for name, (processor, members) in turn.items():
            _apply(name, processor, rows, members, logits, faults)
    return logits


def _apply(
    name: str, processor: LogitsProcessor, rows: Sequence[Row], members: list[int], logits: Tensor, faults: Faults
) -> None:
    """One batched call; if it fails, one call per sequence, so that only those that fail alone are faulted."""
    try:
        out = _call(name, processor, rows, members, logits)
    except PluginFault as fault:
        owners = {rows[m].state.seq_id for m in members}
        for owner in owners:
            own = [m for m in members if rows[m].state.seq_id == owner]
            if len(owners) == 1:
                faults.update(dict.fromkeys(own, fault))
            else:
                _apply(name, processor, rows, own, logits, faults)
        return
    logits[torch.tensor(members, device=logits.device)] = out


def _call(name: str, processor: LogitsProcessor, rows: Sequence[Row], members: list[int], logits: Tensor) -> Tensor:
    given = logits[torch.tensor(members, device=logits.device)].float()
    contexts = [
        LogitsRow(rows[m].state.request, rows[m].state.child, rows[m].state.num_prompt, rows[m]) for m in members
    ]
    subject = f"logits.{name}"
    remedy = f"Fix the processor or drop it from request {rows[members[0]].state.request.request_id!r}"
    try:
        out = processor.apply(contexts, given)
    except Exception as error:
        raise PluginFault(f"apply raised {type(error).__name__}: {error}", subject=subject, remedy=remedy) from error
    if not isinstance(out, Tensor) or out.shape != given.shape:
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise PluginFault(f"apply returned {shape}, not {tuple(given.shape)}", subject=subject, remedy=remedy)
    if bool(torch.isnan(out).any()):
        raise PluginFault("apply returned NaN", subject=subject, remedy=remedy)
    return out.to(logits.dtype)


def _bias(rows: Sequence[Row], x: Tensor) -> None:
    where = _flat([row.state.bias_ids for row in rows], x)
    if len(where):
        values = torch.from_numpy(np.concatenate([row.state.bias for row in rows])).to(x.device, x.dtype)
        flat = x.view(-1)
        flat[where] = flat[where] + values


def _penalties(rows: Sequence[Row], x: Tensor) -> None:
    """Repetition over prompt and output (Keskar et al. 2019, CTRL), then presence and frequency over the output."""
    ids: list[NDArray[np.int64]] = []
    scale: list[NDArray[np.float64]] = []
    offset: list[NDArray[np.float64]] = []
    for row in rows:
        seen, params = row.state.seen, row.state.params
        if seen is None:
            ids.append(np.zeros(0, dtype=np.int64))
            continue
        seen.follow(row.tokens)
        own, counts = seen.with_path(row.path)
        ids.append(own)
        scale.append(np.full(len(own), params.repetition_penalty))
        offset.append(counts * params.frequency_penalty + (counts > 0) * params.presence_penalty)
    where = _flat(ids, x)
    if len(where):
        factor = torch.from_numpy(np.concatenate(scale)).to(x.device, x.dtype)
        less = torch.from_numpy(np.concatenate(offset)).to(x.device, x.dtype)
        flat = x.view(-1)
        old = flat[where]
        flat[where] = torch.where(old > 0, old / factor, old * factor) - less


def _endings(row: Row) -> NDArray[np.int64]:
    state = row.state
    return state.ending if row.outputs < state.params.min_tokens else state.ending[:0]


def _grammar(masks: Sequence[Mask | None], x: Tensor) -> None:
    which = [i for i, mask in enumerate(masks) if mask is not None]
    if which:
        forbidden = torch.from_numpy(~np.stack([mask for mask in masks if mask is not None])).to(x.device)
        if len(which) == len(masks):
            x.masked_fill_(forbidden, -torch.inf)
        else:
            index = torch.tensor(which, device=x.device)
            x[index] = x[index].masked_fill(forbidden, -torch.inf)


def _forbid(x: Tensor, ids: Sequence[NDArray[np.int64]]) -> None:
    where = _flat(ids, x)
    if len(where):
        x.view(-1)[where] = -torch.inf


def _flat(ids: Sequence[NDArray[np.int64]], x: Tensor) -> Tensor:
    """Flat positions in `x` `[R, V]` of the ids of each row."""
    vocab = x.shape[1]
    parts = [own + row * vocab for row, own in enumerate(ids) if len(own)]
    return torch.from_numpy(np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)).to(x.device)


@frozen(eq=False)
class GrammarView:
    """What a grammar says about the rows of one span.

    Attributes:
        masks: per row, or None where nothing may follow (`over`).
        over: rows after which nothing may be drawn: the grammar has ended, or it refuses the row's last token.
        refused: those of `over` whose last token the grammar refuses.
    """

    masks: tuple[Mask | None, ...] = field()
    over: frozenset[int] = field()
    refused: frozenset[int] = field()


def view_grammar(row: Row, tokens: Sequence[int], parents: Sequence[int], vocab_size: int) -> GrammarView:
    """Walk the tree with the root row's grammar and roll it back. Row i + 1 follows node i.

    Raises:
        RequestError: the grammar raised it: the specification asks too much.
        PluginFault: the grammar raised something else, or a mask has the wrong shape.
    """
    grammar = row.state.grammar
    assert grammar is not None
    masks: list[Mask | None] = [None] * (len(tokens) + 1)
    over: set[int] = set()
    refused: set[int] = set()
    walk: list[int] = []

    def visit(at: int) -> None:
        if at and grammar.terminated:
            over.add(at)
            return
        mask = np.asarray(grammar.mask())
        if mask.shape != (vocab_size,) or mask.dtype != np.bool_:
            raise TypeError(f"mask() gave {mask.dtype}{list(mask.shape)}, not bool[{vocab_size}]")
        masks[at] = mask.copy()

    def enter(node: int) -> None:
        route = path_to(node, parents)
        if any(step + 1 in over for step in route[:-1]):
            over.add(node + 1)
            return
        shared = next((i for i, (a, b) in enumerate(zip(walk, route, strict=False)) if a != b), len(walk))
        _rollback(grammar.rollback, len(walk) - shared)
        del walk[shared:]
        for step in route[shared:]:
            if not grammar.advance(tokens[step]):
                over.add(node + 1)
                refused.add(node + 1)
                return
            walk.append(step)
        visit(node + 1)

    try:
        visit(0)
        for node in range(len(tokens)):
            enter(node)
        _rollback(grammar.rollback, len(walk))
    except RequestError:
        raise
    except Exception as error:
        raise grammar_fault(row, error) from error
    return GrammarView(tuple(masks), frozenset(over), frozenset(refused))


def grammar_fault(row: Row, error: Exception | str) -> PluginFault:
    """The fault of a row's grammar."""
    request = row.state.request
    name = request.sampling.grammar.offer if request.sampling.grammar else "grammar"
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return PluginFault(
        f"the grammar of sequence {row.state.seq_id} (request {request.request_id!r}) failed: {text}",
        subject=f"logits.{name}",
        remedy="Fix the grammar plugin, or send the request without a grammar",
    )


def path_to(node: int, parents: Sequence[int]) -> list[int]:
    """Nodes from the root's child to `node`."""
    route: list[int] = []
    while node >= 0:
        route.append(node)
        node = parents[node]
    return route[::-1]


def _rollback(rollback: Callable[[int], None], count: int) -> None:
    if count:
        rollback(count)
