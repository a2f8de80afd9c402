"""LogitsProcessor and Grammar: what changes logits before sampling, per request."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from attrs import frozen

from tokloom.sdk.values.requests import Request

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


@frozen(kw_only=True)
class LogitsCaps:
    """`processor`: the plugin is a LogitsProcessor; `grammar`: a GrammarFactory."""

    role: Literal["processor", "grammar"] = "processor"


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
    """Stateless: a row's result depends on the row alone, so that hypothetical rows (drafts) are right too."""

    def apply(self, rows: Sequence[LogitsRow], logits: "Tensor") -> "Tensor":
        """Return `[R, V]` float32 logits for the rows; may change `logits` in place."""
        ...


class Grammar(Protocol):
    """The state of one sequence. The core advances it by drafts while it fills masks and rolls those back."""

    def mask(self) -> "NDArray[np.bool_]":
        """`[V]` bool: tokens allowed next."""
        ...

    def advance(self, token: int) -> bool:
        """Take one token; False (and no change) if it is not allowed."""
        ...

    def rollback(self, tokens: int) -> None:
        """Undo the last `tokens` advances."""
        ...

    @property
    def terminated(self) -> bool:
        """Nothing but the end may follow; the core ends the sequence."""
        ...


class GrammarFactory(Protocol):
    """Makes the grammar of one sequence."""

    def start(self, specification: str, vocab_size: int, eos_ids: Sequence[int]) -> Grammar:
        """Raises RequestError for a specification it cannot honour."""
        ...
