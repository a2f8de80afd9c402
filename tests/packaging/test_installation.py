"""A wheel and an editable installation, each in a fresh environment, as a user meets them."""

import json
import shutil
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from installed import ENTRY_POINTS, LAYERS, PROJECT, ROOT, Environment, attempt, copy_repository, run

pytestmark = pytest.mark.slow

#: a third-party plugin and its use, as somebody types it who sees only the published package
USER = """
from collections.abc import Sequence

import tokloom
from attrs import frozen
from tokloom.sdk import Context, Observer, ObserverCaps, Offer, RequestStats, StepStats, hookimpl


@frozen
class Options:
    limit: int = 3


class Counter:
    def __init__(self, limit: int) -> None:
        self.steps = 0
        self.limit = limit

    def on_step(self, stats: StepStats) -> None:
        self.steps += stats.rows

    def on_request(self, stats: RequestStats) -> None: ...

    def close(self) -> None: ...


def make(options: Options, context: Context) -> Observer:
    return Counter(options.limit)


@hookimpl
def tokloom_observer() -> Sequence[Offer[Options, Observer]]:
    return [
        Offer(
            kind="observer",
            name="counter",
            capabilities=ObserverCaps(),
            factory=make,
            config=Options,
            contract="0.1",
        )
    ]


version: str = tokloom.__version__
"""
#: the same with four mistakes that only types show
WRONG = (
    ("return Counter(options.limit)", "return options"),
    ("self.steps += stats.rows", "self.steps += stats.row"),
    ('kind="observer"', 'kind="observers"'),
    ("version: str =", "version: int ="),
)


@pytest.fixture(params=["from_wheel", "editable"])
def installed(request: pytest.FixtureRequest) -> Environment:
    environment: Environment = request.getfixturevalue(request.param)
    return environment


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A user's project with a right and a wrong plugin."""
    (tmp_path / "right.py").write_text(USER)
    wrong = USER
    for old, new in WRONG:
        assert old in wrong
        wrong = wrong.replace(old, new)
    (tmp_path / "wrong.py").write_text(wrong)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    return tmp_path


def test_it_imports_from_where_it_was_installed(installed: Environment, source: Path) -> None:
    at = installed.evaluate("import tokloom, tokloom.sdk; print(tokloom.__file__)")
    assert Path(at).is_relative_to(installed.folder) or Path(at).is_relative_to(source)
    assert not Path(at).is_relative_to(ROOT)


def test_its_version_is_the_distributions(installed: Environment) -> None:
    code = "import importlib.metadata as m, tokloom; print(m.version('tokloom'), tokloom.__version__)"
    assert installed.evaluate(code).split() == [PROJECT["version"]] * 2


def test_its_entry_points_load(installed: Environment) -> None:
    code = """
import importlib.metadata as m, json
points = m.entry_points(group="tokloom.plugins")
print(json.dumps({point.name: point.load().__name__ for point in points if point.dist.name == "tokloom"}))
"""
    assert json.loads(installed.evaluate(code)) == ENTRY_POINTS


def test_its_command_runs(installed: Environment) -> None:
    assert PROJECT["version"] in run([installed.bin / "tokloom", "--version"], cwd=installed.folder)
    listed = run([installed.bin / "tokloom", "plugins"], cwd=installed.folder)
    assert all(entry.split(".", 1)[1] in listed for entry in ENTRY_POINTS)


def test_shipped_profiles_are_found(installed: Environment) -> None:
    code = """
from tokloom.core.profile import load_profile
print(load_profile("builtin:cpu", environment={}).name)
"""
    assert installed.evaluate(code)


def test_mypy_sees_its_types(installed: Environment, user: Path) -> None:
    mypy: list[str | Path] = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--python-executable",
        installed.python,
        "--cache-dir=.cache",
    ]
    assert "Success" in run([*mypy, "right.py"], cwd=user)
    ended = attempt([*mypy, "wrong.py"], cwd=user)
    assert f"Found {len(WRONG)} errors" in ended.stdout, ended.stdout
    assert "import-not-found" not in ended.stdout


def test_pyright_sees_its_types(installed: Environment, user: Path) -> None:
    pyright: list[str | Path] = [sys.executable, "-m", "pyright", "--pythonpath", installed.python]
    assert "0 errors" in run([*pyright, "right.py"], cwd=user)
    ended = attempt([*pyright, "--outputjson", "wrong.py"], cwd=user)
    rules = [found["rule"] for found in json.loads(ended.stdout)["generalDiagnostics"] if found["severity"] == "error"]
    for expected in ("reportReturnType", "reportAttributeAccessIssue", "reportArgumentType", "reportAssignmentType"):
        assert expected in rules, ended.stdout
    assert "reportMissingImports" not in rules


def test_a_new_file_is_importable_without_installing_again(editable: Environment, source: Path) -> None:
    new = source / "plugins" / "brand_new.py"
    new.write_text("ANSWER = 42\n")
    try:
        assert editable.evaluate("from tokloom.plugins.brand_new import ANSWER; print(ANSWER)") == "42"
    finally:
        new.unlink()


def test_the_wheel_has_every_module_of_the_layers_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if not name.endswith("/")}
    modules = {
        f"tokloom/{path.relative_to(ROOT).as_posix()}" for layer in LAYERS for path in (ROOT / layer).rglob("*.py")
    }
    modules.add("tokloom/__init__.py")
    assert {name for name in packed if name.endswith(".py")} == modules
    assert all(name.startswith(("tokloom/", "tokloom-")) for name in packed)


def test_the_wheel_has_profiles_type_marker_and_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
        (licence,) = [name for name in packed if name.endswith("licenses/LICENSE")]
        assert b"Apache License" in archive.read(licence)
    profiles = {f"tokloom/profiles/{path.name}" for path in (ROOT / "profiles").glob("*.toml")}
    assert profiles
    assert profiles | {"tokloom/py.typed"} <= packed


def test_the_wheel_has_the_playground(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if "/playground/" in name}
    files = (ROOT / "serve" / "http" / "playground").iterdir()
    assert packed == {f"tokloom/serve/http/playground/{file.name}" for file in files}


def test_the_base_installation_asks_for_no_heavy_library(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        lines = archive.read(metadata).decode().splitlines()
    needed = {
        line.split()[1].partition(">")[0] for line in lines if line.startswith("Requires-Dist") and "extra" not in line
    }
    assert needed == {"attrs", "cattrs", "pluggy", "structlog", "click", "rich"}
    extras = {line.split()[1] for line in lines if line.startswith("Provides-Extra")}
    assert {"cpu", "serve", "grpc", "cuda13", "dev"} <= extras


def test_without_a_compiler_it_installs_and_says_what_is_missing(tmp_path: Path) -> None:
    source = copy_repository(tmp_path / "source")
    target = ["--outdir", str(tmp_path), str(source)]
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", *target], CC="false", CXX="false")
    (built,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]
    environment = Environment(tmp_path / "venv")
    environment.install(built)
    assert "missing tokloom.plugins.attention.cpu._decode" in attempt([environment.bin / "tokloom", "doctor"]).stdout
    assert environment.evaluate("from tokloom.plugins.attention.cpu import kernel as k; print(k._decode)") == "None"
    assert environment.evaluate("from tokloom.plugins.ops.cpu import ops as o; print(o._rows)") == "None"
    assert (
        environment.evaluate("from tokloom.plugins.quant.weights.dense import compiled as c; print(c._bf16)") == "None"
    )


def test_with_a_compiler_its_modules_are_compiled(installed: Environment) -> None:
    if shutil.which("cc") is None or not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("no C compiler, or no headers of Python")
    assert "ok   compiled modules" in attempt([installed.bin / "tokloom", "doctor"]).stdout
    code = "from tokloom.plugins.attention.cpu import kernel as k; print(k._decode is not None)"
    assert installed.evaluate(code) == "True"
