"""Check the rules that keep the layers apart. Exit code 1 and one line per violation.

1. A layer imports only what `ALLOWED` says; a plugin only `tokloom.sdk`, its own folder and third-party libraries.
2. Defaults stand in profiles: outside plugins, bench and conformance no module imports `tokloom.plugins`, and no string
   is a plugin's entry point (`KIND.NAME`) or its module.
3. The words cuda and cpu stand in core/device.py and nowhere else in core.
4. No contract mentions Any, object, **kwargs, Engine or Runner in a signature.
5. Heavy libraries are not imported at module level where imports must be light.
6. Every linked folder's `__init__` refuses its bare name.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

LAYERS = ("api", "bench", "conformance", "core", "plugins", "profiles", "sdk", "serve")
ALLOWED = {
    "sdk": {"sdk"},
    "core": {"core", "sdk", "profiles"},
    "plugins": {"sdk"},
    "conformance": {"conformance", "core", "sdk"},
    "api": {"api", "core", "sdk"},
    "serve": {"serve", "api", "sdk", "core.device"},
    "bench": {"bench", "api", "core", "sdk", "conformance"},
    "profiles": set(),
}
HEAVY = {"torch", "numpy", "transformers", "tokenizers", "gguf", "safetensors", "jinja2", "pytest", "hypothesis"}
LIGHT = ("sdk/", "core/catalog.py", "core/hooks.py", "core/profile/", "conformance/__init__.py", "serve/cli/main.py")
WORDS = re.compile(r"\b(cuda|cpu)\b", re.IGNORECASE)
FORBIDDEN = {"Any", "object", "Engine", "Runner"}


def modules(root: Path) -> Iterator[tuple[str, ast.Module, str]]:
    """(relative path, tree, source) of every module in the layers."""
    for layer in LAYERS:
        for path in sorted((root / layer).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            yield path.relative_to(root).as_posix(), ast.parse(text), text


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import, typing-only ones included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, "." * node.level
            elif node.module:
                yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def check_layers(name: str, tree: ast.Module) -> Iterator[str]:
    layer = name.split("/")[0]
    for line, target in imports(tree):
        if target.startswith("."):
            yield f"{name}:{line}: relative import; write it from tokloom"
        if not target.startswith("tokloom."):
            continue
        inner = target.removeprefix("tokloom.")
        if layer == "plugins":
            own = plugin_folder(name)
            fine = inner.split(".")[0] == "sdk" or bool(own and f"{inner}.".startswith(own + "."))
        else:
            fine = any(f"{inner}.".startswith(f"{allowed}.") for allowed in ALLOWED[layer])
        top_level = layer in ("serve", "bench") and inner in TOP_LEVEL
        if not fine and not top_level:
            yield f"{name}:{line}: {layer} must not import {target}"


TOP_LEVEL = {
    "AsyncEngine", "Catalog", "ChatMessage", "Engine", "Event", "GenerateRequest", "Objectives", "Result",
    "SamplingParams", "TokenLogprobs", "TokloomError", "Usage", "__version__",
}  # fmt: skip


def plugin_folder(name: str) -> str:
    """`plugins/quant/kv/int8/codec.py` -> `plugins.quant.kv.int8`: the registered folder that holds the module."""
    dotted = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return next((folder for folder in FOLDERS if f"{dotted}.".startswith(f"{folder}.")), "")


def check_names(name: str, tree: ast.Module, registered: set[str]) -> Iterator[str]:
    if name.split("/")[0] not in ("sdk", "core", "api", "serve"):
        return
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            if node.value in registered:
                yield f"{name}:{node.lineno}: names the plugin {node.value}"


def check_words(name: str, text: str) -> Iterator[str]:
    if not name.startswith("core/") or name == "core/device.py":
        return
    for number, line in enumerate(text.splitlines(), 1):
        if WORDS.search(line.replace("builtin:cpu", "")):
            yield f"{name}:{number}: device types belong into core/device.py"


def check_contracts(name: str, tree: ast.Module) -> Iterator[str]:
    if not name.startswith("sdk/contracts/"):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("__") and node.name != "__call__":
            continue
        if node.args.kwarg is not None:
            yield f"{name}:{node.lineno}: {node.name} takes **{node.args.kwarg.arg}"
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for annotation in [*(argument.annotation for argument in arguments), node.returns]:
            for word in words(annotation):
                if word in FORBIDDEN:
                    yield f"{name}:{node.lineno}: {node.name} mentions {word}"


def words(annotation: ast.expr | None) -> Iterator[str]:
    """Identifiers in an annotation, quoted ones too."""
    if annotation is None:
        return
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\w+", node.value)


def check_light(name: str, tree: ast.Module) -> Iterator[str]:
    plugin_entry = name.startswith("plugins/") and name.endswith("__init__.py")
    if not plugin_entry and not name.startswith(LIGHT):
        return
    for node in tree.body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        for target in names:
            if target.split(".")[0] in HEAVY:
                yield f"{name}:{node.lineno}: imports {target} at module level"


def check_guards(root: Path) -> Iterator[str]:
    for layer in LAYERS:
        path = root / layer / "__init__.py"
        if not path.exists() or f'if __name__ != "tokloom.{layer}":' not in path.read_text(encoding="utf-8"):
            yield f"{layer}/__init__.py: does not refuse its bare name"


def entry_points(root: Path) -> dict[str, str]:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, str] = project.get("entry-points", {}).get("tokloom.plugins", {})
    return found


FOLDERS: list[str] = []


def violations(root: Path) -> list[str]:
    """Every violation in the tree at `root`."""
    points = entry_points(root)
    FOLDERS[:] = [value.removeprefix("tokloom.") for value in points.values()]
    registered = {*points, *points.values()}
    found = list(check_guards(root))
    for name, tree, text in modules(root):
        found += check_layers(name, tree)
        found += check_names(name, tree, registered)
        found += check_words(name, text)
        found += check_contracts(name, tree)
        found += check_light(name, tree)
    return found


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent
    found = violations(root)
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
