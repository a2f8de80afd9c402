"""Sections that name plugins: what is allowed in them, and how `[attention]` stands for both of its phases."""

import difflib
from collections.abc import Mapping
from typing import Final, Literal

from tokloom.core.profile.errors import Problem
from tokloom.core.profile.schema import PluginSection
from tokloom.core.profile.tree import Node
from tokloom.core.profile.types import shown

PHASES: Final = frozenset({"decode", "prefill"})
_KEYS: Final = ("plugin", "options", "on_unsupported")
_OFF: Final = "off"
#: sections whose plugin may be left out: the engine gives the same tokens without it
_LEFT_OUT: Final = ("speculation", "kv.tiers.", "observers.", "logits.")


def make_way(old: Node, over: Node) -> Node | None:
    """What stays of an `[attention]` into which another is merged: one kernel for both phases replaces the phases, and
    two phases of their own replace the one kernel. None if nothing stays.
    """
    given = set(over.children or {})
    if over.children is None or "plugin" in given:
        gone = PHASES - given
    elif given >= PHASES:
        gone = frozenset(_KEYS)
        if old.children is None:
            return None
    else:
        return old
    if old.children is None:
        return old
    return Node(old.place, children={key: child for key, child in old.children.items() if key not in gone})


def with_attention(root: Node, attention: Node | None) -> Node:
    """The tree with another `[attention]`, or none."""
    children = {key: child for key, child in (root.children or {}).items() if key != "attention"}
    return Node(root.place, children=children if attention is None else {**children, "attention": attention})


def kv_table(children: Mapping[str, Node]) -> Mapping[str, Node]:
    kv = children.get("kv")
    return kv.children if kv is not None and kv.children is not None else {}


def plugin_sections(children: Mapping[str, Node], problems: list[Problem]) -> dict[str, PluginSection]:
    found: dict[str, PluginSection] = {}
    for key in ("scheduler", "speculation", "weights", "ops"):
        _section(children.get(key), key, found, problems)
    kv = children.get("kv")
    if kv is not None and kv.children is None:
        problems.append(Problem(f"expected a table, found {shown(kv.plain())}", kv.place, "kv"))
    for key, node in kv_table(children).items():
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
    phases = PHASES & set(node.children or {})
    if not phases:
        _section(node, "attention", found, problems)
        return
    for key, child in (node.children or {}).items():
        if key in phases:
            _section(child, f"attention.{key}", found, problems)
        elif key in _KEYS and phases == PHASES:
            text, help = f"`{key}` beside both phases has no effect", "write one [attention], or its two phases"
            problems.append(Problem(text, child.place, f"attention.{key}", help, at_key=True))
        elif key not in _KEYS:
            problems.append(
                Problem(f"unknown key `{key}`", child.place, f"attention.{key}", "known keys: decode, prefill", True)
            )
    missing = set(PHASES - phases)
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
    for key, child in node.children.items():
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, 1)
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
        elif choice.value == "fallback" and not path.startswith(_LEFT_OUT):
            help = "only speculation, kv.tiers, observers and logits can be left out"
            problems.append(Problem("nothing can be left out here", choice.place, f"{path}.on_unsupported", help))
        elif choice.value == "fallback":
            unsupported = "fallback"
    return PluginSection(path, plugin.value, options, unsupported, node)


def listed_sections(node: Node | None, path: str, problems: list[Problem]) -> tuple[PluginSection, ...]:
    if node is None:
        return ()
    if node.items is None:
        problems.append(Problem(f"expected an array, found {shown(node.plain())}", node.place, path))
        return ()
    sections = [_plugin_section(item, f"{path}.{index}", problems) for index, item in enumerate(node.items)]
    return tuple(section for section in sections if section is not None)
