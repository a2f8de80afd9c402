"""What sampling keeps per sequence, and one row of logits with its own prefix."""

from collections.abc import Sequence
from typing import overload

import numpy as np
from attrs import field, frozen
from numpy.typing import DTypeLike, NDArray

from tokloom.sdk import Grammar, LogitsProcessor, Request, SamplingParams, SeqId

Ids = NDArray[np.int64]


class SeenTokens:
    """The distinct tokens of a history and how often each stands in the output; grows with it, O(1) per token."""

    def __init__(self, num_prompt: int) -> None:
        self._num_prompt = num_prompt
        self._length = 0
        self._index: dict[int, int] = {}
        self._ids = np.zeros(64, dtype=np.int64)
        self._counts = np.zeros(64, dtype=np.int64)

    def follow(self, tokens: Ids) -> None:
        """Catch up with the history `tokens`, which has the one of the last call as a prefix."""
        for position, token in enumerate(tokens[self._length :].tolist(), self._length):
            self._add(token, position >= self._num_prompt)
        self._length = len(tokens)

    def with_path(self, path: Sequence[int]) -> tuple[Ids, Ids]:
        """Distinct ids and their counts in the output, as if the output went on with `path`. Not to be changed."""
        used = len(self._index)
        if not path:
            return self._ids[:used], self._counts[:used]
        fresh = list(dict.fromkeys(token for token in path if token not in self._index))
        ids = np.concatenate([self._ids[:used], np.array(fresh, dtype=np.int64)])
        counts = np.concatenate([self._counts[:used], np.zeros(len(fresh), dtype=np.int64)])
        place = {token: used + i for i, token in enumerate(fresh)}
        for token in path:
            counts[self._index.get(token, place.get(token, -1))] += 1
        return ids, counts

    def _add(self, token: int, in_output: bool) -> None:
        at = self._index.setdefault(token, len(self._index))
        if at == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[at] = token
        self._counts[at] += in_output


class SequenceState:
    """Everything about one live sequence that does not change from step to step, its grammar and its counts.

    Attributes:
        seed: of this sequence alone, derived from the request's seed and `child`.
        siblings: seeds of all children, kept by child 0, from whose row the first tokens of all are drawn.
        ending: ids that `min_tokens` masks: those that would end the sequence.
        closing: ids after which a grammar need not accept anything: stop ids and the model's own end ids.
        steady: some stage of the pipeline applies to every row of the sequence.
        simple: the largest logit is all that is wanted of any row.
    """

    def __init__(
        self,
        seq_id: SeqId,
        request: Request,
        child: int,
        num_prompt: int,
        vocab_size: int,
        eos_ids: Sequence[int],
        seed: int,
        processors: Sequence[tuple[str, LogitsProcessor]],
        grammar: Grammar | None,
    ) -> None:
        params = request.sampling
        self.seq_id = seq_id
        self.request = request
        self.params: SamplingParams = params
        self.child = child
        self.num_prompt = num_prompt
        self.seed = seed
        self.siblings: tuple[int, ...] = ()
        self.processors = tuple(processors)
        self.grammar = grammar
        own = [e for e in eos_ids if 0 <= e < vocab_size]
        self.closing = frozenset(own) | frozenset(params.stop_token_ids)
        self.ending = np.array(sorted({*params.stop_token_ids, *(() if params.ignore_eos else own)}), dtype=np.int64)
        self.bias_ids = np.array(list(params.logit_bias.keys()), dtype=np.int64)
        self.bias = np.array(list(params.logit_bias.values()), dtype=np.float64)
        self.bad_always = np.array(sorted({w[0] for w in params.bad_words if len(w) == 1}), dtype=np.int64)
        self._bad_after: dict[int, list[tuple[int, ...]]] = {}
        for word in params.bad_words:
            if len(word) > 1:
                self._bad_after.setdefault(word[-2], []).append(tuple(word))
        penalised = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) != (1.0, 0.0, 0.0)
        self.seen = SeenTokens(num_prompt) if penalised else None
        self.steady = bool(self.processors or penalised or params.logit_bias or params.bad_words or grammar is not None)
        reported = params.logprobs is not None or params.n > 1
        self.simple = not (self.steady or reported or params.min_tokens) and params.temperature == 0.0

    @property
    def greedy(self) -> bool:
        return self.params.temperature == 0.0

    def plain(self, length: int) -> bool:
        """No stage of the pipeline applies to rows with a prefix of `length` tokens or more."""
        return not self.steady and length - self.num_prompt >= self.params.min_tokens

    def bad_next(self, row: "Row") -> list[int]:
        """Last tokens of the bad words of two tokens or more whose other tokens end the row's prefix."""
        if not self._bad_after or len(row) == 0:
            return []
        return [w[-1] for w in self._bad_after.get(row[-1], ()) if row.ends_with(w[:-1])]


@frozen(eq=False)
class Row(Sequence[int]):
    """One row of logits: the sequence it belongs to, and the tokens before the one to draw: history, then path.

    Attributes:
        tokens: committed history, `[n]` int64.
        path: drafts from the root to this row.
    """

    state: SequenceState = field()
    tokens: Ids = field()
    path: tuple[int, ...] = field()

    def __len__(self) -> int:
        return len(self.tokens) + len(self.path)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...

    def __getitem__(self, index: int | slice) -> "int | tuple[int, ...]":
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(index)
        history = len(self.tokens)
        return int(self.tokens[at]) if at < history else self.path[at - history]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[np.generic]:
        return np.concatenate([self.tokens, np.array(self.path, dtype=np.int64)]).astype(dtype or np.int64)

    def ends_with(self, tail: tuple[int, ...]) -> bool:
        """Whether the prefix ends with `tail`."""
        return len(tail) <= len(self) and self[len(self) - len(tail) :] == tail

    @property
    def outputs(self) -> int:
        """Tokens of the prefix after the prompt."""
        return len(self) - self.state.num_prompt
