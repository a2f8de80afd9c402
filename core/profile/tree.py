"""Trees of values in which every value remembers where it was written, and how trees merge."""

from collections.abc import Iterator, Mapping
from typing import Final

from attrs import define, field

from tokloom.core.profile.errors import Place

#: tables and arrays inside each other; more is a mistake, and would exhaust the stack
MAX_DEPTH: Final = 64
Scalar = object
Plain = object


@define
class Node:
    """A table (`children` by key), an array (`items`) or a scalar (`value`)."""

    place: Place
    value: Scalar = None
    children: "dict[str, Node] | None" = None
    items: "list[Node] | None" = None

    def plain(self) -> Plain:
        """The value without places."""
        if self.children is not None:
            return {key: node.plain() for key, node in self.children.items()}
        if self.items is not None:
            return [node.plain() for node in self.items]
        return self.value

    def find(self, path: tuple[str | int, ...]) -> "Node":
        """The deepest node along a path; stops where the path leaves the tree."""
        node = self
        for step in path:
            if node.children is not None and step in node.children:
                node = node.children[str(step)]
            elif node.items is not None and isinstance(step, int) and step < len(node.items):
                node = node.items[step]
            else:
                break
        return node

    def walk(self, path: str = "") -> "Iterator[tuple[str, Node]]":
        """All scalars with their dotted paths."""
        if self.children is not None:
            for key, node in self.children.items():
                yield from node.walk(f"{path}.{key}" if path else key)
        elif self.items is not None:
            for index, node in enumerate(self.items):
                yield from node.walk(f"{path}.{index}")
        else:
            yield path, self


@define
class Positions:
    """Places of keys by path, from `scan`."""

    places: dict[tuple[str | int, ...], Place] = field(factory=dict)

    def of(self, path: tuple[str | int, ...], default: Place) -> Place:
        return self.places.get(path, default)


def is_index(step: str) -> bool:
    """Whether a step of a dotted path is the number of an item, as numbers are written."""
    return step.isascii() and step.isdigit() and len(step) < 10 and (step == "0" or step[0] != "0")


def depth(value: Plain) -> int:
    """How deep tables and arrays nest, counted no further than a few levels past what any profile needs."""
    level, found = {id(value): value}, 0
    while level and found < 1000:
        inner: list[Plain] = []
        for item in level.values():
            if isinstance(item, Mapping):
                inner += item.values()
            elif isinstance(item, list):
                inner += item
        level, found = {id(item): item for item in inner}, found + 1
    return found - 1


def build(value: Plain, positions: Positions, default: Place, path: tuple[str | int, ...] = ()) -> Node:
    """A tree from parsed TOML."""
    place = positions.of(path, default)
    if isinstance(value, Mapping):
        children = {str(k): build(v, positions, place, (*path, str(k))) for k, v in value.items()}
        return Node(place, children=children)
    if isinstance(value, list):
        return Node(place, items=[build(v, positions, place, (*path, i)) for i, v in enumerate(value)])
    return Node(place, value=value)


def merge(base: Node, over: Node) -> Node:
    """Tables merge by key, everything else is replaced. Naming another `plugin` drops inherited `options`."""
    if base.children is None or over.children is None:
        if isinstance(over.value, str) and base.children is not None and "plugin" in base.children:
            return merge(base, Node(over.place, children={"plugin": over}))
        if over.children is not None and isinstance(base.value, str) and "plugin" not in over.children:
            return merge(Node(base.place, children={"plugin": base}), over)
        return over
    children = dict(base.children)
    old, new = base.children.get("plugin"), over.children.get("plugin")
    if new is not None and old is not None and new.value != old.value:
        children.pop("options", None)
    for key, node in over.children.items():
        children[key] = merge(children[key], node) if key in children else node
    return Node(over.place, children=children)
