"""One tiny model for all tests of the command line."""

from pathlib import Path

import pytest
from tiny_chat import tiny_chat_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_chat_model(tmp_path_factory.mktemp("chat"))
