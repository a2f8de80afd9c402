"""A tiny model folder with a byte-level tokenizer and a chat template: everything that text needs, in milliseconds."""

import json
from pathlib import Path
from typing import Any

from tiny_models import tiny_llama
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

TEMPLATE = (
    "{% for m in messages %}<bos>{{ m.role }}: {{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}A:{% endif %}"
)
SETS = ("model.dtype=float32", "engine.kv_memory=4MiB", "engine.max_sequences=4", "engine.threads=1", "engine.seed=1")


def tiny_chat_model(folder: Path) -> Path:
    """Random weights: the text is noise, but the same noise each time."""
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    tiny_llama(folder, vocab_size=258, head_dim=16, bos_token_id=256, eos_token_id=257, **sizes)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<bos>", "<eos>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
