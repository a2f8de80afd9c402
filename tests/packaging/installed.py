"""Fresh virtual environments that see this environment's third-party libraries, but not this environment's Tokloom."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("api", "bench", "conformance", "core", "plugins", "profiles", "sdk", "serve")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ENTRY_POINTS: dict[str, str] = PROJECT["entry-points"]["tokloom.plugins"]

_LEFT_OUT = shutil.ignore_patterns(
    ".git",
    ".venv*",
    ".models",
    ".*_cache",
    "__pycache__",
    "*.egg-info",
    "*.so",
    ".hypothesis",
    "build",
    "dist",
    "tests",
    "docs",
)


def copy_repository(target: Path) -> Path:
    shutil.copytree(ROOT, target, symlinks=True, ignore=_LEFT_OUT)
    return target


def clean_environment(**variables: str) -> dict[str, str]:
    """The process's variables without those that would let this checkout shine through."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "MYPY", "PIP_", "TOKLOOM"))}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **variables}


def attempt(
    command: Sequence[str | Path], cwd: Path | None = None, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, whatever the end is."""
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=clean_environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


def run(command: Sequence[str | Path], cwd: Path | None = None, **variables: str) -> str:
    """Run a command that must succeed; its standard output."""
    ended = attempt(command, cwd, **variables)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


class Environment:
    """A virtual environment in `folder`."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True, with_pip=False)
        self.bin = folder / "bin"
        self.python = self.bin / "python"
        self.folder = folder
        site = run([self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
        # one line of a .pth file is one more folder to import from; .pth files inside that folder are not followed
        Path(site, "zz_libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def install(self, *what: str | Path) -> None:
        """Without dependencies, without a network."""
        pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check"]
        run([*pip, "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", *what])

    def evaluate(self, code: str) -> str:
        """What `code` prints, run far from any checkout."""
        return run([self.python, "-c", code], cwd=self.folder).strip()
