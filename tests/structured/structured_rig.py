"""What these tests share: a tokenizer whose tokens are bytes, the plugin over it, and whether it takes a text."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from tokloom.plugins.logits.llguidance import LLGuidanceOptions, tokloom_logits
from tokloom.sdk import JSON, ChatMessage, Context, Grammar, GrammarFactory, GrammarSpec, Tool

END: Final = 256
CALL: Final = 257
#: more than the tokenizer knows
VOCAB: Final = 264


class ByteTokenizer:
    """Implements `tokloom.sdk.Tokenizer`: a token per byte, `<|end|>` and `<|call|>`."""

    special_ids = frozenset({END, CALL})
    chat_template = ""

    def encode(self, text: str, *, add_special: bool) -> Sequence[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        return b"".join(self.token_bytes(i) for i in ids if not skip_special or i < END).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < 256:
            return bytes([token_id])
        return {END: b"<|end|>", CALL: b"<|call|>"}.get(token_id, b"")

    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool],
        options: Mapping[str, JSON],
        add_generation_prompt: bool,
    ) -> Sequence[int]:
        raise NotImplementedError


def factory(tokenizer: Any = None, **options: Any) -> GrammarFactory:
    """The plugin as the composer makes it."""
    (offer,) = tokloom_logits()
    context = SimpleNamespace(tokenizer=tokenizer or ByteTokenizer(), model=SimpleNamespace(name="bytes"))
    return offer.factory(LLGuidanceOptions(**options), cast(Context, context))


def start(maker: GrammarFactory, syntax: str, text: str = "") -> Grammar:
    return maker.start(GrammarSpec(syntax, text, "llguidance"), VOCAB, (END,))


def takes(grammar: Grammar, text: str) -> bool:
    """Whether the whole text is output that may end here. The grammar is as before."""
    taken = 0
    for token in text.encode():
        allowed = bool(grammar.mask()[token])
        assert grammar.advance(token) == allowed, f"mask and advance differ at byte {taken} of {text!r}"
        if not allowed:
            break
        taken += 1
    else:
        ended = bool(grammar.mask()[END])
        grammar.rollback(taken)
        return ended
    grammar.rollback(taken)
    return False


def allowed(mask: NDArray[np.bool_]) -> set[int]:
    return set(np.flatnonzero(mask).tolist())
