"""Random templates from the blocks that waste is built of: loops, doubling, recursion, filters, formats, lists."""

import random

_ATOMS = [
    "ns.a",
    "ns.b",
    "ns.l",
    "ns.d",
    "messages",
    "messages[0]",
    "messages[0].content",
    "i",
    "x",
    "0",
    "1",
    "7",
    "-3",
    "2.5",
    "1e300",
    "999999999",
    "none",
    "true",
    "''",
    "'ab'",
    "'x' * 5000",
    "' %s {} '",
    "'%9d'",
    "[]",
    "[1, 'a']",
    "(1, 2)",
    "{'k': 1}",
    "range(40)",
    "nope",
    "loop",
    "ns",
    "f",
    "'🙂é'",
    "'a,b\\nc\\td'",
    "tools",
]
_FILTERS = [
    "upper",
    "lower",
    "title",
    "trim",
    "list",
    "length",
    "string",
    "tojson",
    "tojson(indent=2)",
    "join('-')",
    "join(ns.a)",
    "reverse",
    "sort",
    "unique",
    "unique | list",
    "first",
    "last",
    "sum",
    "sum(start=[])",
    "map('string')",
    "map('upper')",
    "map(attribute='content')",
    "select",
    "reject('odd')",
    "selectattr('role')",
    "batch(3, 0)",
    "slice(3)",
    "groupby('role')",
    "int",
    "float",
    "round(2)",
    "abs",
    "replace('a', 'bb')",
    "replace('', ns.a)",
    "center(200)",
    "indent(9, true)",
    "indent(ns.a)",
    "truncate(20)",
    "wordcount",
    "escape",
    "urlencode",
    "default('z')",
    "default(ns.l, true)",
    "items",
    "dictsort",
    "min",
    "max",
    "format(1, 2)",
    "format(ns.a)",
    "attr('upper')",
    "attr('format')",
    "safe",
    "capitalize",
    "count",
]
_METHODS = [
    "upper()",
    "split()",
    "split('a')",
    "rsplit('b', 2)",
    "splitlines()",
    "replace('a', 'aa')",
    "replace('', 'zz')",
    "join(ns.l)",
    "format(ns.a, ns.b)",
    "format(*ns.l)",
    "center(999)",
    "ljust(100000)",
    "zfill(70)",
    "expandtabs(999)",
    "strip('ab')",
    "find('a')",
    "count('a')",
    "partition('a')",
    "startswith('a')",
    "items()",
    "keys()",
    "values()",
    "get('k', ns.a)",
    "copy()",
    "index(1)",
    "casefold()",
    "isdigit()",
    "encode()",
    "append(1)",
    "content",
    "k",
    "a",
    "nope",
]
_BINARY = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">=", "in", "not in", "and", "or"]
_TESTS = [
    "defined",
    "string",
    "mapping",
    "iterable",
    "sequence",
    "number",
    "even",
    "divisibleby(3)",
    "in(ns.l)",
    "eq(ns.a)",
    "lower",
]


def expression(rng: random.Random, depth: int = 3) -> str:
    """Any expression."""
    kind = rng.random()
    if depth == 0 or kind < 0.2:
        return rng.choice(_ATOMS)
    inner = expression(rng, depth - 1)
    if kind < 0.4:
        return f"({inner}) {rng.choice(_BINARY)} ({expression(rng, depth - 1)})"
    if kind < 0.6:
        return f"({inner}) | {rng.choice(_FILTERS)}"
    if kind < 0.75:
        return f"({inner}).{rng.choice(_METHODS)}"
    if kind < 0.8:
        return f"({inner})[{rng.choice(['0', '-1', '1:', '::-1', ':5', 'ns.a', repr('k'), repr('format')])}]"
    if kind < 0.85:
        return f"({inner}) is {rng.choice(_TESTS)}"
    if kind < 0.9:
        return f"[{inner}, {expression(rng, depth - 1)}]"
    if kind < 0.93:
        return f"{{'k': {inner}, {expression(rng, 0)}: {inner}}}"
    if kind < 0.96:
        return f"({inner}) if ({expression(rng, depth - 1)}) else ({expression(rng, depth - 1)})"
    return f"{rng.choice(['f', 'loop', 'range', 'dict', 'namespace', 'cycler', 'joiner', inner])}({expression(rng, 1)})"


def statement(rng: random.Random, depth: int = 3) -> str:
    """Any statement."""
    value = expression(rng)
    kind = rng.random()
    if depth == 0 or kind < 0.2:
        return f"{{{{ {value} }}}}"
    if kind < 0.45:
        return f"{{% set ns.{rng.choice('abld')} = {value} %}}"
    body = "".join(statement(rng, depth - 1) for _ in range(rng.randint(1, 3)))
    if kind < 0.65:
        source = rng.choice(["range(99999)", "range(50)", "range(50)", "ns.l", "ns.a", value])
        recursive = rng.choice(["", "", " recursive"])
        condition = rng.choice(["", "", f" if {expression(rng, 1)}"])
        return f"{{% for {rng.choice('ix')} in {source}{condition}{recursive} %}}{body}{{% endfor %}}"
    if kind < 0.75:
        return f"{{% if {value} %}}{body}{{% else %}}{statement(rng, depth - 1)}{{% endif %}}"
    if kind < 0.8:
        return f"{{% set ns2 %}}{body}{{% endset %}}{{% set ns.a = ns2 %}}"
    if kind < 0.87:
        return f"{{% macro f(x) %}}{body}{{% endmacro %}}{{{{ f({value}) }}}}"
    if kind < 0.92:
        return f"{{% call f({value}) %}}{body}{{% endcall %}}"
    if kind < 0.96:
        return f"{{% filter {rng.choice(_FILTERS)} %}}{body}{{% endfilter %}}"
    return f"{{% with x = {value} %}}{body}{{% endwith %}}"


def template(rng: random.Random) -> str:
    """A template in which values grow from one statement to the next."""
    start = "{% set ns = namespace(a='ab', b='c' * 100, l=[1, 2], d={'k': 'v'}) %}"
    growth = rng.choice(
        [
            "",
            "{% for i in range(30) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}",
            "{% for i in range(12) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}",
            "{% for i in range(10) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
            "{% macro f(x) %}{{ x }}{{ caller() if caller }}{{ f(x) if x is number }}{% endmacro %}",
        ]
    )
    return start + growth + "".join(statement(rng) for _ in range(rng.randint(2, 6)))
