"""load_profile: defaults < extends < file < environment < `--set`, into a checked Profile."""

import difflib
import os
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import attrs
from attrs import field, frozen

from tokloom.core.profile.errors import Place, Problem, ProfileProblems
from tokloom.core.profile.scan import scan
from tokloom.core.profile.schema import SCHEMA, SLOTS, EngineSection, ModelSection, PluginSection
from tokloom.core.profile.structure import structure
from tokloom.core.profile.tree import Node, Positions, build, depth, is_index, merge
from tokloom.core.profile.types import shown

ENV_PREFIX = "TOKLOOM__"
_OFF = "off"
#: tables and arrays inside each other; more is a mistake, and would exhaust the stack
MAX_DEPTH = 64
_CORE_TABLES = ("schema", "extends", "observers", "logits", "model", "engine", "kv", "attention")


@frozen(kw_only=True)
class Profile:
    """A checked profile. Options of plugins are still trees: their classes are known when the plugins are resolved.

    Attributes:
        name: file name or builtin name.
        root: everything as merged, with the place of each value.
        sections: by path (`kv.codec`, `kv.tiers.0`, …).
        claims: front ends' sections by table name.
    """

    name: str
    root: Node = field(repr=False)
    model: ModelSection
    engine: EngineSection
    sections: Mapping[str, PluginSection]
    observers: tuple[PluginSection, ...] = ()
    logits: tuple[PluginSection, ...] = ()
    tiers: tuple[PluginSection, ...] = ()
    claims: Mapping[str, Any] = field(factory=dict)

    def place(self, path: str) -> Place:
        """Where the value at a dotted path comes from; defaults say so."""
        steps: list[str | int] = [int(step) if is_index(step) else step for step in path.split(".")]
        node = self.root
        for step in steps:
            deeper = node.find((step,))
            if deeper is node:
                return Place("default")
            node = deeper
        return node.place


def load_profile(
    source: str | Path | Mapping[str, Any],
    *,
    sets: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    claims: Mapping[str, type] | None = None,
    ignore: Sequence[str] = (),
) -> Profile:
    """Read a profile.

    Args:
        source: a path, `builtin:NAME`, or a mapping of the same shape.
        sets: `a.b.0.c=value` overrides, strongest.
        environment: where `TOKLOOM__A__B` overrides come from; None is `os.environ`.
        claims: table name -> attrs class, for front ends that own tables.
        ignore: tables that other front ends own and this one does not read.

    Raises ProfileProblems with all problems at once.
    """
    problems: list[Problem] = []
    name, root = _read(source, problems, ())
    overrides = [_from_environment(os.environ if environment is None else environment)]
    overrides += [_from_set(text, problems) for text in sets]
    for override in overrides:
        for path, node in override:
            if len(path) > MAX_DEPTH:
                problems.append(Problem(f"a key has more than {MAX_DEPTH} steps", node.place))
            else:
                root = _apply(root, path, node, problems)
    if problems:
        raise ProfileProblems(problems)
    return _check(name, root, claims or {}, ignore)


# -- reading ----------------------------------------------------------------------------------------------------------


def _read(source: str | Path | Mapping[str, Any], problems: list[Problem], chain: tuple[str, ...]) -> tuple[str, Node]:
    if isinstance(source, Mapping):
        if depth(source) > MAX_DEPTH:
            text = f"tables and arrays are nested more than {MAX_DEPTH} deep"
            problems.append(Problem(text, Place("mapping")))
            return "mapping", Node(Place("mapping"), children={})
        root = build(source, Positions(), Place("mapping"))
        return "mapping", _extend(root, Path.cwd(), problems, chain)
    text = str(source)
    if text.startswith("builtin:"):
        return _read_builtin(text, problems, chain)
    path = Path(text)
    return path.name, _read_text(path, text, problems, chain)


def _read_builtin(text: str, problems: list[Problem], chain: tuple[str, ...]) -> tuple[str, Node]:
    name = text.removeprefix("builtin:")
    folder = resources.files("tokloom.profiles")
    names = sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))
    if name not in names:
        near = difflib.get_close_matches(name, names, 1)
        help = f"did you mean builtin:{near[0]}?" if near else f"shipped: {', '.join(names)}"
        problems.append(Problem(f"no shipped profile is called {name!r}", Place(text), help=help))
        return text, Node(Place(text), children={})
    with resources.as_file(folder / f"{name}.toml") as path:
        return text, _read_text(path, text, problems, chain)


def _read_text(path: Path, label: str, problems: list[Problem], chain: tuple[str, ...]) -> Node:
    empty = Node(Place(label), children={})
    try:
        key = label if label.startswith("builtin:") else str(path.resolve())
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, or a name that no file can have
        problems.append(Problem(f"cannot be read: {error}", Place(label), help="give a file, or builtin:NAME"))
        return empty
    if key in chain:
        problems.append(Problem(f"extends goes round: {' -> '.join([*chain, key])}", Place(label)))
        return empty
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        help = "give a file, or builtin:NAME"
        problems.append(Problem(f"cannot be read: {error.strerror}", Place(label), help=help))
        return empty
    except UnicodeDecodeError as error:
        problems.append(Problem(f"is not UTF-8 at byte {error.start}", Place(label)))
        return empty
    try:
        parsed = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        problems.append(_syntax(str(error), text, label))
        return empty
    start = Place(label, 1, text.split("\n", 1)[0].rstrip("\r"), 1, 1, 1, 1)
    if depth(parsed) > MAX_DEPTH:
        problems.append(Problem(f"tables and arrays are nested more than {MAX_DEPTH} deep", start))
        return empty
    root = build(parsed, scan(text, label), start)
    return _extend(root, path.parent, problems, (*chain, key))


def _syntax(message: str, text: str, label: str) -> Problem:
    """tomllib says `… (at line 2, column 3)` or `(at end of document)`."""
    reason, _, where = message.rpartition(" (at ")
    digits = "".join(character if character.isdigit() else " " for character in where).split()
    lines = text.split("\n")
    if len(digits) == 2 and 0 < int(digits[0]) <= len(lines):
        line, column = int(digits[0]), int(digits[1])
    else:
        line, column = len(lines), len(lines[-1]) + 1
        reason = reason or message
    place = Place(label, line, lines[line - 1].rstrip("\r"), column, 1, column, 1)
    return Problem(f"invalid TOML: {reason or message}", place)


def _extend(root: Node, folder: Path, problems: list[Problem], chain: tuple[str, ...]) -> Node:
    assert root.children is not None
    base = root.children.pop("extends", None)
    if base is None:
        return root
    if not isinstance(base.value, str) or not base.value:
        problems.append(Problem(f"expected a path or builtin:NAME, found {shown(base.plain())}", base.place, "extends"))
        return root
    target = base.value if base.value.startswith("builtin:") else str(folder / base.value)
    before = len(problems)
    _, tree = _read(target, problems, chain)
    problems[before:] = [_at_extends(problem, base.place) for problem in problems[before:]]
    return merge(tree, root)


def _at_extends(problem: Problem, place: Place) -> Problem:
    """A file that could not be read is a problem of the line that names it."""
    if problem.place.line:
        return problem
    return attrs.evolve(problem, place=place, key="extends", message=f"{problem.place.source} {problem.message}")


# -- overrides --------------------------------------------------------------------------------------------------------


def _parse(text: str) -> Any:
    """A TOML value; anything that is none is a string."""
    try:
        parsed = tomllib.loads(f"v = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["v"] if len(parsed) == 1 and "\n" not in text else text


def _from_environment(environment: Mapping[str, str]) -> list[tuple[list[str], Node]]:
    found = []
    for name, text in sorted(environment.items()):
        if name.startswith(ENV_PREFIX):
            place = Place(f"environment variable {name}")
            path = [step.lower() for step in name.removeprefix(ENV_PREFIX).split("__")]
            found.append((path, _value(text, place)))
    return found


def _from_set(text: str, problems: list[Problem]) -> list[tuple[list[str], Node]]:
    key, equals, value = text.partition("=")
    place = Place(f"--set {text}")
    if not equals or not all(step.strip() for step in key.split(".")):
        problems.append(Problem("an override is written section.key=value", place))
        return []
    return [([step.strip() for step in key.split(".")], _value(value.strip(), place))]


def _value(text: str, place: Place) -> Node:
    value = _parse(text)
    return build(value if depth(value) <= MAX_DEPTH else text, Positions(), place)


def _apply(root: Node, path: Sequence[str], node: Node, problems: list[Problem]) -> Node:
    """Put an override into the tree, through tables and existing array items."""
    if not path:
        return merge(root, node)
    step, rest = path[0], path[1:]
    if root.items is not None:
        if not is_index(step) or int(step) >= len(root.items):
            problems.append(Problem(f"there is no item {step!r} of {len(root.items)}", node.place))
            return root
        items = list(root.items)
        items[int(step)] = _apply(items[int(step)], rest, node, problems)
        return Node(root.place, items=items)
    if root.children is None:
        if isinstance(root.value, str):  # the short form of a section
            return _apply(Node(node.place, children={"plugin": root}), path, node, problems)
        root = Node(node.place, children={})
    children = dict(root.children or {})
    if rest:
        child = children.get(step) or Node(node.place, children={})
        children[step] = _apply(child, rest, node, problems)
    else:
        children = dict(merge(root, Node(node.place, children={step: node})).children or {})
    return Node(root.place, children=children)


# -- checking ---------------------------------------------------------------------------------------------------------


def _check(name: str, root: Node, claims: Mapping[str, type], ignore: Sequence[str]) -> Profile:
    problems: list[Problem] = []
    children = root.children or {}
    _check_schema(children, root, problems)
    _check_tables(children, claims, ignore, problems)
    empty = Node(root.place, children={})
    model = structure(children.get("model", empty), ModelSection, "model", problems)
    engine = structure(children.get("engine", empty), EngineSection, "engine", problems)
    sections = _sections(children, problems)
    tiers = _listed(_kv(children, problems).get("tiers"), "kv.tiers", problems)
    observers = _listed(children.get("observers"), "observers", problems)
    logits = _listed(children.get("logits"), "logits", problems)
    claimed: dict[str, Any] = {}
    for table, kind in claims.items():
        value = structure(children.get(table, empty), kind, table, problems)
        if value is not None:
            claimed[table] = value
    if problems or model is None or engine is None:
        raise ProfileProblems(problems)
    return Profile(
        name=name,
        root=root,
        model=model,
        engine=engine,
        sections=sections,
        tiers=tiers,
        observers=observers,
        logits=logits,
        claims=claimed,
    )


def _check_schema(children: Mapping[str, Node], root: Node, problems: list[Problem]) -> None:
    schema = children.get("schema")
    if schema is None:
        problems.append(Problem("`schema` is missing", root.place, help=f"begin the profile with schema = {SCHEMA}"))
    elif type(schema.value) is not int or schema.value != SCHEMA:
        help = f"this version reads schema {SCHEMA}; `tokloom profile migrate` rewrites older ones"
        problems.append(Problem(f"unknown schema {shown(schema.plain())}", schema.place, "schema", help))


def _check_tables(
    children: Mapping[str, Node], claims: Mapping[str, type], ignore: Sequence[str], problems: list[Problem]
) -> None:
    slots = {path for path in SLOTS if "." not in path}
    known = {*_CORE_TABLES, *slots, *claims, *ignore}
    if "extends" in children:  # reading a file takes its own away
        place = children["extends"].place
        problems.append(Problem("extends cannot be overridden", place, "extends", "write it in a profile"))
    for key, node in children.items():
        if key in known or key.startswith("x-"):
            continue
        near = difflib.get_close_matches(key, known, 1)
        help = f"did you mean `{near[0]}`?" if near else "name your own tables x-…"
        problems.append(Problem(f"nobody claims the table `{key}`", node.place, key, help, at_key=True))


def _kv(children: Mapping[str, Node], problems: list[Problem]) -> Mapping[str, Node]:
    kv = children.get("kv")
    return kv.children if kv is not None and kv.children is not None else {}


def _sections(children: Mapping[str, Node], problems: list[Problem]) -> dict[str, PluginSection]:
    found: dict[str, PluginSection] = {}
    for key in ("scheduler", "speculation", "weights", "ops"):
        _section(children.get(key), key, found, problems)
    kv = children.get("kv")
    if kv is not None and kv.children is None:
        problems.append(Problem(f"expected a table, found {shown(kv.plain())}", kv.place, "kv"))
    for key, node in _kv(children, problems).items():
        if key in ("allocator", "codec"):
            _section(node, f"kv.{key}", found, problems)
        elif key != "tiers":
            near = difflib.get_close_matches(key, ("allocator", "codec", "tiers"), 1)
            help = f"did you mean `{near[0]}`?" if near else "known keys: allocator, codec, tiers"
            problems.append(Problem(f"unknown key `{key}`", node.place, f"kv.{key}", help, at_key=True))
    _attention(children.get("attention"), found, problems)
    return found


def _attention(node: Node | None, found: dict[str, PluginSection], problems: list[Problem]) -> None:
    if node is None:
        return
    phases = {"decode", "prefill"} & set(node.children or {})
    if not phases:
        _section(node, "attention", found, problems)
        return
    for key, child in (node.children or {}).items():
        if key in phases:
            _section(child, f"attention.{key}", found, problems)
        elif key not in ("plugin", "options", "on_unsupported"):
            problems.append(
                Problem(f"unknown key `{key}`", child.place, f"attention.{key}", "known keys: decode, prefill", True)
            )
    missing = {"decode", "prefill"} - phases
    if missing and "plugin" in (node.children or {}):
        rest = {key: child for key, child in (node.children or {}).items() if key not in phases}
        for phase in missing:
            _section(Node(node.place, children=rest), f"attention.{phase}", found, problems)
    elif missing:
        help = "write [attention.decode] and [attention.prefill], or one [attention]"
        problems.append(Problem(f"attention.{missing.pop()} is missing", node.place, "attention", help, True))


def _section(node: Node | None, path: str, found: dict[str, PluginSection], problems: list[Problem]) -> None:
    section = _plugin_section(node, path, problems)
    if section is not None:
        found[path] = section


def _plugin_section(node: Node | None, path: str, problems: list[Problem]) -> PluginSection | None:
    """A table with plugin, options, on_unsupported; or just the plugin's name."""
    if node is None:
        return None
    if isinstance(node.value, str):
        node = Node(node.place, children={"plugin": node})
    if node.children is None:
        problems.append(Problem(f"expected a plugin's name or a table, found {shown(node.plain())}", node.place, path))
        return None
    allowed = ("plugin", "options", "on_unsupported")
    for key, child in node.children.items():
        if key not in allowed:
            near = difflib.get_close_matches(key, allowed, 1)
            help = f"did you mean `{near[0]}`?" if near else "options of the plugin belong into `options`"
            problems.append(Problem(f"unknown key `{key}`", child.place, f"{path}.{key}", help, at_key=True))
    plugin = node.children.get("plugin")
    if plugin is None or not isinstance(plugin.value, str) or not plugin.value:
        place = node.place if plugin is None else plugin.place
        text = "`plugin` is missing" if plugin is None else f"expected a name, found {shown(plugin.plain())}"
        problems.append(Problem(text, place, path, "name an installed plugin: `tokloom plugins` lists them"))
        return None
    if plugin.value == _OFF:
        return None
    options = node.children.get("options", Node(node.place, children={}))
    if options.children is None:
        problems.append(Problem(f"expected a table, found {shown(options.plain())}", options.place, f"{path}.options"))
    unsupported: Literal["error", "fallback"] = "error"
    choice = node.children.get("on_unsupported")
    if choice is not None:
        if choice.value not in ("error", "fallback"):
            text = f'expected "error" or "fallback", found {shown(choice.plain())}'
            problems.append(Problem(text, choice.place, f"{path}.on_unsupported"))
        elif choice.value == "fallback":
            unsupported = "fallback"
    return PluginSection(path, plugin.value, options, unsupported, node)


def _listed(node: Node | None, path: str, problems: list[Problem]) -> tuple[PluginSection, ...]:
    if node is None:
        return ()
    if node.items is None:
        problems.append(Problem(f"expected an array, found {shown(node.plain())}", node.place, path))
        return ()
    sections = [_plugin_section(item, f"{path}.{index}", problems) for index, item in enumerate(node.items)]
    return tuple(section for section in sections if section is not None)
