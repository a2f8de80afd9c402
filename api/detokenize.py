"""Detokenizer: text of a growing list of ids, in pieces that never end inside a character."""

import codecs

from tokloom.sdk import Tokenizer


class Detokenizer:
    """One sequence. The bytes of tokens go through an incremental UTF-8 decoder: what is incomplete waits.

    Special tokens are left out. A SentencePiece text begins without the space its first piece carries.
    """

    def __init__(self, tokenizer: Tokenizer, *, at_start: bool = False) -> None:
        self._tokenizer = tokenizer
        self._special = tokenizer.special_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip = at_start

    def push(self, token: int) -> str:
        """Text that `token` completes."""
        if token in self._special:
            return ""
        data = self._tokenizer.token_bytes(token)
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def finish(self) -> str:
        """What was still incomplete, as U+FFFD."""
        return self._decoder.decode(b"", final=True)
