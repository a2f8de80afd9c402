"""LogitsProcessor and Grammar: what changes logits before sampling, per request."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from attrs import frozen

from tokloom.sdk.values.requests import GrammarSpec, GrammarSyntax, Request

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


@frozen(kw_only=True)
class LogitsCaps:
    """What a logits plugin is.

    Attributes:
        role: `processor`: a LogitsProcessor; `grammar`: a GrammarFactory.
        syntaxes: what a grammar's specifications may be written in. Its own syntaxes stand in the offer's `extras`.
    """

    role: Literal["processor", "grammar"] = "processor"
    syntaxes: frozenset[GrammarSyntax] = frozenset()


@frozen
class LogitsRow:
    """The context of one row of logits.

    Attributes:
        request: as given.
        child: which of the request's sequences.
        num_prompt: leading tokens of `prefix` that are the prompt.
        prefix: all tokens before the one to draw, with the drafts on this row's path.
    """

    request: Request
    child: int
    num_prompt: int
    prefix: Sequence[int]


class LogitsProcessor(Protocol):
    """Stateless: a row's result depends on the row alone, so that hypothetical rows (drafts) are right too. Called
    inside the launch, once or more per step with rows of any sequences that named it; after a failure once more per
    sequence.
    """

    def apply(self, rows: Sequence[LogitsRow], logits: "Tensor") -> "Tensor":
        """Return `[R, V]` float32 logits for the rows, -inf for what may not be drawn and no NaN; may change `logits`
        `[R, V]` float32 in place.
        """
        ...


class Grammar(Protocol):
    """The state of one sequence. The core advances it by drafts while it fills masks and rolls those back. It is never
    copied: a child, or a sequence that starts again, gets a fresh one that is advanced over its output.

    Used by one thread at a time, not always the same: while a step's forward pass runs, one of the engine's worker
    threads walks the drafts and asks for masks, beside those of other sequences; all else is asked on the loop thread.
    What it raises ends its sequence: a RequestError as it is (the specification asks too much), all else as a fault of
    the plugin.
    """

    def mask(self) -> "NDArray[np.bool_]":
        """`[V]` bool on the host: tokens allowed next, the model's end ids included where the sequence may end.
        Copied.
        """
        ...

    def advance(self, token: int) -> bool:
        """Take one token; False (and no change) if it is not allowed. What the mask allows must be taken, but for end
        and stop ids, after which nothing follows.
        """
        ...

    def rollback(self, tokens: int) -> None:
        """Undo the last `tokens` advances that were not refused."""
        ...

    @property
    def terminated(self) -> bool:
        """Nothing but the end may follow; the core ends the sequence."""
        ...


class GrammarFactory(Protocol):
    """Makes the grammar of one sequence. Thread-safe, unlike the grammars: each request is checked with a `start` of
    its own on the thread that adds it, then again in the launch for every sequence and every start of it. What the
    first costs (milliseconds, to compile a specification) the others should not: they hold up the step.
    """

    def start(self, specification: GrammarSpec, vocab_size: int, eos_ids: Sequence[int]) -> Grammar:
        """`specification.syntax` is one that the offer lists, `offer` the offer's own name. Raises RequestError for a
        specification it cannot honour: nothing in it may be ignored.
        """
        ...
