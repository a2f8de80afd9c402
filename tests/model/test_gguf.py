"""GGUF: every supported type, the order of rotary rows, the real file."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_files import llama_from_gguf, rounded, write_gguf
from tiny_models import DenseAttention, hf_logits, random_ids, tiny_llama

from tokloom.plugins.models.decoder.family import DecoderFamily
from tokloom.plugins.models.decoder.gguf_file import GGUFFile
from tokloom.plugins.ops.torch.ops import TorchOps
from tokloom.plugins.quant.weights.dense.method import DenseWeights
from tokloom.sdk import ForwardBatch, ModelSource

SIZES: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def logits(path: Path, ids: list[int], dtype: str = "float32") -> torch.Tensor:
    model = DecoderFamily().open(ModelSource(path=path, dtype=dtype))
    decoder = model.load(DenseWeights(), "cpu", lambda *_: None)
    batch = ForwardBatch(torch.tensor(ids), torch.arange(len(ids)), np.array([0, len(ids)], dtype=np.int32))
    with torch.inference_mode():
        attention = DenseAttention.of(model.spec)
        return decoder.logits(decoder.forward(batch, attention, TorchOps()).last)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0"])
def test_every_type_gives_the_logits_of_the_same_rounded_weights(tmp_path: Path, kind: str, tied: bool) -> None:
    reference = tiny_llama(tmp_path, tie_word_embeddings=tied, **SIZES)
    write_gguf(tmp_path / "m.gguf", reference, kind)
    ids = random_ids(kind, 60)
    expected = hf_logits(rounded(reference, kind), ids)
    assert (logits(tmp_path / "m.gguf", ids) - expected).abs().max() < 1e-3 * expected.abs().max()


def test_rope_factors_in_the_file_divide_the_frequencies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gguf

    reference = tiny_llama(tmp_path, tie_word_embeddings=True, **SIZES)
    plain, scaled = tmp_path / "plain.gguf", tmp_path / "scaled.gguf"
    write_gguf(plain, reference)
    original = gguf.GGUFWriter.write_header_to_file

    def with_factors(self: gguf.GGUFWriter) -> None:
        self.add_tensor("rope_freqs.weight", np.full(16, 4.0, dtype=np.float32))
        original(self)

    with monkeypatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "write_header_to_file", with_factors)
        write_gguf(scaled, reference)
    linear = tiny_llama(
        tmp_path / "hf",
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        **SIZES,
    )
    ids = random_ids(5, 60)
    expected = hf_logits(linear, ids)
    assert (logits(scaled, ids) - expected).abs().max() < 1e-3 * expected.abs().max()
    assert (logits(plain, ids) - expected).abs().max() > 1e-2 * expected.abs().max()


@pytest.mark.model
def test_the_real_file_gives_transformers_logits(smollm2: Path) -> None:
    reference = llama_from_gguf(smollm2)
    rng = random.Random(7)
    prompts = [[1, 9690, 198, 2683, 359, 253, 5356], [rng.randrange(49152) for _ in range(200)]]
    for ids in prompts:
        assert (logits(smollm2, ids) - hf_logits(reference, ids)).abs().max() < 1e-3


@pytest.mark.model
def test_the_header_of_the_real_file_is_what_the_gguf_package_reads(smollm2: Path) -> None:
    import gguf

    ours, theirs = GGUFFile(smollm2), gguf.GGUFReader(smollm2)
    assert {t.name: tuple(int(n) for n in reversed(t.shape)) for t in theirs.tensors} == {
        name: entry.shape for name, entry in ours.tensors.items()
    }
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            assert (
                ours.metadata[key] == pytest.approx(field.contents())
                if isinstance(field.contents(), float)
                else ours.metadata[key] == field.contents()
            ), key
