"""The tokenizer of a GGUF file and of a folder, byte-exact tokens, and chat templates in their sandbox."""

import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tokloom.plugins.models.decoder.chat import ChatTemplate
from tokloom.plugins.models.decoder.family import DecoderFamily
from tokloom.plugins.models.decoder.gguf_file import GGUFFile
from tokloom.plugins.models.decoder.tokenizer import DecoderTokenizer, from_folder, from_gguf_metadata
from tokloom.sdk import ChatMessage, CheckpointError, ModelSource, RequestError

TEXTS = [
    "Hello, world!",
    "  two  spaces\tand\ttabs\n\n\nlines ",
    "Ünïcödé, naïve café, Straße, ﬁ",
    "日本語とにほんご 한국어 中文字符",
    "emoji 👩‍👩‍👧‍👦🇫🇷🤷🏽‍♀️ end",
    "def f(x):\n    return x ** 2  # 12345 0x1F\n",
    "1234567890 3.14159 1,000,000",
    "don't I'll we're it's",
    "<|im_start|>user\nhi<|im_end|>",
    "",
    "\x00\x7f\u200b\ufeff",
]


@pytest.fixture(scope="module")
def ours(smollm2: Path) -> DecoderTokenizer:
    tokenizer = DecoderFamily().open(ModelSource(path=smollm2)).tokenizer
    assert tokenizer is not None
    return tokenizer


@pytest.fixture(scope="module")
def reference(smollm2: Path) -> Tokenizer:
    """Built through the gguf package's reader, with what the model's own tokenizer.json says."""
    import gguf

    fields = gguf.GGUFReader(smollm2).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    kinds = fields["tokenizer.ggml.token_type"].contents()
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([tokens[i] for i, kind in enumerate(kinds) if kind == 3])
    return tokenizer


@pytest.mark.model
@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_the_reference(ours: DecoderTokenizer, reference: Tokenizer, text: str) -> None:
    assert list(ours.encode(text, add_special=False)) == reference.encode(text, add_special_tokens=False).ids


@pytest.mark.model
@pytest.mark.parametrize("text", TEXTS)
def test_token_bytes_spell_the_text(ours: DecoderTokenizer, text: str) -> None:
    ids = ours.encode(text, add_special=False)
    assert b"".join(ours.token_bytes(token) for token in ids) == text.encode()
    assert ours.decode(ids, skip_special=False) == text


@pytest.mark.model
def test_random_bytes_round_trip(ours: DecoderTokenizer) -> None:
    rng = random.Random(11)
    for _ in range(50):
        text = "".join(chr(rng.choice([rng.randrange(32, 127), rng.randrange(0xA0, 0x2FFF)])) for _ in range(40))
        ids = ours.encode(text, add_special=False)
        assert b"".join(ours.token_bytes(token) for token in ids) == text.encode(), text


@pytest.mark.model
def test_the_real_chat_template_frames_messages(ours: DecoderTokenizer) -> None:
    ids = ours.chat(
        [ChatMessage("system", "Be brief."), ChatMessage("user", "Hi")],
        tools=(),
        options={},
        add_generation_prompt=True,
    )
    assert ours.decode(ids, skip_special=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids[0] in ours.special_ids


@pytest.mark.model
def test_unknown_pre_tokenizers_and_models_are_refused(smollm2: Path) -> None:
    metadata = dict(GGUFFile(smollm2).metadata)
    with pytest.raises(CheckpointError, match="pre is 'chatglm'"):
        from_gguf_metadata("m.gguf", {**metadata, "tokenizer.ggml.pre": "chatglm"})
    with pytest.raises(CheckpointError, match="'bert'"):
        from_gguf_metadata("m.gguf", {**metadata, "tokenizer.ggml.model": "bert"})
    without = {key: value for key, value in metadata.items() if key != "tokenizer.ggml.merges"}
    with pytest.raises(CheckpointError, match="merges is missing"):
        from_gguf_metadata("m.gguf", without)


def sentencepiece() -> DecoderTokenizer:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    scores = [0.0] * len(pieces)
    for rank, text in enumerate(
        ["▁", "h", "e", "l", "o", "w", "r", "d", "he", "ll", "hell", "hello", "▁hello", "▁w", "or"]
    ):
        pieces.append(text)
        scores.append(-float(rank))
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(pieces) - 259)]
    tokenizer = from_gguf_metadata(
        "m.gguf",
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": list(pieces),
            "tokenizer.ggml.scores": list(scores),
            "tokenizer.ggml.token_type": list(kinds),
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
        },
    )
    assert tokenizer is not None
    return tokenizer


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes() -> None:
    tokenizer = sentencepiece()
    ids = list(tokenizer.encode("hello wörld", add_special=True))
    assert ids[0] == 1
    spelled = b"".join(tokenizer.token_bytes(token) for token in ids[1:])
    assert spelled == " hello wörld".encode()
    assert tokenizer.token_bytes(ids[1]) == b" hello"
    assert tokenizer.decode(ids, skip_special=True) == "hello wörld"


def test_a_leading_token_is_never_doubled() -> None:
    tokenizer = sentencepiece()
    assert list(tokenizer.encode("<s>hello", add_special=True)).count(1) == 1


def folder_tokenizer(folder: Path, **config: object) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<bos>", "<eos>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<bos>", "eos_token": {"content": "<eos>"}, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def test_a_folder_brings_tokenizer_and_template(tmp_path: Path) -> None:
    folder_tokenizer(
        tmp_path, add_bos_token=True, chat_template="{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    )
    tokenizer = from_folder(tmp_path)
    assert tokenizer is not None
    ids = tokenizer.encode("añb", add_special=True)
    assert ids[0] == 256
    assert b"".join(tokenizer.token_bytes(token) for token in ids[1:]) == "añb".encode()
    assert tokenizer.special_ids == {256, 257}
    chat = tokenizer.chat([ChatMessage("user", "x")], tools=(), options={}, add_generation_prompt=False)
    assert tokenizer.decode(chat, skip_special=False) == "<bos>x<eos>"


def test_a_folder_without_tokenizer_has_none(tmp_path: Path) -> None:
    assert from_folder(tmp_path) is None


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        from_folder(tmp_path)


def render(text: str) -> str:
    template = ChatTemplate(text, "model", {"bos_token": "<s>"})
    return template.render([ChatMessage("user", "hi")], tools=(), options={}, add_generation_prompt=True)


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ raise_exception('no') }}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{{ 'x' * 10000000 }}",
        "{{ undefined.field }}",
        "{% if %}",
        "{{ 1 / 0 }}",
        "{{ messages[5].content }}",
    ],
)
def test_hostile_and_broken_templates_are_refused(text: str) -> None:
    with pytest.raises(RequestError):
        render(text)


def test_conventions_of_templates() -> None:
    loop = "{{ bos_token }}{% for m in messages %}\n  {{ m['role'] }}: {{ m.content | trim }}\n{% endfor %}"
    assert render(loop + "{% if add_generation_prompt %}A:{% endif %}") == "<s>  user: hi\nA:"
