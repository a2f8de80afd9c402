"""One tiny model for the tests that need pages; fake_core for the others."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "api"))
sys.path.append(str(Path(__file__).parents[1] / "adapters"))

from browser import Browser, find_chromium
from served import Served, serving
from tiny_chat import SETS, tiny_chat_model

from tokloom.api import AsyncEngine


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_chat_model(tmp_path_factory.mktemp("chat"))


@pytest.fixture(scope="module")
def real(model: Path) -> Iterator[Served]:
    """A server over the tiny model."""

    async def load() -> AsyncEngine:
        return await AsyncEngine.from_profile("builtin:cpu", model=model, sets=SETS)

    with serving(load) as server:
        yield server


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser without a window."""
    program = find_chromium()
    assert program is not None
    made = Browser(program, tmp_path_factory.mktemp("browser"))
    yield made
    made.close()
