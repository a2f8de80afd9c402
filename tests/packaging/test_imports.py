"""What importing costs, what it needs, and what it refuses."""

import sys
from pathlib import Path

import pytest
from installed import ENTRY_POINTS, LAYERS, ROOT, attempt, copy_repository, run

SOURCES = str(ROOT / ".src")

BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} is blocked", name=name)
sys.meta_path.insert(0, Blocker())
"""
HEAVY = ("torch", "numpy", "transformers", "tokenizers", "gguf", "safetensors", "jinja2")


@pytest.mark.parametrize("layer", LAYERS)
def test_a_folder_refuses_its_bare_name_and_says_the_right_one(layer: str) -> None:
    ended = attempt([sys.executable, "-c", f"import {layer}"], cwd=ROOT)
    assert ended.returncode == 1
    assert f"ImportError: import tokloom.{layer}, not {layer}" in ended.stderr


@pytest.mark.parametrize("layer", LAYERS)
def test_the_package_links_to_the_folder(layer: str) -> None:
    link = ROOT / ".src" / "tokloom" / layer
    assert link.is_symlink()
    assert link.resolve() == ROOT / layer
    assert not link.readlink().is_absolute()


@pytest.mark.parametrize(
    "module",
    [
        "tokloom",
        "tokloom.sdk",
        "tokloom.conformance",
        "tokloom.core.catalog",
        "tokloom.serve.cli",
        *ENTRY_POINTS.values(),
    ],
)
def test_it_imports_without_any_heavy_library(module: str) -> None:
    module = module.partition(":")[0]
    run([sys.executable, "-c", f"{BLOCK.format(blocked=HEAVY)}import {module}"], PYTHONPATH=SOURCES)


@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_a_plugin_tells_what_it_offers_without_any_heavy_library(entry: str) -> None:
    kind, name = entry.split(".", 1)
    code = f"""{BLOCK.format(blocked=HEAVY)}
import importlib
module = importlib.import_module({ENTRY_POINTS[entry]!r})
print([(offer.kind, offer.name) for offer in module.tokloom_{kind}()])
"""
    assert str((kind, name)) in run([sys.executable, "-c", code], PYTHONPATH=SOURCES)


def test_the_list_of_plugins_needs_no_heavy_library() -> None:
    code = f"""{BLOCK.format(blocked=HEAVY)}
sys.argv = ["tokloom", "plugins"]
from tokloom.serve.cli import main
main()
"""
    listed = run([sys.executable, "-c", code], PYTHONPATH=SOURCES)
    missing = [entry for entry in ENTRY_POINTS if entry.split(".", 1)[1] not in listed]
    assert not missing


def test_importing_the_sdk_brings_little() -> None:
    code = "import sys, tokloom.sdk; print(sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = run([sys.executable, "-c", code], PYTHONPATH=SOURCES)
    for unwanted in (*HEAVY, "click", "rich", "cattrs", "structlog", "asyncio"):
        assert f"'{unwanted}'" not in loaded


def test_importing_the_sdk_brings_nothing_else_of_tokloom() -> None:
    code = "import sys, tokloom.sdk; print([n for n in sys.modules if n.startswith('tokloom.')])"
    for name in eval(run([sys.executable, "-c", code], PYTHONPATH=SOURCES)):
        assert name.startswith("tokloom.sdk")


def test_importing_the_package_prints_nothing_and_touches_no_global_setting() -> None:
    code = """
import logging, signal, sys, warnings
def state():
    return (*logging.root.handlers, logging.root.level, signal.getsignal(signal.SIGINT), sys.excepthook, sys.stdout)
before = state()
import tokloom, tokloom.sdk, tokloom.api, tokloom.core.catalog
assert state() == before
"""
    ended = attempt([sys.executable, "-c", code], PYTHONPATH=SOURCES)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_all_names_of_the_package_resolve_and_are_few() -> None:
    code = "import tokloom; print(len(tokloom.__all__)); [getattr(tokloom, name) for name in tokloom.__all__]"
    assert int(run([sys.executable, "-c", code], PYTHONPATH=SOURCES)) <= 15


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_repository(tmp_path_factory.mktemp("copy") / "tokloom")


@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_without_one_plugin_folder_the_rest_imports_and_is_listed(entry: str, copy: Path) -> None:
    folder = copy / ENTRY_POINTS[entry].removeprefix("tokloom.").replace(".", "/")
    aside = copy / "aside"
    folder.rename(aside)
    others = [module for module in ENTRY_POINTS.values() if module != ENTRY_POINTS[entry]]
    code = f"""
import importlib
for module in {others!r}:
    importlib.import_module(module)
import tokloom.api, tokloom.sdk, tokloom.conformance, tokloom.core.catalog
try:
    importlib.import_module({ENTRY_POINTS[entry]!r})
except ModuleNotFoundError:
    print("gone")
"""
    try:
        assert run([sys.executable, "-c", code], PYTHONPATH=str(copy / ".src")).strip() == "gone"
    finally:
        aside.rename(folder)
