"""Overrides of single values: `TOKLOOM__A__B` in the environment and `--set a.b=value`."""

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tokloom.core.profile.errors import Place, Problem
from tokloom.core.profile.sections import PHASES, make_way, with_attention
from tokloom.core.profile.tree import MAX_DEPTH, Node, Positions, build, depth, is_index, merge

ENV_PREFIX: Final = "TOKLOOM__"
Override = tuple[list[str], Node]


def _parse(text: str) -> Any:
    """A TOML value; anything that is none is a string."""
    try:
        parsed = tomllib.loads(f"v = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["v"] if len(parsed) == 1 and "\n" not in text else text


def read_overrides(environment: Mapping[str, str], sets: Sequence[str], problems: list[Problem]) -> list[Override]:
    """All overrides, the strongest last."""
    found = []
    for name, text in sorted(environment.items()):
        if name.startswith(ENV_PREFIX):
            place = Place(f"environment variable {name}")
            path = [step.lower() for step in name.removeprefix(ENV_PREFIX).split("__")]
            found.append((path, _value(text, place)))
    for text in sets:
        found += _from_set(text, problems)
    return found


def _from_set(text: str, problems: list[Problem]) -> list[Override]:
    key, equals, value = text.partition("=")
    place = Place(f"--set {text}")
    if not equals or not all(step.strip() for step in key.split(".")):
        problems.append(Problem("an override is written section.key=value", place))
        return []
    return [([step.strip() for step in key.split(".")], _value(value.strip(), place))]


def _value(text: str, place: Place) -> Node:
    value = _parse(text)
    return build(value if depth(value) <= MAX_DEPTH else text, Positions(), place)


def apply_override(root: Node, override: Override, problems: list[Problem]) -> Node:
    """The tree with an override in it. What is wrong with its path becomes a problem."""
    path, node = override
    if len(path) > MAX_DEPTH:
        problems.append(Problem(f"a key has more than {MAX_DEPTH} steps", node.place))
        return root
    return _apply(_attention_makes_way(root, path, node), path, node, problems)


def _attention_makes_way(root: Node, path: Sequence[str], node: Node) -> Node:
    """`attention=…` and `attention.plugin=…` are meant for both phases; two phases of their own leave nothing to the
    section that was there for both.
    """
    old = (root.children or {}).get("attention")
    if old is None or path[0] != "attention":
        return root
    if len(path) == 1:
        over = node
    elif path[1:] == ["plugin"]:
        over = Node(node.place, children={"plugin": node})
    elif path[1] in PHASES and PHASES - set(old.children or {}) == {path[1]}:
        over = Node(node.place, children=dict.fromkeys(PHASES, node))
    else:
        return root
    return with_attention(root, make_way(old, over))


def _apply(root: Node, path: Sequence[str], node: Node, problems: list[Problem]) -> Node:
    """Put an override into the tree, through tables and arrays; the index after the last one appends."""
    if not path:
        return merge(root, node)
    step, rest = path[0], path[1:]
    if root.items is not None:
        return _apply_to_item(root.items, root, path, node, problems)
    if root.children is None:
        if isinstance(root.value, str):  # the short form of a section
            return _apply(Node(node.place, children={"plugin": root}), path, node, problems)
        root = Node(node.place, children={})
    children = dict(root.children or {})
    if rest:
        empty = Node(node.place, items=[]) if rest[0] == "0" else Node(node.place, children={})
        children[step] = _apply(children.get(step) or empty, rest, node, problems)
    else:
        children = dict(merge(root, Node(node.place, children={step: node})).children or {})
    return Node(root.place, children=children)


def _apply_to_item(items: list[Node], root: Node, path: Sequence[str], node: Node, problems: list[Problem]) -> Node:
    step, rest = path[0], path[1:]
    if not is_index(step) or int(step) > len(items):
        problems.append(Problem(f"there is no item {step[:80]!r} of {len(items)}", node.place))
        return root
    index = int(step)
    changed = items[index] if index < len(items) else Node(node.place, children={})
    return Node(root.place, items=[*items[:index], _apply(changed, rest, node, problems), *items[index + 1 :]])
