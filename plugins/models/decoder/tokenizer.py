"""DecoderTokenizer: text to ids and back through the `tokenizers` package, from tokenizer.json or GGUF metadata."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tokloom.plugins.models.decoder.chat import ChatTemplate
from tokloom.plugins.models.decoder.gguf_file import Value
from tokloom.plugins.models.decoder.sources import read_json
from tokloom.sdk import JSON, ChatMessage, CheckpointError, RequestError, Tool

_CONTROL, _USER_DEFINED = 3, 4
_SPACE: Final = "\u2581"
_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
#: `tokenizer.ggml.pre` -> how text is split before merging
_SPLITS: Final = {
    "llama-bpe": _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST,
    "qwen2": _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST,
    "tekken": rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
#: words that are tokens stay whole, whatever their merges
_WHOLE_WORDS: Final = ("llama-bpe", "tekken")


class DecoderTokenizer:
    """Implements `tokloom.sdk.Tokenizer`.

    Args:
        byte_level: token texts are byte-level BPE; otherwise SentencePiece with byte fallback.
        bos: id put in front with `add_special`, or -1.
        templates: the chat template, then, if there is one, that of conversations with tools.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        byte_level: bool,
        bos: int,
        special: frozenset[int],
        templates: Sequence[ChatTemplate],
    ) -> None:
        self._tokenizer = tokenizer
        self._byte_level = byte_level
        self._bos = bos
        self._special = special
        self._templates = tuple(templates)
        self._pieces: dict[int, bytes] = {}

    def encode(self, text: str, *, add_special: bool) -> Sequence[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        if add_special and self._bos >= 0 and ids[:1] != [self._bos]:
            return [self._bos, *ids]
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        piece = self._pieces.get(token_id)
        if piece is None:
            piece = self._pieces[token_id] = self._bytes_of(token_id)
        return piece

    def _bytes_of(self, token_id: int) -> bytes:
        text = self._tokenizer.id_to_token(token_id)
        if text is None:
            return b""
        if token_id in self._special:
            return str(text).encode()
        if self._byte_level:
            table = _byte_table()
            if all(character in table for character in text):
                return bytes(table[character] for character in text)
            return str(text).encode()
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes([int(text[3:5], 16)])
        return str(text).replace(_SPACE, " ").encode()

    @property
    def special_ids(self) -> frozenset[int]:
        return self._special

    @property
    def chat_template(self) -> str:
        return "\n".join(template.text for template in self._templates)

    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool],
        options: Mapping[str, JSON],
        add_generation_prompt: bool,
    ) -> Sequence[int]:
        if not self._templates:
            raise RequestError("the model has no chat template", remedy="Send a plain prompt")
        template = self._templates[-1 if tools else 0]
        text = template.render(messages, tools=tools, options=options, add_generation_prompt=add_generation_prompt)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _byte_table() -> dict[str, int]:
    """Character -> byte of byte-level BPE (GPT-2): printable bytes stand for themselves, the rest follows from 256."""
    if not _TABLE:
        plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
        _TABLE.update({chr(byte): byte for byte in plain})
        rest = [byte for byte in range(256) if byte not in set(plain)]
        _TABLE.update({chr(256 + index): byte for index, byte in enumerate(rest)})
    return _TABLE


_TABLE: dict[str, int] = {}


def from_folder(folder: Path, template: Path | None = None) -> DecoderTokenizer | None:
    """From tokenizer.json and tokenizer_config.json; None without the former. `template`: a file with the chat template
    in place of the folder's.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    raw = read_json(file)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"cannot be used: {error}", subject=str(file), remedy="Get the file again") from error
    settings = folder / "tokenizer_config.json"
    config = read_json(settings) if settings.is_file() else {}
    added = raw.get("added_tokens")
    special = frozenset(
        token["id"]
        for token in (added if isinstance(added, list) else [])
        if isinstance(token, dict) and token.get("special") and isinstance(token.get("id"), int)
    )
    names = {key: _token_text(config.get(key)) for key in ("bos_token", "eos_token")}
    bos_id = tokenizer.token_to_id(names["bos_token"]) if names["bos_token"] else None
    probe = tokenizer.encode("a", add_special_tokens=True).ids
    adds = bos_id is not None and (config.get("add_bos_token") is True or probe[:1] == [bos_id])
    decoder = raw.get("decoder")
    byte_level = isinstance(decoder, dict) and "ByteLevel" in str(decoder.get("type")) + str(decoder.get("decoders"))
    return DecoderTokenizer(
        tokenizer,
        byte_level=byte_level,
        bos=bos_id if adds and bos_id is not None else -1,
        special=special,
        templates=_templates(template, str(folder), _folder_templates(folder, config), names),
    )


def _token_text(value: object) -> str:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _folder_templates(folder: Path, config: Mapping[str, object]) -> list[object]:
    """The default one and the one for tools, where the folder has them."""
    separate = folder / "chat_template.jinja"
    text: object = separate.read_text(encoding="utf-8") if separate.is_file() else config.get("chat_template")
    if not isinstance(text, list):
        return [text, None]
    named = {item.get("name"): item.get("template") for item in text if isinstance(item, dict)}
    return [named.get("default"), named.get("tool_use")]


def _templates(given: Path | None, source: str, own: Sequence[object], tokens: Mapping[str, str]) -> list[ChatTemplate]:
    """The one that is given, else those of the checkpoint."""
    if given is None:
        return [ChatTemplate(text, source, tokens) for text in own if isinstance(text, str)]
    try:
        return [ChatTemplate(given.read_text(encoding="utf-8"), str(given), tokens)]
    except (OSError, UnicodeError) as error:
        raise CheckpointError(
            f"cannot be read: {error}", subject=str(given), remedy="Check model.chat_template"
        ) from None


def from_gguf_metadata(
    source: str, metadata: Mapping[str, Value], template: Path | None = None
) -> DecoderTokenizer | None:
    """From a GGUF file's own tokenizer; None if it carries none. `template`: a file with the chat template in place of
    the file's.
    """
    model = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if model is None or not isinstance(tokens, list):
        return None
    if model not in ("gpt2", "llama"):
        raise CheckpointError(
            f"tokenizer.ggml.model is {model!r}", subject=source, remedy="Supported: gpt2 (byte-level BPE), llama"
        )
    texts = [str(token) for token in tokens]
    kinds = metadata.get("tokenizer.ggml.token_type")
    types = [int(kind) for kind in kinds if isinstance(kind, int)] if isinstance(kinds, list) else []
    try:
        tokenizer = _bpe(source, texts, metadata) if model == "gpt2" else _sentencepiece(texts, metadata)
    except CheckpointError:
        raise
    except Exception as error:  # the library raises bare Exception on inconsistent merges
        raise CheckpointError(f"tokenizer cannot be built: {error}", subject=source, remedy="Get it again") from error
    special = frozenset(index for index, kind in enumerate(types) if kind == _CONTROL and index < len(texts))
    extra = [index for index, kind in enumerate(types) if kind == _USER_DEFINED and index < len(texts)]
    tokenizer.add_special_tokens(
        [AddedToken(texts[index], special=True, normalized=False) for index in sorted(special)]
    )
    tokenizer.add_tokens([AddedToken(texts[index], normalized=False) for index in extra])
    ids = {key: metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("bos", "eos")}
    names = {
        f"{key}_token": texts[value] if isinstance(value, int) and 0 <= value < len(texts) else ""
        for key, value in ids.items()
    }
    bos = ids["bos"]
    adds = metadata.get("tokenizer.ggml.add_bos_token", model == "llama")
    own = [metadata.get(f"tokenizer.chat_template{suffix}") for suffix in ("", ".tool_use")]
    return DecoderTokenizer(
        tokenizer,
        byte_level=model == "gpt2",
        bos=bos if adds and isinstance(bos, int) and 0 <= bos < len(texts) else -1,
        special=special,
        templates=_templates(template, source, own, names),
    )


def _bpe(source: str, tokens: Sequence[str], metadata: Mapping[str, Value]) -> Tokenizer:
    merges = metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise CheckpointError("tokenizer.ggml.merges is missing", subject=source, remedy="Get the file again")
    pairs = [(left, right) for left, _, right in (str(merge).partition(" ") for merge in merges)]
    pre = metadata.get("tokenizer.ggml.pre", "default")
    tokenizer = Tokenizer(
        models.BPE(
            vocab={text: index for index, text in enumerate(tokens)},
            merges=pairs,
            ignore_merges=pre in _WHOLE_WORDS,
        )
    )
    tokenizer.pre_tokenizer = _pre_tokenizer(source, str(pre))
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pre_tokenizer(source: str, name: str) -> pre_tokenizers.PreTokenizer:
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in ("gpt-2", "default"):
        return plain
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])
    if name in _SPLITS:
        split = pre_tokenizers.Split(Regex(_SPLITS[name]), behavior="isolated", invert=False)
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    known = ", ".join(("default", "gpt-2", "smollm", *_SPLITS))
    raise CheckpointError(f"tokenizer.ggml.pre is {name!r}", subject=source, remedy=f"Supported: {known}")


def _sentencepiece(tokens: Sequence[str], metadata: Mapping[str, Value]) -> Tokenizer:
    """SentencePiece BPE: the merge of two pieces ranks by the score of what they make."""
    scores = metadata.get("tokenizer.ggml.scores")
    ranks = [float(s) for s in scores if isinstance(s, (int, float))] if isinstance(scores, list) else []
    vocab = {text: index for index, text in enumerate(tokens)}
    merges: list[tuple[float, tuple[str, str]]] = []
    for text, index in vocab.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in vocab and right in vocab:
                merges.append((-(ranks[index] if index < len(ranks) else 0.0), (left, right)))
    merges.sort(key=lambda merge: (merge[0], vocab[merge[1][0]], vocab[merge[1][1]]))
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab, merges=[pair for _, pair in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True
        )
    )
    spaces, plain = normalizers.Replace(" ", _SPACE), [decoders.Replace(_SPACE, " "), decoders.ByteFallback()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        tokenizer.decoder = decoders.Sequence([*plain, decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    else:
        tokenizer.normalizer = spaces
        tokenizer.decoder = decoders.Sequence([*plain, decoders.Fuse()])
    return tokenizer
