"""Check the rules that keep the layers apart. Prints one line per violation; exit code 1 if there is any.

layers      A layer imports only what ALLOWED says; a plugin only `tokloom.sdk`, its own folder (the module its entry
            point names) and third-party libraries. All imports are absolute and go through `tokloom`.
names       Outside plugins, profiles, bench and conformance/mutants no string is a plugin's `KIND.NAME`, `KIND:NAME` or
            `DISTRIBUTION/NAME`, none begins with `tokloom.plugins.`, and no registered bare name stands where plugins
            are chosen: compared with an attribute `name` or `plugin`, as an argument `plugin=`, under a key `"plugin"`.
words       The words cuda and cpu stand in core/device.py and nowhere else in core: no identifier, string or comment.
contracts   No method in sdk/contracts mentions Any, object, Engine or Runner, or takes **kwargs.
heavy       Heavy libraries are not imported at module level where importing must be light: sdk, the `__init__` of every
            plugin folder, catalog, hooks and profiles of core, conformance/__init__, the command line's first module.
guards      The `__init__` of every linked folder refuses to be imported by its bare name.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LAYERS = ("api", "bench", "conformance", "core", "plugins", "profiles", "sdk", "serve")
ALLOWED = {
    "sdk": ("sdk",),
    "core": ("core", "sdk", "profiles"),
    "conformance": ("conformance", "core", "sdk"),
    "api": ("api", "core", "sdk"),
    "serve": ("serve", "api", "sdk", "core.device"),
    "bench": ("bench", "api", "core", "sdk", "conformance"),
    "profiles": (),
}
#: layers that may use the names at the top of `tokloom`
EMBEDDERS = ("serve", "bench")
HEAVY = {"torch", "numpy", "transformers", "tokenizers", "gguf", "safetensors", "jinja2", "pytest", "hypothesis"}
LIGHT = ("sdk/", "core/catalog.py", "core/hooks.py", "core/profile/", "conformance/__init__.py", "serve/cli/main.py")
WORDS = re.compile(r"(?<![a-z])(cuda|cpu)(?![a-z])", re.IGNORECASE)
FORBIDDEN = {"Any", "object", "Engine", "Runner"}


class Project(NamedTuple):
    """What pyproject.toml and the package's `__init__` say."""

    folders: tuple[str, ...]
    bare: frozenset[str]
    qualified: frozenset[str]
    top_level: frozenset[str]


class Module(NamedTuple):
    """One source file; `name` is its path from the root, with slashes."""

    name: str
    tree: ast.Module
    text: str

    @property
    def layer(self) -> str:
        return self.name.split("/")[0]


def read_project(root: Path) -> Project:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    points: dict[str, str] = project.get("entry-points", {}).get("tokloom.plugins", {})
    bare = {key.partition(".")[2] for key in points}
    qualified = {*points, *(key.replace(".", ":", 1) for key in points), *(f"{project['name']}/{n}" for n in bare)}
    folders = tuple(value.partition(":")[0].removeprefix("tokloom.") for value in points.values())
    return Project(folders, frozenset(bare), frozenset(qualified), frozenset(read_top_level(root)))


def read_top_level(root: Path) -> Iterator[str]:
    """The names in `__all__` of the package, and its version."""
    yield "__version__"
    tree = ast.parse((root / ".src" / "tokloom" / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            yield from ast.literal_eval(node.value)


def read_modules(root: Path) -> Iterator[Module]:
    for layer in LAYERS:
        for path in sorted((root / layer).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            yield Module(path.relative_to(root).as_posix(), ast.parse(text), text)


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import anywhere in a module; relative ones begin with a dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def inside(dotted: str, packages: tuple[str, ...]) -> bool:
    return any(dotted == package or dotted.startswith(f"{package}.") for package in packages)


def check_layers(module: Module, project: Project) -> Iterator[str]:
    allowed = ("sdk", *own_folder(module, project)) if module.layer == "plugins" else ALLOWED[module.layer]
    for line, target in imports(module.tree):
        first, _, inner = target.partition(".")
        if first in LAYERS or first == "":
            yield f"{module.name}:{line}: imports {target}; write tokloom.… in full"
            continue
        embeds = module.layer in EMBEDDERS and (not inner or inner in project.top_level)
        if first == "tokloom" and not inside(inner, allowed) and not embeds:
            yield f"{module.name}:{line}: {module.layer} must not import {target}"


def own_folder(module: Module, project: Project) -> tuple[str, ...]:
    """`plugins/quant/kv/int8/codec.py` -> `plugins.quant.kv.int8`: the registered folder a module lies in."""
    dotted = module.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return tuple(folder for folder in project.folders if inside(dotted, (folder,)))[:1]


def check_names(module: Module, project: Project) -> Iterator[str]:
    if module.layer in ("plugins", "profiles", "bench") or module.name.startswith("conformance/mutants/"):
        return
    docs = {id(node.value) for node in ast.walk(module.tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(module.tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in docs else None
        if isinstance(text, str) and (text in project.qualified or text.startswith("tokloom.plugins.")):
            yield f'{module.name}:{getattr(node, "lineno", 0)}: names the plugin "{text}"'
        for chosen in choices(node):
            if chosen.value in project.bare:
                yield f'{module.name}:{chosen.lineno}: chooses the plugin "{chosen.value}"'


def choices(node: ast.AST) -> Iterator[ast.Constant]:
    """String constants that stand where a plugin is chosen by name."""
    found: list[ast.expr] = []
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        if any(isinstance(side, ast.Attribute) and side.attr in ("name", "plugin") for side in sides):
            for side in sides:
                found += side.elts if isinstance(side, (ast.Tuple, ast.List, ast.Set)) else [side]
    elif isinstance(node, ast.keyword) and node.arg == "plugin":
        found.append(node.value)
    elif isinstance(node, ast.Dict):
        found += [v for k, v in zip(node.keys, node.values, strict=True) if getattr(k, "value", None) == "plugin"]
    yield from (item for item in found if isinstance(item, ast.Constant) and isinstance(item.value, str))


def check_words(module: Module) -> Iterator[str]:
    if module.layer != "core" or module.name == "core/device.py":
        return
    for number, line in enumerate(module.text.splitlines(), 1):
        if WORDS.search(line.replace("builtin:cpu", "")):
            yield f"{module.name}:{number}: device types belong in core/device.py"


def check_contracts(module: Module) -> Iterator[str]:
    if not module.name.startswith("sdk/contracts/"):
        return
    for node in ast.walk(module.tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        arguments = node.args
        if arguments.kwarg is not None:
            yield f"{module.name}:{node.lineno}: {node.name} takes **{arguments.kwarg.arg}"
        given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        for annotation in [*(argument.annotation for argument in given if argument), node.returns]:
            for word in sorted(FORBIDDEN & set(words(annotation))):
                yield f"{module.name}:{node.lineno}: {node.name} mentions {word}"


def words(annotation: ast.expr | None) -> Iterator[str]:
    """Identifiers in an annotation, also in quoted ones and after a dot."""
    for node in ast.walk(annotation) if annotation is not None else ():
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\w+", node.value)


def check_heavy(module: Module) -> Iterator[str]:
    entry = module.layer == "plugins" and module.name.endswith("/__init__.py")
    if not entry and not module.name.startswith(LIGHT):
        return
    for line, target in imports(ast.Module(list(executed(module.tree.body)), [])):
        if target.split(".")[0] in HEAVY:
            yield f"{module.name}:{line}: imports {target} at module level"


def executed(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Import statements that run when the module is imported: not in functions, not for type checkers only."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from executed(node.orelse)
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for name in ("body", "orelse", "finalbody"):
                yield from executed(getattr(node, name, []))
            for handler in getattr(node, "handlers", []):
                yield from executed(handler.body)


def check_guards(root: Path) -> Iterator[str]:
    for layer in LAYERS:
        path = root / layer / "__init__.py"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if f'if __name__ != "tokloom.{layer}":\n    raise ImportError(' not in text:
            yield f"{layer}/__init__.py:1: does not refuse its bare name"


def violations(root: Path) -> list[str]:
    """Every violation in the tree at `root`, as `path:line: what`."""
    project = read_project(root)
    found = list(check_guards(root))
    for module in read_modules(root):
        found += check_layers(module, project)
        found += check_names(module, project)
        found += check_words(module)
        found += check_contracts(module)
        found += check_heavy(module)
    return found


def main() -> int:
    found = violations(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent)
    print("\n".join(found) if found else "layers, names, words, contracts, heavy imports, guards: fine")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
