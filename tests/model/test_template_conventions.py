"""Templates in the manner of ten families render as transformers renders them."""

import random
from datetime import datetime
from typing import Any

import pytest
from chat_templates import FAMILIES, conversation, tools
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from tokloom.plugins.models.decoder.template_sandbox.bounded import BoundedTemplate
from tokloom.plugins.models.decoder.template_sandbox.budget import TemplateFailure

NOW = datetime(2024, 7, 4, 12, 30)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


class _Clock(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return NOW


@pytest.fixture(scope="module")
def reference() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **TOKENS)


def both(
    reference: PreTrainedTokenizerFast, text: str, messages: Any, given: Any, prompt: bool, options: dict[str, Any]
) -> tuple[Any, Any]:
    """What transformers and we make of it; errors as the class Exception."""
    try:
        wanted: Any = reference.apply_chat_template(
            messages, tools=given, chat_template=text, tokenize=False, add_generation_prompt=prompt, **options
        )
    except Exception:
        wanted = Exception
    thinking = [
        {**m, "thinking": m["reasoning_content"]} if "reasoning_content" in m else m for m in messages
    ]  # an alias that transformers adds
    try:
        found: Any = BoundedTemplate(text, clock=lambda: NOW).render(
            {
                **TOKENS, "messages": thinking, "tools": given, "documents": None, "add_generation_prompt": prompt,
                **options,
            }
        )  # fmt: skip
    except TemplateFailure:
        found = Exception
    return wanted, found


@pytest.mark.parametrize("family", FAMILIES)
def test_it_renders_as_transformers_does(
    family: str, reference: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template_utils, "datetime", _Clock)
    rendered = 0
    for seed in range(40):
        rng = random.Random(seed)
        options: dict[str, Any] = {}
        if rng.random() < 0.5:
            options["enable_thinking"] = rng.random() < 0.5
        messages, given, prompt = conversation(rng), tools(rng), rng.random() < 0.5
        wanted, found = both(reference, FAMILIES[family], messages, given, prompt, options)
        assert found == wanted, f"seed {seed}"
        rendered += wanted is not Exception
    assert rendered >= 15


SNIPPETS = [
    "{{ 'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1, 'x'] ~ {'k': (1,)} }}",
    "{{ (1, 2) + (3,) }}{{ [1] * 3 }}{{ 3 * 'ab' }}{{ 7 // 2 }}{{ 7 / 2 }}{{ -7 % 3 }}{{ 2 ** 10 }}{{ 2 ** -1 }}{{ -(3) }}",
    "{{ 1 < 2 < 3 }}{{ 3 > 2 > 2 }}{{ 1 == 1.0 == true }}{{ 'a' in 'abc' in ['abc'] }}{{ 2 not in [1] }}",
    "{{ messages == messages[:] }}{{ messages != [] }}{{ [1, [2]] < [1, [3]] }}",
    "{% for a, b in {'x': 1, 'y': 2}.items() %}{{ loop.revindex }}{{ a }}{{ b }}{% else %}none{% endfor %}",
    "{% for x in [] %}{% else %}none{% endfor %}{% for x in undefined_name %}{% else %}none{% endfor %}",
    "{% for x in range(10) if x is odd %}{{ loop.index }}:{{ x }}{{ ',' if not loop.last }}{% endfor %}",
    "{% for x in 'abc' %}{{ loop.first }}{{ loop.nextitem }}{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}",
    "{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}@{{ loop.depth }}{% endif %}{% endfor %}",
    "{% macro f(a, b='z', *c) %}{% endmacro %}",
    "{% macro f(a, b='z') %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{{ caller() if caller }}{% endmacro %}{{ f(1) }}{{ f(1, 2, 3, x=4) }}{% call f('q') %}body{% endcall %}",
    "{% macro f() %}{{ caller('x') }}{% endmacro %}{% call(v) f() %}<{{ v }}>{% endcall %}",
    "{% set x %}a{{ 1 }}{% endset %}{{ x }}{% set y | upper %}abc{% endset %}{{ y }}{% filter trim %}  z {% endfilter %}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{% block title %}T{{ messages | length }}{% endblock %}",
    "{% set ns = namespace({'a': 1}, b=2) %}{% set ns.c = ns.a + ns.b %}{{ ns.c }}{{ ns['a'] }}{{ ns.zz is defined }}",
    "{{ messages[0].items is defined }}{{ messages[0]['pop'] is defined }}{{ messages[0].get('role', 1) }}{{ messages[0].nope }}|",
    "{{ messages[-1]['role'] }}{{ messages[99] }}{{ messages['x'] }}{{ none['x'] }}{{ (3)['x'] is defined }}",
    "{{ messages[0].role.nope is defined }}{{ nope.nope }}",
    "{{ x.y.z }}",
    "{{ 'a,b,,c'.split(',') }}{{ 'a b  c'.split() }}{{ 'a.b.c'.rsplit('.', 1) }}{{ 'aXbX'.partition('X') }}",
    "{{ 'abc'.replace('b', 'xx') }}{{ 'aaa'.replace('a', 'b', 2) }}{{ 'abc' | replace('b', 1) }}{{ ' a '.strip() }}{{ 'xxa'.lstrip('x') }}",
    "{{ 'ab'.center(6, '*') }}{{ 'ab'.zfill(5) }}{{ 'a\\tb'.expandtabs(4) }}{{ 'ß'.upper() }}{{ 'AB'.casefold() }}{{ 'a'.islower() }}{{ '12'.isdigit() }}",
    "{{ '-'.join(['a', 'b']) }}{{ 'abc'.find('c') }}{{ 'abcabc'.rfind('b') }}{{ 'aaa'.count('a') }}{{ 'a\\nb'.splitlines() }}{{ 'abc'.startswith(('x', 'a')) }}{{ 'pre-x'.removeprefix('pre-') }}",
    "{{ '%s %5.2f %r %x %%' % ('a', 3.14159, 'q', 255) }}{{ '%(a)s-%(b)03d' % {'a': 1, 'b': 2} }}{{ '%d' % 3.7 }}{{ '%c%a' % ('x', 'é') }}",
    "{{ '{} {:>5} {name!r:^9} {0[0]}'.format('ab', 'c', name='n') }}",
    "{{ '{} {:>5} {name!r:^9}'.format('ab', 3, name='n') }}{{ '{0[a]} {0[b][1]:.2f} {1.role}'.format({'a': 1, 'b': [2, 3.5]}, messages[0]) }}{{ '{:{}}|'.format('x', 4) }}",
    "{{ '%s %s' % (1,) }}",
    "{{ '%s' % (1, 2) }}",
    "{{ '%s|%s' | format('a', 1) }}{{ 'a' | center(5) }}|{{ 'hello world' | truncate(7) }}{{ 'hello world foo bar' | truncate(9, true, '', 0) }}",
    "{{ 'a\\nb\\n\\nc' | indent(2) }}|{{ 'a\\nb\\n\\nc' | indent('>', true, true) }}|{{ '' | indent }}",
    "{{ 'hello wORLD-foo (bar' | title }}{{ 'hELLO' | capitalize }}{{ 'a b-c_d' | wordcount }}{{ '<a href=\"x\">' | escape }}{{ 'a/b c&d' | urlencode }}{{ {'a': 'b c', 'd': 1} | urlencode }}",
    "{{ '12' | int + 1 }}{{ 'x' | int(7) }}{{ '3.9' | int }}{{ '0x1F' | int(base=16) }}{{ '1.5' | float }}{{ 'q' | float(2.5) }}{{ -3 | abs }}{{ 2.567 | round(2) }}{{ 2.1 | round(method='ceil') }}{{ 42 | round(-1) }}",
    "{{ [3, 1, 2] | sort }}{{ ['b', 'A'] | sort }}{{ ['b', 'A'] | sort(case_sensitive=true) }}{{ [3, 1] | sort(reverse=true) }}{{ messages | sort(attribute='role,content') | map(attribute='role') | list }}",
    "{{ [1, 2, 3] | sum }}{{ [[1], [2]] | sum(start=[]) }}{{ [{'a': 1}, {'a': 5}] | sum(attribute='a') }}{{ [3, 1, 2] | min }}{{ ['b', 'C'] | max }}{{ [] | max is defined }}",
    "{{ [1, 1, 2, 'a', 'A'] | unique | list }}{{ [1, 2, 3] | reverse | list }}{{ 'abc' | reverse }}{{ 'abc' | list }}{{ [1, 2] | first }}{{ [1, 2] | last }}{{ [] | first is defined }}",
    "{{ [1, 2, 3, 4, 5] | batch(2, 'x') | list }}{{ [1, 2, 3, 4, 5] | slice(3, 'x') | list }}{{ [1, 2, 3] | join('-') }}{{ messages | join(',', attribute='role') }}",
    "{% for role, items in messages | groupby('role') %}{{ role }}{{ items | length }}{% endfor %}{% for g in messages | groupby('role') %}{{ g.grouper }}{{ g.list | length }}{% endfor %}",
    "{{ {'b': 1, 'A': 2} | dictsort }}{{ {'b': 1, 'A': 2} | dictsort(true, 'value', true) }}{{ {'a': 1} | items | list }}{{ {'a': 1} | length }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | first | default('none') }}{{ [0, 1, ''] | select | list }}{{ [1, 2, 3] | reject('odd') | list }}{{ messages | rejectattr('nope') | list | length }}",
    "{{ [1, 2] | map('string') | map('upper') | join }}{{ messages | map(attribute='nope', default='-') | join }}{{ ['a', 'b'] | map('replace', 'a', 'z') | list }}{{ [[1, 2]] | map('first') | list }}",
    "{{ (messages | selectattr('role', 'equalto', 'nobody')) is true }}{% if messages | selectattr('role', 'equalto', 'nobody') %}yes{% endif %}",
    "{% set s = messages | map(attribute='role') %}{{ s | list | length }}{{ s | list | length }}",
    "{{ {'a': [1, {'b': none}], 'é': true, 'n': 1.5} | tojson }}{{ [1] | tojson(indent=2) }}{{ {'b': 1, 'a': 'é<' } | tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':')) }}",
    "{{ undefined_name | tojson }}",
    "{{ 1 is divisibleby 2 }}{{ 4 is even }}{{ none is none }}{{ 'a' is string }}{{ {} is mapping }}{{ [] is sequence }}{{ 1 is number }}{{ 'x' is in 'xyz' }}{{ 1 is sameas 1 }}{{ true is boolean }}{{ 2 is gt 1 }}{{ 'A' is upper }}{{ 1.0 is float }}{{ 1 is integer }}{{ 'trim' is filter }}{{ 'odd' is test }}{{ range is callable }}",
    "{{ 'yes' if messages else 'no' }}{{ 'x' if false }}{{ not [] }}{{ [] or 'b' }}{{ 1 and '' }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{{ dict(a=1, **{'b': 2}) }}{{ dict([('x', 1)]) }}{{ range(3) | list }}{{ range(*[1, 4]) | sum }}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set j = joiner('|') %}{{ j() }}x{{ j() }}",
    "{{ 'abc'[1] }}{{ 'abc'[::-1] }}{{ 'abc'[-2:] }}{{ [1, 2, 3][1:][0] }}{{ (1, 2)[1] }}{{ 'abc'.nope }}{{ 'abc'['upper']() }}",
    "{{ messages | attr('count') is defined }}{{ messages[0] | attr('role') is defined }}{{ [1, 2, 1].count(1) }}{{ [1, 2].index(2) }}",
    "a\n  {% if true %}\n  b\n  {% endif %}\n{# note #}\n  c  {%- if true +%}\n d{% endif %}\n",
    "{% raw %}{{ x }}{% endraw %}{{ '\\n' }}{{ \"it's\" }}{{ 'é\\u00e9' }}",
    "{{ 1_000 }}{{ 0x10 }}{{ 1e3 }}{{ 1.5e-3 }}",
    "{{ raise_exception('no ' ~ 1) }}",
    "{{ {'a': 1}.pop('a') }}",
    "{{ [].append(1) }}",
    "{{ 'x' + 1 }}",
    "{{ 1 in 'x' }}",
    "{{ 'x' * 1.5 }}",
    "{{ [1, 'a'] | sort }}",
    "{{ messages.content }}{{ messages[0].content }}",
    "{{ 5() }}",
    "{{ 'a' is nosuchtest }}",
    "{{ 'a' | nosuchfilter }}",
    "{% if false %}{{ 'a' | nosuchfilter }}{% endif %}ok",
    "{{ loop }}",
    "{{ strftime_now('%Y-%m-%d') }}",
]  # fmt: skip


@pytest.mark.parametrize("text", SNIPPETS)
def test_an_expression_means_what_it_means_in_transformers(
    text: str, reference: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template_utils, "datetime", _Clock)
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Ho"},
        {"role": "user", "content": ""},
    ]
    wanted, found = both(reference, text, messages, None, True, {})
    assert found == wanted
