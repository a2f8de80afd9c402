"""Tokenizers from GGUF metadata give the ids of transformers' own classes over the same vocabulary."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import GemmaTokenizer, Qwen2Tokenizer

from tokloom.plugins.models.decoder.tokenizer import DecoderTokenizer, from_gguf_metadata
from tokloom.sdk import CheckpointError

TEXTS = [
    "Hello, world! It's 12345 degrees; we'll see.",
    "  two  spaces\tand\ttabs\n\n\nlines \n",
    "Ünïcödé e\u0301 naïve café, Straße, ﬁ",
    "日本語とにほんご 한국어 中文字符",
    "emoji 👩‍👩‍👧‍👦🇫🇷🤷🏽‍♀️ end",
    "def f(x):\n    return x ** 2  # 12345 0x1F\n",
    "camelCase HTTPServer iPhone 3.14/2 path/to\n",
    "",
]


def texts() -> list[str]:
    rng = random.Random(5)
    ranges = [(32, 127)] * 4 + [(0xA0, 0x24F), (0x400, 0x4FF), (0x3040, 0x30FF), (9, 11)]
    made = ["".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(60)) for _ in range(60)]
    return [*TEXTS, *made]


def trained() -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens in the order of ids, and merges, of a byte-level vocabulary trained on the texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocab = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return vocab, [(left, right) for left, right in model["merges"]]


def byte_level(pre: str, tokens: Sequence[str], merges: Sequence[tuple[str, str]], **more: Any) -> DecoderTokenizer:
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
        **more,
    }
    tokenizer = from_gguf_metadata("m.gguf", metadata)
    assert tokenizer is not None
    return tokenizer


def test_qwen2() -> None:
    tokens, merges = trained()
    ours = byte_level("qwen2", tokens, merges)
    theirs = Qwen2Tokenizer(vocab={token: n for n, token in enumerate(tokens)}, merges=merges)  # type: ignore[arg-type]
    for text in texts():
        assert list(ours.encode(text, add_special=True)) == theirs.encode(text, add_special_tokens=False), text


@pytest.mark.parametrize("pre", ["qwen2", "tekken", "llama-bpe", "smollm", "gpt-2"])
def test_bytes_spell_the_text(pre: str) -> None:
    ours = byte_level(pre, *trained())
    for text in texts():
        spelled = b"".join(ours.token_bytes(token) for token in ours.encode(text, add_special=False)).decode()
        assert spelled == text or pre == "qwen2"  # which composes characters first


def test_tekken_cuts_words_at_capitals_and_digits_one_by_one() -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["camel", "Case", "HTTPServer", "12", "amel", "amelCase"]
    ours = byte_level("tekken", [*alphabet, *words], [])
    pieces = [ours.token_bytes(token) for token in ours.encode("camelCase", add_special=False)]
    assert pieces == [b"camel", b"Case"]
    assert len(ours.encode("12", add_special=False)) == 2


def test_unknown_names_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.ggml\.pre is 'deepseek-v3'.*qwen2"):
        byte_level("deepseek-v3", *trained())


def gemma() -> tuple[list[str], list[float]]:
    """A vocabulary in SentencePiece's manner: the sooner a piece was merged, the larger its score."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
    special = len(tokens)
    text = "\u2581".join(" ".join(TEXTS).split(" "))
    pieces = dict.fromkeys(sorted({c for c in text if c.isascii() or c in "\u2581é日本"}))
    rng = random.Random(2)
    whole = list(pieces)
    for _ in range(400):
        pieces.setdefault(rng.choice(whole) + rng.choice(whole))
        whole = list(pieces)
    for begin in range(0, len(text) - 1, 2):
        pair = text[begin : begin + 2]
        if pair[0] in pieces and pair[1] in pieces:
            pieces.setdefault(pair)
    listed = [piece for piece in pieces if len(piece) <= 8]
    return [*tokens, *listed], [*[0.0] * special, *(-float(n) for n in range(len(listed)))]


def sentencepiece(prefix: bool) -> DecoderTokenizer:
    tokens, scores = gemma()
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.scores": list(scores),
        "tokenizer.ggml.token_type": [3] * 5 + [6] * 256 + [1] * (len(tokens) - 261),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": prefix,
    }
    tokenizer = from_gguf_metadata("m.gguf", metadata)
    assert tokenizer is not None
    return tokenizer


def test_gemma() -> None:
    tokens, scores = gemma()
    vocab = {token: n for n, token in enumerate(tokens)}
    pairs = [
        (scores[n], left, right)
        for token, n in vocab.items()
        for left, right in ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        if left in vocab and right in vocab
    ]
    pairs.sort(key=lambda pair: (-pair[0], vocab[pair[1]], vocab[pair[2]]))
    merges: Any = [(left, right) for _, left, right in pairs]
    theirs = GemmaTokenizer(vocab=vocab, merges=merges)
    ours = sentencepiece(prefix=False)
    for text in texts():
        ids = list(ours.encode(text, add_special=True))
        assert ids == [2, *theirs.encode(text, add_special_tokens=False)], text
        assert b"".join(ours.token_bytes(token) for token in ids[1:]).decode() == text
        assert ours.decode(ids, skip_special=True) == text


def test_a_space_goes_in_front_only_where_the_file_wants_it() -> None:
    plain, prefixed = sentencepiece(prefix=False), sentencepiece(prefix=True)
    assert plain.decode(plain.encode(" x", add_special=True), skip_special=True) == " x"
    assert prefixed.encode("x", add_special=False) == plain.encode(" x", add_special=False)
    assert prefixed.decode(prefixed.encode("x", add_special=False), skip_special=True) == "x"
