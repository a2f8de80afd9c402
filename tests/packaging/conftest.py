"""Fixtures: a copy of the repository, its wheel, and environments with either installed."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from installed import Environment, copy_repository, run


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository, links kept as links, so that builds and edits leave the original alone."""
    return copy_repository(tmp_path_factory.mktemp("source") / "tokloom")


@pytest.fixture(scope="session")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel."""
    target = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", target, source])
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def from_wheel(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A fresh environment with the wheel installed."""
    environment = Environment(tmp_path_factory.mktemp("from_wheel") / "venv")
    environment.install(wheel)
    return environment


@pytest.fixture(scope="session")
def editable(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A fresh environment with the copied repository installed as `pip install -e` does."""
    environment = Environment(tmp_path_factory.mktemp("editable") / "venv")
    environment.install("-e", source)
    return environment
