"""load_profile: defaults < extends < file < environment < `--set`, into a checked Profile."""

import difflib
import os
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import attrs
from attrs import field, frozen

from tokloom.core.profile.adapters import adapter_sections
from tokloom.core.profile.errors import Place, Problem, ProfileProblems
from tokloom.core.profile.overrides import apply_override, read_overrides
from tokloom.core.profile.scan import scan
from tokloom.core.profile.schema import SCHEMA, SLOTS, AdapterSection, EngineSection, ModelSection, PluginSection
from tokloom.core.profile.sections import kv_table, listed_sections, make_way, plugin_sections, with_attention
from tokloom.core.profile.structure import structure
from tokloom.core.profile.tree import MAX_DEPTH, Node, Positions, build, depth, is_index, merge
from tokloom.core.profile.types import shown

_CORE_TABLES = ("schema", "extends", "observers", "logits", "model", "adapters", "engine", "kv", "attention")


@frozen(kw_only=True)
class Profile:
    """A checked profile. Options of plugins are still trees: their classes are known when the plugins are resolved.

    Attributes:
        name: file name or builtin name.
        root: everything as merged, with the place of each value.
        sections: by path (`kv.codec`, `kv.tiers.0`, …).
        adapters: lines of `[adapters]`, as written.
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
    adapters: tuple[AdapterSection, ...] = ()
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
    for override in read_overrides(os.environ if environment is None else environment, sets, problems):
        root = apply_override(root, override, problems)
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
        place = Place(text.replace("\0", "\\0"))
        problems.append(Problem(f"no shipped profile is called {name!r}", place, help=help))
        return text, Node(Place(text), children={})
    with resources.as_file(folder / f"{name}.toml") as path:
        return text, _read_text(path, text, problems, chain)


def _read_text(path: Path, label: str, problems: list[Problem], chain: tuple[str, ...]) -> Node:
    empty = Node(Place(label), children={})
    try:
        key = label if label.startswith("builtin:") else str(path.resolve())
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, or a name that no file can have
        place = Place(label.replace("\0", "\\0"))
        problems.append(Problem(f"cannot be read: {error}", place, help="give a file, or builtin:NAME"))
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
    help = "save the file without a byte order mark" if text.startswith("\ufeff") else ""
    return Problem(f"invalid TOML: {reason or message}", place, help=help)


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
    over, old = root.children.get("attention"), (tree.children or {}).get("attention")
    if over is not None and old is not None:
        tree = with_attention(tree, make_way(old, over))
    return merge(tree, root)


def _at_extends(problem: Problem, place: Place) -> Problem:
    """A file that could not be read is a problem of the line that names it."""
    if problem.place.line:
        return problem
    return attrs.evolve(problem, place=place, key="extends", message=f"{problem.place.source} {problem.message}")


# -- checking ---------------------------------------------------------------------------------------------------------


def _check(name: str, root: Node, claims: Mapping[str, type], ignore: Sequence[str]) -> Profile:
    problems: list[Problem] = []
    children = root.children or {}
    _check_schema(children, root, problems)
    _check_tables(children, claims, ignore, problems)
    empty = Node(root.place, children={})
    model = structure(children.get("model", empty), ModelSection, "model", problems)
    engine = structure(children.get("engine", empty), EngineSection, "engine", problems)
    sections = plugin_sections(children, problems)
    tiers = listed_sections(kv_table(children).get("tiers"), "kv.tiers", problems)
    observers = listed_sections(children.get("observers"), "observers", problems)
    logits = listed_sections(children.get("logits"), "logits", problems)
    adapters = adapter_sections(children.get("adapters"), problems)
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
        adapters=adapters,
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
