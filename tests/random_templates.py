"""Random templates from the blocks that waste is built of: loops, doubling, recursion, filters, formats, lists.

Most expressions have the type that their place wants, so that templates get far; a few have any, and fail.
"""

import random
import re
from typing import Final

#: type -> expressions of it; {t}, {l}, {n} and {d} stand for texts, lists, numbers and dictionaries
_PRODUCTIONS: Final = {
    "t": (
        "{t} ~ {t}|({t}) + ({t})|({t}) * (({n}) % 9)|'%s-%5d' % ({t}, ({n}) % 999)|({l}) . join({t})|({n}) . string|"
        "({t}) . upper|({t}) . title|({t}) . trim|({t}) . replace('a', {t})|({t}) . replace('', 'b')|({t}) . center(200)|"
        "({t}) . indent(9, true)|({t}) . indent({t})|({t}) . truncate(20)|({t}) . escape|({t}) . urlencode|({l}) . tojson|"
        "({d}) . tojson(indent=2)|({l}) . string|({d}) . string|({t}) . capitalize|'{} {!r:.9}'.format({t}, {l})|"
        "({t}).upper()|({t}).replace('a', 'aa')|({t}).ljust(999)|({t}).zfill(70)|({t}).expandtabs(99)|({t}).strip('ab')|"
        "({t}).partition('a')[0]|({t})[::-1]|({t})[:50]|({l}) . map('string') . join|f({t})|({t}) if ({t}) else ({t})|"
        "({t}) . default({t}, true)|({t}).join({l} . map('string'))"
    ).replace(" . ", " \0 ").split("|"),
    "l": (
        "({l}) + ({l})|({l}) * 2|[{t}, {n}, {l}]|({t}) . list|({t}).split('a')|({t}).splitlines()|range(({n}) % 99) . list|"
        "({l}) . reverse . list|({l}) . map('string') . list|({l}) . map('string') . sort|({l}) . batch(3, 0) . list|"
        "({l}) . slice(3) . list|({l}) . unique . list|({l}) . select . list|({l}) . reject('string') . list|({l})[1:]|"
        "({l})[::-1]|({d}) . dictsort|({d}).items() . list|({d}).keys() . list|messages . map(attribute='content') . list|"
        "({l}) if ({n}) else ({l})|[{l}, {l}] . sum(start=[])"
    ).replace(" . ", " \0 ").split("|"),
    "n": (
        "({n}) + ({n})|({n}) - ({n})|({n}) * ({n})|({n}) // 7|({n}) % 1000|(({n}) % 99) ** 3|({t}) . length|({l}) . length|"
        "({t}) . wordcount|({t}).count('a')|({t}).find('b')|({n}) . abs|({n}) . round(2)|({t}) . int|({t}) in ({l})|"
        "({t}) == ({t})|({l}) == ({l})|({t}) < ({t})|({n}) is even|({l}) is iterable|({t}) is lower|not ({n})|"
        "({n}) and ({n})|({n}) or ({n})|({l}) . map('string') . map('length') . sum"
    ).replace(" . ", " \0 ").split("|"),
    "d": ["{'k': {t}, 'm': {l}}", "dict(k={n}, m={t})", "messages[0]", "ns.d"],
}  # fmt: skip
_ATOMS: Final = {
    "t": ["ns.a", "ns.a", "'ab'", "''", "'a,b\\nc\\td'", "'🙂é'", "' %s {} '", "'x' * 5000", "messages[0].content"],
    "l": ["ns.l", "ns.l", "[1, 'a']", "range(40) | list", "messages", "[]"],
    "n": ["7", "0", "-3", "999999999", "2", "true", "ns.l | length"],
    "d": ["ns.d", "{'k': 1}", "messages[0]"],
}
_WILD: Final = ["nope", "loop", "1e300", "none", "tools", "ns", "f", "(1, 2)", "'%9d'", "ns.a.format", "ns.l[ns.a]"]
_FILTERS: Final = ["upper", "trim", "replace('a', 'bb')", "indent(4, true)", "center(90)", "title"]


def expression(rng: random.Random, kind: str, depth: int = 3) -> str:
    """An expression, of the type `kind` as a rule."""
    if rng.random() < 0.003:
        return rng.choice(_WILD)
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(_ATOMS[kind])
    form = rng.choice(_PRODUCTIONS[kind]).replace("\0", "|")
    return re.sub(r"\{([tlnd])\}", lambda found: expression(rng, found[1], depth - 1), form)


def statement(rng: random.Random, depth: int = 3) -> str:
    """Any statement."""
    kind = rng.random()
    text, items = expression(rng, "t"), expression(rng, "l")
    if depth == 0 or kind < 0.2:
        return f"{{{{ {rng.choice([text, items])} }}}}"
    if kind < 0.45:
        return f"{{% set ns.{rng.choice([f'a = {text}', f'l = {items}'])} %}}"
    body = "".join(statement(rng, depth - 1) for _ in range(rng.randint(1, 3)))
    if kind < 0.65:
        source = rng.choice(["range(99999)", "range(50)", "range(5)", items, text])
        condition = rng.choice(["", "", f" if {expression(rng, 'n', 1)}"])
        again = rng.choice(["", "", f"{{{{ loop({expression(rng, 'l', 1)}) }}}}"])
        return f"{{% for x in {source}{condition}{' recursive' if again else ''} %}}{body}{again}{{% endfor %}}"
    if kind < 0.75:
        return f"{{% if {expression(rng, 'n')} %}}{body}{{% else %}}{statement(rng, depth - 1)}{{% endif %}}"
    if kind < 0.8:
        return f"{{% set made %}}{body}{{% endset %}}{{% set ns.a = made %}}"
    if kind < 0.85:
        return f"{{% macro g(x) %}}{body}{{% endmacro %}}{{{{ g({text}) }}}}"
    if kind < 0.9:
        return f"{{% call c({text}) %}}{body}{{% endcall %}}"
    if kind < 0.95:
        return f"{{% filter {rng.choice(_FILTERS)} %}}{body}{{% endfilter %}}"
    return f"{{% with x = {text} %}}{body}{{% endwith %}}"


def template(rng: random.Random) -> str:
    """A few statements, after a namespace and a function that they use."""
    start = "{% set ns = namespace(a='ab', l=[1, 2], d={'k': 'v'}) %}{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}"
    start += "{% macro c(x) %}{{ x }}{{ caller() }}{% endmacro %}"
    growth = rng.choice(
        [
            "",
            "{% for i in range(12) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}",
            "{% for i in range(10) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
        ]
    )
    return start + growth + "".join(statement(rng) for _ in range(rng.randint(1, 4)))
