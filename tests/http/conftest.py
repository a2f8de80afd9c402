"""One tiny model for the tests that need pages; fake_core for the others."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "api"))
sys.path.append(str(Path(__file__).parents[1] / "adapters"))

from tiny_chat import tiny_chat_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_chat_model(tmp_path_factory.mktemp("chat"))
