"""`[adapters]`: names that requests use, and the paths of the adapters."""

import re
from typing import Final

from tokloom.core.profile.errors import Problem
from tokloom.core.profile.schema import AdapterSection
from tokloom.core.profile.tree import Node
from tokloom.core.profile.types import shown

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}")


def adapter_sections(node: Node | None, problems: list[Problem]) -> tuple[AdapterSection, ...]:
    if node is None:
        return ()
    if node.children is None:
        help = 'write [adapters] and name = "path" below it'
        problems.append(Problem(f"expected a table, found {shown(node.plain())}", node.place, "adapters", help))
        return ()
    found: list[AdapterSection] = []
    for name, child in node.children.items():
        if not _NAME.fullmatch(name):
            help = "names are up to 128 letters, digits and . _ : @ + - and begin with a letter or digit"
            problems.append(Problem(f"{name!r} cannot name an adapter", child.place, "adapters", help, at_key=True))
        elif not isinstance(child.value, str) or not child.value:
            text = f"expected a path, found {shown(child.plain())}"
            problems.append(Problem(text, child.place, f"adapters.{name}"))
        else:
            found.append(AdapterSection(name, child.value, child.place))
    return tuple(found)
