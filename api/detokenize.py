"""Detokenizer: text of a growing list of ids, in pieces that never end inside a character."""

import codecs

from tokloom.sdk import Tokenizer


class Detokenizer:
    """One sequence. The bytes of tokens go through an incremental UTF-8 decoder: what is incomplete waits.

    Special tokens are left out.

    Args:
        shown: ids of special tokens that are not.
        at_start: the tokens begin a text of their own (an answer) instead of continuing one. Tokenizers in the way of
            SentencePiece put a space before the first word; where `Tokenizer.decode` removes it, so does this class.
    """

    def __init__(self, tokenizer: Tokenizer, *, at_start: bool = False, shown: frozenset[int] = frozenset()) -> None:
        self._tokenizer = tokenizer
        self._special = tokenizer.special_ids - shown if shown else tokenizer.special_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = at_start

    def push(self, token: int) -> str:
        """Text that `token` completes."""
        if token in self._special:
            return ""
        data = self._tokenizer.token_bytes(token)
        if self._at_start and data:
            self._at_start = False
            if data.startswith(b" ") and not self._tokenizer.decode([token], skip_special=True).startswith(" "):
                data = data[1:]
        return self._decoder.decode(data)

    def finish(self) -> str:
        """What was still incomplete, as U+FFFD."""
        return self._decoder.decode(b"", final=True)
