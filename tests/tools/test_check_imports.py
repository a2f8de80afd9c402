"""The checker of layer rules: each rule is broken once in a tiny tree, and the tree without the break passes."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = """
[project]
name = "tokloom"
[project.entry-points."tokloom.plugins"]
"attention.torch" = "tokloom.plugins.attention.torch"
"connector.host" = "tokloom.plugins.kvcache.connectors.host"
"""
GUARD = 'if __name__ != "tokloom.{0}":\n    raise ImportError("import tokloom.{0}")\n'


def load_checker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_imports", ROOT / "tools" / "check_imports.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CHECKER = load_checker()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree that keeps every rule, and comes close to breaking some."""
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    write(tmp_path, ".src/tokloom/__init__.py", '__all__ = ["Engine"]\n')
    for layer in CHECKER.LAYERS:
        write(tmp_path, f"{layer}/__init__.py", GUARD.format(layer))
    write(tmp_path, "sdk/values.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n")
    write(
        tmp_path,
        "sdk/contracts/scheduler.py",
        "from collections.abc import Sequence\nclass P:\n    def order(self, waiting: Sequence[int]) -> int: ...\n",
    )
    write(tmp_path, "core/device.py", 'NAMES = ("cpu", "cuda")\n')
    write(tmp_path, "core/engine.py", 'import torch\nfrom tokloom.sdk import Kind\nGROUP = "tokloom.plugins"\n')
    write(tmp_path, "core/catalog.py", 'PLACE = "host"  # an ordinary word\nFALLBACK = "builtin:cpu"\n')
    write(tmp_path, "plugins/attention/torch/__init__.py", "def make() -> None:\n    import torch\n")
    write(tmp_path, "plugins/attention/torch/kernel.py", "import torch\nfrom tokloom.sdk import hookimpl\n")
    write(tmp_path, "plugins/attention/torch/more.py", "from tokloom.plugins.attention.torch import kernel\n")
    write(tmp_path, "serve/cli.py", "import tokloom\nfrom tokloom import Engine, __version__\n")
    write(tmp_path, "conformance/mutants/bad.py", 'BASE = "attention.torch"\n')
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_this_repository_keeps_its_rules() -> None:
    assert CHECKER.violations(ROOT) == []


def test_a_tree_that_keeps_the_rules_passes(tree: Path) -> None:
    assert CHECKER.violations(tree) == []


BREAKS = {
    # layers
    "sdk imports core": ("sdk/bad.py", "from tokloom.core import engine\n", 1),
    "sdk imports core for types": (
        "sdk/bad.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tokloom.core import engine\n",
        3,
    ),
    "core imports a plugin": ("core/bad.py", "import tokloom.plugins.attention.torch\n", 1),
    "core imports api": ("core/bad.py", "\nfrom tokloom.api import Engine\n", 2),
    "core imports the package": ("core/bad.py", "import tokloom\n", 1),
    "conformance imports api": ("conformance/bad.py", "import tokloom.api\n", 1),
    "api imports serve": ("api/bad.py", "from tokloom import serve\n", 1),
    "serve imports core": ("serve/bad.py", "from tokloom.core.engine import Engine\n", 1),
    "a lazy import is an import": ("sdk/bad.py", "def f() -> None:\n    import tokloom.core\n", 2),
    "a relative import": ("core/bad.py", "from . import engine\n", 1),
    "a bare layer": ("core/bad.py", "from sdk.values import x\n", 1),
    "a plugin imports core": ("plugins/attention/torch/bad.py", "from tokloom.core import device\n", 1),
    "a plugin imports a neighbour": (
        "plugins/attention/torch/bad.py",
        "from tokloom.plugins.kvcache.connectors.host import HostOptions\n",
        1,
    ),
    "a plugin imports the embedding API": ("plugins/attention/torch/bad.py", "from tokloom import Engine\n", 1),
    "a plugin whose name begins alike": (
        "plugins/attention/torch_two/bad.py",
        "from tokloom.plugins.attention.torch import kernel\n",
        1,
    ),
    # names
    "core names an entry point": ("core/bad.py", 'DEFAULT = "attention.torch"\n', 1),
    "api names a distribution and plugin": ("api/bad.py", 'DEFAULT = "tokloom/host"\n', 1),
    "serve names a suite subject": ("serve/bad.py", 'X = "connector:host"\n', 1),
    "sdk names a module": ("sdk/bad.py", 'X = "tokloom.plugins.kvcache.connectors.host"\n', 1),
    "core builds a module name": ("core/bad.py", 'def f(k: str) -> str:\n    return f"tokloom.plugins.{k}"\n', 2),
    "core asks for a name": ("core/bad.py", 'def f(offer: X) -> bool:\n    return offer.name == "host"\n', 2),
    "core asks for one of two names": (
        "core/bad.py",
        'def f(offer: X) -> bool:\n    return offer.name in ("torch", "other")\n',
        2,
    ),
    "api has a default plugin": ("api/bad.py", 'X = Section(plugin="torch")\n', 1),
    "core has a default table": ("core/bad.py", 'X = {"plugin": "host"}\n', 1),
    "conformance names a plugin": ("conformance/bad.py", 'X = "attention.torch"\n', 1),
    # words
    "core compares a device type": ("core/bad.py", 'X = "cuda"\n', 1),
    "core has an identifier with a device": ("core/bad.py", "\nis_cuda_graph = 1\n", 2),
    "core comments on a device": ("core/bad.py", "x = 1  # faster on CPU\n", 1),
    # contracts
    "Any": ("sdk/contracts/bad.py", "class P:\n    def f(self, x: Any) -> int: ...\n", 2),
    "Any after a dot": ("sdk/contracts/bad.py", "class P:\n    def f(self) -> typing.Any: ...\n", 2),
    "object inside": ("sdk/contracts/bad.py", "class P:\n    def f(self, x: dict[str, object]) -> int: ...\n", 2),
    "a quoted Engine": ("sdk/contracts/bad.py", 'class P:\n    def f(self, x: "Engine") -> int: ...\n', 2),
    "a Runner": ("sdk/contracts/bad.py", "class P:\n    def f(self, *x: Runner) -> int: ...\n", 2),
    "keywords": ("sdk/contracts/bad.py", "class P:\n    def f(self, **options: int) -> int: ...\n", 2),
    # heavy
    "sdk imports torch": ("sdk/bad.py", "import torch.nn\n", 1),
    "a plugin's entry imports torch": ("plugins/attention/torch/__init__.py", "from torch import Tensor\n", 1),
    "an import that is tried": ("sdk/bad.py", "try:\n    import numpy\nexcept ImportError:\n    pass\n", 2),
    "in a class body": ("core/catalog.py", "class X:\n    import torch\n", 2),
    "beside types": (
        "sdk/bad.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass\nelse:\n    import torch\n",
        5,
    ),
    # guards
    "no guard": ("core/__init__.py", "", 1),
    "the guard of another": ("core/__init__.py", GUARD.format("sdk"), 1),
    "a guard that only passes": ("core/__init__.py", 'if __name__ != "tokloom.core":\n    pass\n', 1),
}


@pytest.mark.parametrize("what", BREAKS)
def test_each_break_is_one_violation_with_its_place(tree: Path, what: str) -> None:
    name, text, line = BREAKS[what]
    write(tree, name, text)
    (only,) = CHECKER.violations(tree)
    assert only.startswith(f"{name}:{line}: "), only


def test_violations_are_printed_and_end_in_exit_code_1(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["check_imports.py", str(tree)])
    assert CHECKER.main() == 0
    write(tree, "core/bad.py", "import tokloom.api\n")
    assert CHECKER.main() == 1
    assert "core/bad.py:1: core must not import tokloom.api" in capsys.readouterr().out
