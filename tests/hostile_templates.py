"""Templates written to waste time or memory, and what runs them where a failure cannot hurt.

`python hostile_templates.py MEGABYTES < templates.json` prints one JSON list `[class, text]` per template, under a limit
on the address space so much above what the interpreter has at the start.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_BIG = "{% set ns = namespace(a='0123456789' * 100000) %}"
_LOOPS = "{% for i in range(100000) %}{% for j in range(100000) %}"
_ENDS = "{% endfor %}{% endfor %}"

#: each must end at a bound
HOSTILE: dict[str, str] = {
    "nested loops": _LOOPS + _ENDS,
    "nested loops with output": _LOOPS + "x" + _ENDS,
    "nested loops over text": "{% set t = 'x' * 4000000 %}{% for a in t %}{% for b in t %}{% endfor %}{% endfor %}",
    "loops with a condition that never holds": "{% for i in range(99999) %}{% for j in range(99999) if j < 0 %}{% endfor %}{% endfor %}",
    "huge range": "{% for i in range(10**9) %}{% endfor %}",
    "range beyond an index": "{% for i in range(10**30) %}{% endfor %}",
    "a list of ranges": "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = ns.l + range(100000) | list %}{% endfor %}",
    "doubling a text": "{% set ns = namespace(a='x') %}{% for i in range(100) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
    "doubling by concatenation": "{% set ns = namespace(a='x') %}{% for i in range(100) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}",
    "doubling by a block": "{% set ns = namespace(a='x') %}{% for i in range(100) %}{% set b %}{{ ns.a }}{{ ns.a }}{% endset %}{% set ns.a = b %}{% endfor %}",
    "doubling by replace": "{% set ns = namespace(a='x') %}{% for i in range(100) %}{% set ns.a = ns.a.replace('x', 'xx') %}{% endfor %}",
    "doubling by a filter": "{% set ns = namespace(a='x') %}{% for i in range(100) %}{% set ns.a = ns.a | replace('x', 'xx') %}{% endfor %}",
    "doubling by join": "{% set ns = namespace(a='x') %}{% for i in range(100) %}{% set ns.a = [ns.a, ns.a] | join %}{% endfor %}",
    "doubling by format": "{% set ns = namespace(a='x') %}{% for i in range(100) %}{% set ns.a = '{0}{0}'.format(ns.a) %}{% endfor %}",
    "doubling by percent": "{% set ns = namespace(a='x') %}{% for i in range(100) %}{% set ns.a = '%s%s' % (ns.a, ns.a) %}{% endfor %}",
    "doubling by a macro": "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns = namespace(a='x') %}{% for i in range(100) %}{% set ns.a = f(ns.a) %}{% endfor %}",
    "doubling by a call block": "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}{% set ns = namespace(a='x') %}{% for i in range(100) %}{% set b %}{% call f() %}{{ ns.a }}{% endcall %}{% endset %}{% set ns.a = b %}{% endfor %}",
    "doubling by upper": "{% set ns = namespace(a='ß' * 4000000) %}{{ ns.a.upper() }}",
    "text times number": "{{ 'x' * 10**10 }}",
    "text times number in a filter": "{{ ('x' * 10**10) | length }}",
    "a test that multiplies": "{{ ('%1000000000d') is even }}",
    "a test of division": "{{ '%1000000000d' is divisibleby 7 }}",
    "constant to fold": "{% set x = [0] * 10**9 %}",
    "constant to fold in a filter": "{{ 'x' | center(10**10) }}",
    "constant to fold in a method": "{{ 'x'.ljust(10**10) }}",
    "doubling a list": "{% set ns = namespace(a=[0]) %}{% for i in range(100) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
    "doubling a tuple": "{% set ns = namespace(a=(0,)) %}{% for i in range(100) %}{% set ns.a = ns.a * 2 %}{% endfor %}",
    "doubling by arguments": "{% set ns = namespace(a=[0]) %}{% macro f() %}{% set ns.a = varargs + varargs %}{% endmacro %}{% for i in range(100) %}{{ f(*ns.a) }}{% endfor %}",
    "sum of lists": "{{ ([[0] * 100000] * 100) | sum(start=[]) | length }}",
    "many lists": "{% set ns = namespace(a=[]) %}{% for i in range(100000) %}{% set ns.a = [ns.a, [0] * 10000] %}{% endfor %}",
    "many texts": "{% set ns = namespace(a=[]) %}{% for i in range(100000) %}{% set ns.a = [ns.a, 'x' * (1000 + i)] %}{% endfor %}",
    "many wide texts": "{% set ns = namespace(a=[]) %}{% for i in range(100000) %}{% set ns.a = [ns.a, '🙂' * (100000 + i)] %}{% endfor %}",
    "many small objects": "{% set ns = namespace(a=[]) %}"
    + _LOOPS
    + "{% set ns.a = [ns.a, [], {}, (i,), [i], {'a': i}] %}"
    + _ENDS,
    "many namespaces": "{% set ns = namespace(a=0) %}" + _LOOPS + "{% set ns.a = namespace(a=ns.a) %}" + _ENDS,
    "many macros": "{% set ns = namespace(a=0) %}"
    + _LOOPS
    + "{% macro f(a, b, c) %}{% endmacro %}{% set ns.a = [ns.a, f] %}"
    + _ENDS,
    "many undefined values": "{% set ns = namespace(a=0) %}"
    + _LOOPS
    + "{% set ns.a = [ns.a, messages.a, messages.b, nope] %}"
    + _ENDS,
    "many methods": "{% set ns = namespace(a=0) %}" + _LOOPS + "{% set ns.a = [ns.a, 'x'.upper, {}.items] %}" + _ENDS,
    "many lazy values": "{% set ns = namespace(a=0) %}"
    + _LOOPS
    + "{% set ns.a = [ns.a, [1] | map('upper')] %}"
    + _ENDS,
    "many loops kept": "{% set ns = namespace(a=0) %}{% for i in range(100000) %}{% for j in range(99999) %}{% for k in [1] %}{% set ns.a = [ns.a, loop] %}{% endfor %}{% endfor %}{% endfor %}",
    "many numbers": "{% set ns = namespace(a=0) %}"
    + _LOOPS
    + "{% set ns.a = [ns.a, i * 2.5 + j, 2**1000 + i] %}"
    + _ENDS,
    "many splits": _BIG + _LOOPS + "{% set ns.b = [ns.b, ns.a.split('0')] %}" + _ENDS,
    "split into letters": "{{ ('a ' * 2000000).split() | length }}{{ ('a,' * 2000000).split(',') | length }}",
    "lines": "{{ ('\\n' * 4000000).splitlines() | length }}",
    "letters": "{{ ('x' * 4000000) | list | length }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "growing power": "{% set ns = namespace(a=3) %}{% for i in range(100) %}{% set ns.a = ns.a ** 2 %}{% endfor %}",
    "growing product": "{% set ns = namespace(a=3) %}{% for i in range(100) %}{% set ns.a = ns.a * ns.a %}{% endfor %}",
    "huge literal": "{{ 0x" + "f" * 100_000 + " }}",
    "a long number from text": "{{ ('9' * 4000) | int }}",
    "a long number from hexadecimal text": "{{ ('f' * 4000000) | int(base=16) }}",
    "rounding": "{{ 5 | round(-1000000000) }}",
    "rounding up": "{{ 5 | round(1000000000, 'ceil') }}",
    "percent width": "{{ '%1000000000d' % 1 }}",
    "percent precision": "{{ '%.1000000000f' % 1 }}",
    "percent in a filter": "{{ '%1000000000d' | format(1) }}",
    "format width": "{{ '{:>99999999}'.format('x') }}",
    "format nested width": "{{ '{:{}}'.format('x', 99999999) }}",
    "format precision": "{{ '{:.99999999f}'.format(1.5) }}",
    "format by subscript": "{{ 'x{:>99999999}'['format'](1) }}",
    "format by attr": "{{ ('{:>99999999}' | attr('format'))(1) }}",
    "format_map": "{{ '{a:>99999999}'.format_map({'a': 1}) }}",
    "format many fields": _BIG + "{{ ('{0}' * 1000).format(ns.a) }}",
    "format representations": _BIG + "{{ ('{0!r}' * 1000).format(ns.a) }}",
    "percent many fields": _BIG + "{{ ('%(a)s' * 1000) % {'a': ns.a} }}",
    "ljust": "{{ 'x'.ljust(10**9) }}",
    "rjust": "{{ 'x'.rjust(10**9) }}",
    "center": "{{ 'x'.center(10**9) }}",
    "zfill": "{{ 'x'.zfill(10**9) }}",
    "expandtabs": "{{ ('\\t' * 1000).expandtabs(10**7) }}",
    "replace": "{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}",
    "replace of nothing": "{{ ('x' * 1000000).replace('', 'y' * 1000000) }}",
    "join": "{{ ('x' * 1000000).join('y' * 100000) }}",
    "filter join": "{{ ('y' * 100000) | join('x' * 1000000) }}",
    "filter center": "{{ 'x' | center(10**9) }}",
    "filter indent": "{{ ('\\n' * 100000) | indent(100000, true, true) }}",
    "filter indent text": "{{ ('\\n' * 100000) | indent('x' * 100000, true, true) }}",
    "filter batch": "{{ [1] | batch(10**9, 0) | list }}",
    "filter slice": "{{ [1] | slice(10**9, 0) | list }}",
    "filter truncate": "{{ ('x' * 4000000) | truncate(3000000, true, 'y' * 3000000) }}" + _LOOPS + _ENDS,
    "filter escape": "{{ ('<' * 4000000) | escape }}",
    "filter urlencode": "{{ ('é' * 4000000) | urlencode }}",
    "filter tojson": "{{ ('\\x01' * 4000000) | tojson }}",
    "filter tojson indent": "{{ [[[0] * 10000]] | tojson(indent=10**9) }}",
    "filter tojson indent text": "{{ [[[0] * 10000]] | tojson(indent='x' * 1000000) }}",
    "filter tojson separators": "{{ [0] * 10000 | tojson(separators=['x' * 1000000, 'y']) }}{{ ([0] * 10000) | tojson(separators=['x' * 1000000, 'y']) }}",
    "filter sum": "{% for i in range(99999) %}{{ range(99999) | sum }}{% endfor %}",
    "filter sort": "{% set a = 'x' * 1000000 %}{% set b = a ~ 'y' %}{{ ([a, b] * 50000) | sort | length }}",
    "filter unique": "{% for i in range(99999) %}{{ range(99999) | unique | list | length }}{% endfor %}",
    "filter groupby": "{% for i in range(99999) %}{{ ([messages[0]] * 10000) | groupby('role') | length }}{% endfor %}",
    "filter map": "{% for i in range(99999) %}{{ range(99999) | map('string') | map('length') | sum }}{% endfor %}",
    "filter select": "{% for i in range(99999) %}{{ range(99999) | select('odd') | reject('even') | list | length }}{% endfor %}",
    "filter wordcount": "{% set t = 'a ' * 2000000 %}{% for i in range(99999) %}{{ t | wordcount }}{% endfor %}",
    "filter title": "{% set t = 'a ' * 2000000 %}{% for i in range(99999) %}{% set x = t | title %}{% endfor %}",
    "lazy filters within each other": "{% set ns = namespace(a=[1]) %}{% for i in range(100000) %}{% set ns.a = ns.a | select %}{% endfor %}{{ ns.a | list }}",
    "search": "{% set t = 'a' * 29000 %}{% set n = 'a' * 14000 ~ 'b' ~ 'a' * 500 %}{% for i in range(99999) %}{{ n in t }}{% endfor %}",
    "search of a long text": "{% set t = 'a' * 4000000 %}{% set n = 'a' * 2000 ~ 'b' %}{% for i in range(99999) %}{{ n in t }}{% endfor %}",
    "search backwards": "{% set t = 'a' * 4000000 %}{% set n = 'b' ~ 'a' * 100000 %}{% for i in range(99999) %}{{ t.rfind(n) }}{% endfor %}",
    "counting": "{% set t = 'a' * 4000000 %}{% for i in range(99999) %}{{ t.count('ab') }}{{ t.find('ab') }}{% endfor %}",
    "strip by many letters": "{% set t = 'a' * 4000000 %}{{ t.strip('b' * 2000000 ~ 'a') }}",
    "equal texts": "{% set a = 'x' * 4000000 %}{% set b = 'x' ~ a[1:] %}"
    + _LOOPS
    + "{% if a == b %}{% endif %}"
    + _ENDS,
    "equal long constants": "{% for i in range(99999) %}{% for j in range(99999) %}{{ '"
    + "x" * 50_000
    + "' == '"
    + "x" * 50_000
    + "'[:] }}{% endfor %}{% endfor %}",
    "equal lists": "{% set a = [0] * 200000 %}{% set b = [0] * 200000 %}"
    + _LOOPS
    + "{% if a == b %}{% endif %}"
    + _ENDS,
    "shared lists printed": "{% set ns = namespace(a=[0]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a }}",
    "shared lists as JSON": "{% set ns = namespace(a=[0]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a | tojson }}",
    "shared dictionaries as JSON": "{% set ns = namespace(a={}) %}{% for i in range(60) %}{% set ns.a = {'a': ns.a, 'b': ns.a} %}{% endfor %}{{ ns.a | tojson }}",
    "shared lists compared": "{% set ns = namespace(a=[0], b=[0]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
    "shared lists ordered": "{% set ns = namespace(a=[0], b=[0]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a < ns.b }}",
    "shared lists searched": "{% set ns = namespace(a=[0], b=[0]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a in [ns.b] }}",
    "shared lists sorted": "{% set ns = namespace(a=[0], b=[0]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ [ns.a, ns.b] | sort }}",
    "shared lists by index": "{% set ns = namespace(a=[0]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ [1].index(ns.a) }}",
    "shared lists in loop.changed": "{% set ns = namespace(a=[0], b=[0]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{% for x in [ns.a, ns.b] %}{{ loop.changed(x) }}{% endfor %}",
    "shared lists in a message": "{% set ns = namespace(a=[0]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ raise_exception(ns.a) }}",
    "deep list printed": "{% set ns = namespace(a=[0]) %}{% for i in range(100000) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a }}",
    "deep list compared": "{% set ns = namespace(a=[0], b=[0]) %}{% for i in range(100000) %}{% set ns.a = [ns.a] %}{% set ns.b = [ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
    "deep lazy values": "{% set ns = namespace(a=[0]) %}{% for i in range(100000) %}{% for j in range(100) %}{% set ns.a = [ns.a] | map('list') %}{% endfor %}{% endfor %}",
    "recursive macro": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "recursive macros": "{% macro f(n) %}{{ g(n) }}{% endmacro %}{% macro g(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(0) }}",
    "branching macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(35) }}",
    "recursive caller": "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{% call f() %}x{% endcall %}",
    "recursive loop": "{% set l = [0] %}{% for x in l recursive %}{{ loop(l) }}{% endfor %}",
    "branching recursive loop": "{% for x in [30, 30] recursive %}{% if x %}{{ loop([x - 1, x - 1]) }}{% endif %}{% endfor %}",
    "macro by a filter block": "{% macro f(n) %}{% filter upper %}{{ f(n) }}{% endfilter %}{% endmacro %}{{ f(0) }}",
    "huge message": "{{ raise_exception('x' * 10**9) }}",
    "huge date": "{{ strftime_now('%Y' * 1000000) }}",
    "wide date": "{{ strftime_now('%99999999d') }}",
    "long output": "{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
    "long output of a constant": "{% for i in range(100000) %}" + "x" * 1000 + "{% endfor %}",
    "letters twice": "{% for a in 'x' * 4000000 %}{{ loop.length }}{{ loop.revindex }}{% for b in 'y' * 4000000 %}{% endfor %}{% endfor %}",
    "colliding keys": "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [[i * (2**61 - 1), 0], ns.l] %}{% endfor %}"
    + _LOOPS
    + _ENDS,
    "long slices": "{% set l = [0] * 200000 %}" + _LOOPS + "{% set x = l[1:] %}" + _ENDS,
    "long text slices": "{% set l = 'x' * 4000000 %}" + _LOOPS + "{% set x = l[::-1] %}" + _ENDS,
    "long copies": "{% set l = [0] * 200000 %}" + _LOOPS + "{% set x = l.copy() %}" + _ENDS,
    "long arguments": "{% set l = [0] * 200000 %}{% macro f() %}{{ varargs | length }}{% endmacro %}"
    + _LOOPS
    + "{% set x = f(*l) %}"
    + _ENDS,
    "long dictionaries": "{% set l = dict(range(100000) | map('string') | batch(2)) %}"
    + _LOOPS
    + "{% set x = dict(l) %}{% set y = dict(**l) %}"
    + _ENDS,
    "deep parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep lists": "{{ " + "[" * 20_000 + "]" * 20_000 + " }}",
    "deep sums": "{{ 1" + "+1" * 10_000 + " }}",
    "deep attributes": "{{ a" + ".a" * 10_000 + " }}",
    "deep filters": "{{ a" + "|d" * 10_000 + " }}",
    "deep negation": "{{ " + "not " * 10_000 + "1 }}",
    "deep minus": "{{ " + "-" * 10_000 + "1 }}",
    "deep comparisons": "{{ 1" + " < 1" * 40_000 + " }}",
    "deep blocks": "{% if 1 %}" * 5000 + "{% endif %}" * 5000,
    "deep conditions": "{{ " + "1 if 1 else " * 5000 + "1 }}",
    "long source": "x" * 1_000_000,
    "long comment": "{#" + "x" * 1_000_000 + "#}",
    "many nodes": "{{1}}" * 35_000,
    "loops in the source": "{% for x in y %}" * 100 + "{{1}}" * 25_000 + "{% endfor %}" * 100,
    "macros in the source": "{% macro f() %}" * 100 + "{{1}}" * 25_000 + "{% endmacro %}" * 100,
    "calls in the source": "{% call f() %}" * 100 + "{{1}}" * 25_000 + "{% endcall %}" * 100,
    "names times branches": "".join(f"{{% set a{i} = 1 %}}" for i in range(5000)) + "{% if 1 %}{% endif %}" * 4500,
    "names times conditions": "".join(f"{{% set a{i} = 1 %}}" for i in range(5000)) + "{{1 if 1}}" * 7000,
    "many branches": "{% if 0 %}" + "{% elif 0 %}" * 15_000 + "{% endif %}",
}

#: each must be refused, at a bound or by name
ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__']['__mro__'] }}",
    "{{ (''|attr('__class__')).mro() }}",
    "{{ [''] | map(attribute='__class__.__mro__') | first | first }}",
    "{{ messages | map('attr', '__class__') | map(attribute='__base__') | list | first }}{{ x.y }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(range) }}",
    "{{ '{x.__class__.__mro__}'.format_map({'x': 1}) }}",
    "{{ ('{0.__class__.__mro__}' | attr('format'))(1) }}",
    "{{ ['{0.__class__.__mro__}'.format] | map('upper') | list }}{{ x.y }}",
    "{{ ['{0.__class__.__mro__}'][0]['format'](1) }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__ }}{{ joiner.function }}{{ joiner.function.__globals__ }}",
    "{{ namespace.__init__.__globals__.sys }}",
    "{{ range.function.__globals__ }}",
    "{{ dict.fromkeys.__self__ }}",
    "{{ lipsum.__globals__ }}",
    "{{ lipsum(n=100000000) }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context.environment }}",
    "{{ self.x() }}{% block x %}{{ self.x() }}{% endblock %}",
    "{{ loop.__init__ }}{% for x in [1] %}{{ loop._runtime.budget }}{{ loop._runtime.work.real }}{% endfor %}",
    "{% for x in [1] %}{{ loop._iterator.__next__() }}{% endfor %}",
    "{% for x in [1] %}{{ loop.length.__class__.__mro__ }}{% endfor %}",
    "{% macro f() %}{% endmacro %}{{ f._func.__globals__ }}",
    "{% macro f() %}{% endmacro %}{{ f._environment.filters }}",
    "{{ ([1] | map('upper')).gi_frame.f_globals }}",
    "{{ ([1] | map('upper')).source.gi_frame }}",
    "{{ 'x'.upper.owner.function }}{{ 'x'.upper.function.__globals__ }}",
    "{{ 'x'.upper.__self__.__class__ }}",
    "{{ namespace(_x=1) }}",
    "{% set ns = namespace() %}{% set ns._Namespace__attrs = {} %}",
    "{% set ns = namespace() %}{% set ns['__class__'] = 1 %}",
    "{{ namespace()._Namespace__attrs.x }}{{ namespace().__init__.__globals__ }}",
    "{{ undefined_name._undefined_exception }}{{ undefined_name.__init__.__globals__ }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{{ messages[0].setdefault('x', 1) }}",
    "{{ messages.sort() }}",
    "{{ messages.__setitem__(0, 1) }}",
    "{{ messages.clear() }}",
    "{% include '/etc/passwd' %}",
    "{% include 'x' ignore missing %}",
    "{% import 'os' as os %}",
    "{% from 'os' import path %}",
    "{% extends 'x' %}",
    "{% autoescape 'x' * 10**10 %}x{% endautoescape %}",
    "{% debug %}",
    "{% do messages.append(1) %}",
    "{% trans %}x{% endtrans %}",
    "{% set x = environment.filters %}{{ x.y }}",
    "{{ context.environment }}",
    "{{ g_spend(-1000000000) }}",
    "{% set g_spend = 1 %}{{ environment.spend(-1) }}",
    "{{ spend(-100) }}{{ x.y }}",
    "{{ range.__call__ }}{{ range.__call__.x }}",
    "{{ (1).__class__.__base__ }}",
    "{{ 1.5.as_integer_ratio() }}",
    "{{ 'x'.encode() }}",
    "{{ 'x'.maketrans('a', 'b') }}",
    "{{ 'x'.translate({120: 'y'}) }}",
    "{{ 5 .to_bytes(1000000000, 'big') }}",
    "{{ {}.fromkeys('abc') }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%(a(b))1000000000d' % {'a(b)': 1} }}",
    "{{ [1] | map('__class__') | list }}",
    "{{ {(1, 2): 3} }}",
    "{{ {2**61 - 1: 3} }}",
    "{{ 'x' | urlize }}",
    "{{ 'x' | random }}",
    "{{ 'x' | pprint }}",
]


def run(templates: Sequence[str], *, megabytes: int = 700, seconds: float = 300) -> list[tuple[str, str]]:
    """Class and text of what each ends with, from a process of its own."""
    command = [sys.executable, __file__, str(megabytes)]
    done = subprocess.run(command, input=json.dumps(templates), capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, f"exit code {done.returncode} after:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return [(kind, text) for kind, text in map(json.loads, done.stdout.splitlines())]


def _one(text: str) -> list[str]:
    from datetime import datetime

    from tokloom.plugins.models.decoder.template_sandbox.bounded import BoundedTemplate

    variables: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "tools": None}
    try:
        return ["", BoundedTemplate(text, clock=lambda: datetime(2024, 7, 4)).render(variables)[:200]]
    except Exception as error:
        return [type(error).__name__, str(error)[:1000]]


if __name__ == "__main__":
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + int(sys.argv[1]) * 1024**2
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for template in json.load(sys.stdin):
        print(json.dumps(_one(template)), flush=True)
