"""Compiles a template so that all it does goes through a `Runtime`: Jinja's compiler with guarded operations.

Nothing is computed while compiling: Jinja's optimizer is off, and only texts of the template are folded.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import attrs
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokloom.plugins.models.decoder.template_sandbox.budget import MAX_SOURCE, TemplateLimit
from tokloom.plugins.models.decoder.template_sandbox.filters import FILTERS
from tokloom.plugins.models.decoder.template_sandbox.sequences import TESTS
from tokloom.plugins.models.decoder.template_sandbox.syntax import Costs, check

#: what compiled code calls of a runtime
_OPERATIONS: Final = (
    "text spend join getattr getitem call invoke iterate unpack unpack_map key slice contains eq ne order "
    "add plus sub mul div floordiv mod pow neg pos"
)
#: name in compiled code -> attribute of the runtime. The last two take the place of classes of Jinja's runtime
_NAMES: Final = {
    **{f"g_{name}": name for name in _OPERATIONS.split()},
    "LoopContext": "loop",
    "Macro": "macro_class",
}
_FUNCTIONS: Final = {
    "-": "g_sub",
    "*": "g_mul",
    "/": "g_div",
    "//": "g_floordiv",
    "%": "g_mod",
    "**": "g_pow",
}
_NATIVE: Final = {"eq": "==", "ne": "!=", "in": "in", "notin": "not in"}


class Generation(Extension):
    """`{% generation %}`, which marks what the model wrote, is its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """The body, in a scope of its own."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


@attrs.frozen
class Program:
    """A compiled template. Its functions take a context, a marker for what is missing, and a runtime.

    Attributes:
        root: the template's own text.
        blocks: name -> a block's text.
        names: all the names in it, so also those of the variables that it can see.
    """

    root: Callable[..., Iterator[str]]
    blocks: dict[str, Callable[..., Iterator[str]]]
    names: frozenset[str]


def compile_template(text: str) -> Program:
    """Compile. Raises TemplateLimit, TemplateFailure, or what Jinja and Python raise for text that is no template."""
    if len(text) > MAX_SOURCE:
        raise TemplateLimit("the length of a template", MAX_SOURCE)
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.globals.clear()
    environment.filters = dict(FILTERS)
    environment.tests = dict(TESTS)
    tree = environment.parse(text)
    check(tree)
    code = environment.compile(tree)
    space: dict[str, Any] = {"environment": None}
    exec(code, space)
    named: list[Any] = list(tree.find_all((nodes.Name, nodes.NSRef)))
    return Program(space["root"], space["blocks"], frozenset(node.name for node in named))


class _Guarded(CodeGenerator):
    _costs: Costs
    _around: Mapping[int, tuple[str, str]] = {}

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        self._costs = Costs(node)
        around: dict[int, tuple[str, str]] = {}
        for loop in node.find_all(nodes.For):
            around[id(loop.iter)] = ("g_iterate(", ")")
            if loop.test is not None:
                cost = self._costs.conditions[id(loop.test)]
                around[id(loop.test)] = (f"(g_spend({cost.work}, {cost.memory}) or (", "))")
        called: list[Any] = list(node.find_all((nodes.Call, nodes.Filter, nodes.Test)))
        for call in called:
            if call.dyn_args is not None:
                around[id(call.dyn_args)] = ("g_unpack(", ")")
            if call.dyn_kwargs is not None:
                around[id(call.dyn_kwargs)] = ("g_unpack_map(", ")")
        self._around = around
        super().visit_Template(node, frame)

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        before, after = self._around.get(id(node), ("", ""))
        if before:
            self.write(before)
        super().visit(node, *args, **kwargs)
        if after:
            self.write(after)

    def write_commons(self) -> None:
        super().write_commons()
        self.writeline("cond_expr_undefined = undefined")
        for name, attribute in _NAMES.items():
            self.writeline(f"{name} = environment.{attribute}")

    def blockvisit(self, nodes: Any, frame: Frame) -> None:
        cost = self._costs.blocks.get(id(nodes))
        if cost is not None:
            self.writeline(f"g_spend({cost.work}, {cost.memory})")
        super().blockvisit(nodes, frame)

    # -- output

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if isinstance(node, nodes.TemplateData):
            return node.data
        if isinstance(node, nodes.Const) and type(node.value) is str:
            return node.value
        raise nodes.Impossible

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write("g_text(")

    # -- expressions

    def _apply(self, function: str, frame: Frame, *found: nodes.Node) -> None:
        self.write(f"{function}(")
        for node in found:
            self.visit(node, frame)
            self.write(", ")
        self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self._apply("g_join", frame, *node.nodes)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self.write("{")
        for pair in node.items:
            self._apply("g_key", frame, pair.key)
            self.write(": ")
            self.visit(pair.value, frame)
            self.write(", ")
        self.write("}")

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:
        self.write("g_getattr(")
        self.visit(node.node, frame)
        self.write(f", {node.attr!r})")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if not isinstance(node.arg, nodes.Slice):
            self._apply("g_getitem", frame, node.node, node.arg)
            return
        self.write("g_slice(")
        self.visit(node.node, frame)
        for part in (node.arg.start, node.arg.stop, node.arg.step):
            self.write(", ")
            if part is None:
                self.write("None")
            else:
                self.visit(part, frame)
        self.write(")")

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:
        if isinstance(node.node, nodes.Getattr):
            self.write("g_invoke(")
            self.visit(node.node.node, frame)
            self.write(f", {node.node.attr!r}")
        else:
            self.write("g_call(")
            self.visit(node.node, frame)
        self.signature(node, frame, {"caller": "caller"} if forward_caller else None)
        self.write(")")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        """`a < b < c` is `(a < b) and (b < c)`, with b computed once."""
        self.write("(")
        left: nodes.Expr | str = node.expr
        for index, operand in enumerate(node.ops):
            if index:
                self.write(" and ")
            last = index == len(node.ops) - 1
            right: nodes.Expr | tuple[str, nodes.Expr] = operand.expr
            name = ""
            if not last:
                name = self.temporary_identifier()
                right = (name, operand.expr)
            self._compare(operand.op, left, right, frame)
            left = name
        self.write(")")

    def _compare(self, op: str, left: "nodes.Expr | str", right: Any, frame: Frame) -> None:
        native = _NATIVE.get(op) if _cheap(op, left, right) else None
        before, between = {
            "in": ("g_contains(", ", "),
            "notin": ("(not g_contains(", ", "),
            "eq": ("g_eq(", ", "),
            "ne": ("g_ne(", ", "),
        }.get(op, (f"g_order({op!r}, ", ", "))
        if native is not None:
            before, between = "(", f" {native} "
        self.write(before)
        if isinstance(left, str):
            self.write(left)
        else:
            self.visit(left, frame)
        self.write(between)
        if isinstance(right, tuple):
            self.write(f"({right[0]} := ")
            self.visit(right[1], frame)
            self.write(")")
        else:
            self.visit(right, frame)
        self.write("))" if op == "notin" and native is None else ")")

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:
        terms = [node.right]
        left = node.left
        while isinstance(left, nodes.Add):
            terms.append(left.right)
            left = left.left
        self._apply("g_add" if len(terms) == 1 else "g_plus", frame, left, *reversed(terms))

    def _binary(self, node: nodes.BinExpr, frame: Frame) -> None:
        self._apply(_FUNCTIONS[node.operator], frame, node.left, node.right)

    visit_Sub = visit_Mul = visit_Div = visit_FloorDiv = visit_Mod = visit_Pow = _binary

    def _unary(self, node: nodes.UnaryExpr, frame: Frame) -> None:
        self._apply("g_neg" if node.operator == "-" else "g_pos", frame, node.node)

    visit_Neg = visit_Pos = _unary


def _cheap(op: str, left: object, right: object) -> bool:
    """Whether Python's own operator ends at once: one side is a short constant, or a list of such."""
    if op in ("eq", "ne"):
        return _short(left) or _short(right)
    if op in ("in", "notin"):
        return isinstance(right, nodes.List | nodes.Tuple) and all(_short(item) for item in right.items)
    return False


def _short(node: object) -> bool:
    return isinstance(node, nodes.Const) and (type(node.value) is not str or len(node.value) <= 64)


class _Environment(ImmutableSandboxedEnvironment):
    code_generator_class = _Guarded
