"""What chat and text completions share of their answers: token counts, token texts, quick server-sent events."""

import codecs
import math
from json.encoder import encode_basestring_ascii as quote
from typing import Final, NotRequired

from attrs import define
from typing_extensions import TypedDict

from tokloom import Event, TokenLogprobs
from tokloom.sdk import Tokenizer
from tokloom.serve.http.errors import encode

__all__ = ["DONE", "Counts", "PromptDetails", "TokenTexts", "UsageObject", "finite", "frame", "quote"]

#: stands for minus infinity, which JSON lacks
_LEAST: Final = -9999.0
#: ends a stream of completions
DONE: Final = b"data: [DONE]\n\n"


class PromptDetails(TypedDict):
    cached_tokens: int


class CompletionDetails(TypedDict):
    reasoning_tokens: int


class UsageObject(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: NotRequired[PromptDetails]
    completion_tokens_details: NotRequired[CompletionDetails]


@define
class Counts:
    """Tokens of one HTTP request. A prompt counts once, whatever `n`."""

    prompt: int = 0
    output: int = 0
    cached: int = 0

    def add(self, event: Event) -> None:
        """Count a sequence's last event."""
        if event.usage is None:
            return
        self.output += event.usage.output_tokens
        if event.index == 0:
            self.prompt += event.usage.prompt_tokens
            self.cached += event.usage.hit_tokens

    def usage(self) -> UsageObject:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.output,
            "total_tokens": self.prompt + self.output,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


class TokenTexts:
    """Texts of single tokens."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer

    def data(self, token: int) -> bytes:
        """The exact bytes."""
        return self._tokenizer.token_bytes(token) if self._tokenizer is not None else b""

    def text(self, token: int) -> str:
        """Half a character is U+FFFD."""
        return self.data(token).decode("utf-8", "replace")

    def offsets(self) -> "Offsets":
        """A fresh count of the characters before each token of one text."""
        return Offsets(self)


class Offsets:
    """Characters before each token of a shown text: special tokens are none, and a character counts when whole."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._count = 0

    def next(self, token: int, special: bool) -> int:
        """Where `token` begins."""
        before = self._count
        if not special:
            self._count += len(self._decoder.decode(self._texts.data(token)))
        return before


def finite(logprob: float) -> float:
    """As a JSON number."""
    return _LEAST if math.isinf(logprob) else logprob


def given(entry: TokenLogprobs) -> bool:
    """Whether it has a value: the first token of a prompt has none."""
    return not math.isnan(entry.logprob)


def frame(body: object) -> bytes:
    """One server-sent event."""
    return b"data: " + encode(body) + b"\n\n"
