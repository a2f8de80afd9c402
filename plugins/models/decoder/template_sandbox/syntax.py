"""What may stand in a template, and what one passage through each block of it costs."""

from collections.abc import Sequence
from typing import Final

import attrs
from jinja2 import nodes

from tokloom.plugins.models.decoder.template_sandbox.budget import (
    MAX_BITS,
    MAX_COMPILING,
    MAX_NODES,
    MAX_SYNTAX_DEPTH,
    TemplateFailure,
    TemplateLimit,
)

#: steps of a node that calls something; of any other: 1
_STEPS: Final[dict[type[nodes.Node], int]] = {
    nodes.Call: 6,
    nodes.Filter: 6,
    nodes.Test: 4,
    nodes.Getattr: 4,
    nodes.Getitem: 4,
    nodes.Compare: 2,
    nodes.Concat: 4,
    nodes.For: 12,
    nodes.Macro: 20,
    nodes.CallBlock: 30,
    nodes.Block: 12,
    nodes.AssignBlock: 4,
    nodes.FilterBlock: 6,
}
#: bytes that a node makes beside what the operations count
_BYTES: Final[dict[type[nodes.Node], int]] = {
    nodes.Call: 64,
    nodes.Filter: 64,
    nodes.List: 64,
    nodes.Tuple: 48,
    nodes.Dict: 80,
    nodes.Pair: 104,
    nodes.For: 800,
    nodes.Macro: 1500,
    nodes.CallBlock: 1500,
    nodes.Block: 600,
    nodes.Output: 16,
    nodes.AssignBlock: 64,
    nodes.FilterBlock: 64,
}
_ALLOWED: Final[frozenset[type[nodes.Node]]] = frozenset(_STEPS) | frozenset(
    {
        nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.With, nodes.Scope, nodes.Assign,
        nodes.Break, nodes.Continue, nodes.Name, nodes.NSRef, nodes.Const, nodes.Tuple, nodes.List, nodes.Dict,
        nodes.Pair, nodes.Keyword, nodes.CondExpr, nodes.Slice, nodes.Operand, nodes.Add, nodes.Sub, nodes.Mul,
        nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow, nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Pos,
    }
)  # fmt: skip
_SCOPES: Final = (
    nodes.For,
    nodes.Macro,
    nodes.CallBlock,
    nodes.AssignBlock,
    nodes.FilterBlock,
    nodes.With,
    nodes.Scope,
)
_NAMES: Final[dict[type[nodes.Node], str]] = {
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "import",
    nodes.Extends: "extends",
    nodes.ScopedEvalContextModifier: "autoescape",
}


@attrs.frozen
class Cost:
    """Steps, and bytes."""

    work: int = 0
    memory: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.work + other.work, self.memory + other.memory)


def check(tree: nodes.Template) -> None:
    """Refuse a tree that is too large, that would take long to compile, or that has what chat templates need not."""
    level: list[tuple[nodes.Node, int]] = [(tree, 0)]
    depth = count = enclosed = branches = 0
    names: set[str] = set()
    while level:
        depth += 1
        count += len(level)
        enclosed += sum(scopes for _, scopes in level)
        if count > MAX_NODES:
            raise TemplateLimit("the size of a template in nodes", MAX_NODES)
        if depth > MAX_SYNTAX_DEPTH:
            raise TemplateLimit("the depth of a template", MAX_SYNTAX_DEPTH)
        below: list[tuple[nodes.Node, int]] = []
        for node, scopes in level:
            _check(node)
            if isinstance(node, nodes.Name):
                names.add(node.name)
            branches += isinstance(node, nodes.If | nodes.CondExpr)
            inside = scopes + isinstance(node, _SCOPES)
            below += [(child, inside) for child in node.iter_child_nodes()]
        level = below
    if max(enclosed, branches * len(names)) > MAX_COMPILING:
        raise TemplateLimit("the work of compiling a template", MAX_COMPILING)


def _check(node: nodes.Node) -> None:
    if type(node) not in _ALLOWED:
        name = _NAMES.get(type(node), type(node).__name__.lower())
        raise TemplateFailure(f"line {node.lineno}: {name!r} is not available to chat templates")
    if isinstance(node, nodes.Block) and (node.scoped or node.required):
        raise TemplateFailure(f"line {node.lineno}: scoped and required blocks are not available to chat templates")
    if isinstance(node, nodes.Const) and type(node.value) is int and node.value.bit_length() > MAX_BITS:
        raise TemplateLimit("the bits of an integer", MAX_BITS)


class Costs:
    """What each block of a template costs per passage.

    A loop's body, a macro's and a block's count when they run, everything else as part of what it stands in. Of several
    branches the dearest counts, and an eighth of the others, whose names the dearest one's frame knows too.

    Attributes:
        blocks: `id` of a body -> cost of one passage.
        conditions: `id` of a loop's condition -> cost of asking it once.
    """

    def __init__(self, tree: nodes.Template) -> None:
        self.blocks: dict[int, Cost] = {}
        self.conditions: dict[int, Cost] = {}
        self.blocks[id(tree.body)] = self._all(tree.body)

    def _all(self, found: Sequence[nodes.Node]) -> Cost:
        return sum((self._one(node) for node in found), Cost())

    def _one(self, node: nodes.Node) -> Cost:
        own = Cost(_STEPS.get(type(node), 1), _BYTES.get(type(node), 0))
        if isinstance(node, nodes.If):
            return own + self._branches(node)
        if isinstance(node, nodes.For):
            self.blocks[id(node.body)] = Cost(3, 64) + self._one(node.target) + self._all(node.body)
            if node.test is not None:
                self.conditions[id(node.test)] = Cost(3) + self._one(node.test)
            return own + self._one(node.iter) + self._all(node.else_)
        if isinstance(node, nodes.Macro | nodes.CallBlock):
            inside = Cost(10, 600) + self._all(node.args) + self._all(node.defaults) + self._all(node.body)
            self.blocks[id(node.body)] = inside
            return own + (self._one(node.call) if isinstance(node, nodes.CallBlock) else Cost())
        if isinstance(node, nodes.Block):
            self.blocks[id(node.body)] = self._all(node.body)
            return own
        return own + self._all(list(node.iter_child_nodes()))

    def _branches(self, node: nodes.If) -> Cost:
        tests = self._one(node.test) + self._all([branch.test for branch in node.elif_])
        costs = [self._all(body) for body in (node.body, *(branch.body for branch in node.elif_), node.else_)]
        work, memory = [cost.work for cost in costs], [cost.memory for cost in costs]
        return tests + Cost(max(work) + (sum(work) - max(work)) // 8, max(memory))
