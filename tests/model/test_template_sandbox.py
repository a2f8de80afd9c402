"""Hostile templates end at a bound, in little time and memory, and reach nothing but their variables."""

import random
import sys
import tracemalloc
from types import FrameType
from typing import Any

import pytest
from hostile_templates import ESCAPES, HOSTILE, run
from random_templates import template

from tokloom.plugins.models.decoder.chat import ChatTemplate
from tokloom.plugins.models.decoder.template_sandbox import bounded, budget, operators, runtime
from tokloom.plugins.models.decoder.template_sandbox.bounded import BoundedTemplate
from tokloom.plugins.models.decoder.template_sandbox.budget import TemplateFailure, TemplateLimit
from tokloom.sdk import ChatMessage, RequestError

VARIABLES: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi, there"}], "tools": None}


def outcome(text: str) -> tuple[str, str]:
    try:
        return "", BoundedTemplate(text).render(VARIABLES)
    except (TemplateLimit, TemplateFailure) as error:
        return type(error).__name__, str(error)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_hostile_templates_end_at_a_bound(part: int) -> None:
    """With 700 MB of address space: a quarter of them per process."""
    names = sorted(HOSTILE)[part::4]
    found = run([HOSTILE[name] for name in names])
    assert len(found) == len(names)
    missed = {name: end for name, end in zip(names, found, strict=True) if end[0] != "TemplateLimit"}
    assert not missed


def test_no_template_reaches_beyond_its_variables() -> None:
    found = run(ESCAPES)
    assert len(found) == len(ESCAPES)
    through = {text: end for text, end in zip(ESCAPES, found, strict=True) if end[0] == ""}
    assert not through
    assert not [end for end in found if "<module" in end[1] or "0x" in end[1]]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_random_templates_end_with_a_text_or_at_a_bound(seed: int) -> None:
    rng = random.Random(f"templates {seed}")
    templates = [template(rng) for _ in range(150)]
    found = run(templates, seconds=600)
    assert {kind for kind, _ in found} == {"", "TemplateLimit", "TemplateFailure"}, f"seed {seed}"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds so small that a profiler can look on."""
    for module in (budget, operators, runtime, bounded):
        for name, value in {"MAX_TEXT": 100_000, "MAX_ITEMS": 10_000}.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(budget, "MAX_WORK", 50_000)
    monkeypatch.setattr(budget, "MAX_MEMORY", 4_000_000)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_counted_bounds_what_python_does(seed: int, small: None) -> None:
    """Calls as the profiler counts them, and memory as the allocator does: both stay near the counted figures."""
    rng = random.Random(f"counted {seed}")
    for number in range(60):
        text = template(rng)
        try:
            compiled = BoundedTemplate(text)
        except (TemplateLimit, TemplateFailure):
            continue
        calls = 0

        def count(frame: FrameType, event: str, argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        sys.setprofile(count)
        try:
            compiled.render(VARIABLES)
        except (TemplateLimit, TemplateFailure):
            pass
        finally:
            sys.setprofile(None)
            peak = tracemalloc.get_traced_memory()[1] - before
            tracemalloc.stop()
        assert calls < 6 * 50_000, f"seed {seed}, template {number}: {text}"
        assert peak < 2 * 4_000_000, f"seed {seed}, template {number}: {text}"


def test_the_same_template_always_ends_alike() -> None:
    rng = random.Random("alike")
    for number in range(40):
        text = template(rng)
        assert outcome(text) == outcome(text), f"template {number}: {text}"


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "work"),
        ("{{ 'x' * 10**9 }}", "the length of a text"),
        ("{{ [0] * 10**9 }}", "the length of a list"),
        ("{{ 10 ** 1000 }}", "the bits of an integer"),
        ("{{ '%99999d' % 1 }}", "the width of a format"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "the depth of macros and recursive loops"),
        ("{{ " + "(" * 999 + "1" + ")" * 999 + " }}", "the depth of a template"),
        ("x" * 300_000, "the length of a template"),
    ],
)
def test_the_error_names_the_bound_the_file_and_the_remedy(text: str, bound: str) -> None:
    with pytest.raises(RequestError) as caught:
        ChatTemplate(text, "models/evil.gguf", {}).render(
            [ChatMessage("user", "hi")], tools=(), options={}, add_generation_prompt=True
        )
    assert caught.value.subject == "models/evil.gguf"
    assert f"the bound on {bound} (" in caught.value.message
    assert "[model] chat_template = FILE" in caught.value.remedy


def test_an_error_keeps_nothing_of_what_the_template_made() -> None:
    compiled = BoundedTemplate("{% set x = 'y' * 1000000 %}{{ raise_exception('z' * 1000000) }}")
    with pytest.raises(TemplateFailure) as caught:
        compiled.render({})
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
    assert len(str(caught.value)) < 1000


def test_an_ordinary_long_conversation_is_far_from_the_bounds() -> None:
    """A thousand messages of a thousand characters, with a search through all messages for each."""
    text = (
        "{% for m in messages %}{% set ns = namespace(n=0) %}{% for o in messages[-100:] %}"
        "{% if o.role == m.role %}{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}"
        "<|{{ m.role }}|{{ ns.n }}>{{ m.content | trim }}{{ '\\n' }}{% endfor %}"
    )
    messages = [{"role": "user" if i % 2 else "assistant", "content": f" {i} " + "x" * 1000} for i in range(1000)]
    wanted = "".join(f"<|{m['role']}|50>{m['content'].strip()}\n" for m in messages)
    assert BoundedTemplate(text).render({"messages": messages}) == wanted


def test_variables_become_plain_data() -> None:
    class Text(str):
        def upper(self) -> str:
            raise AssertionError("called")

    class Anything:
        secret = 1

    text = "{{ a.upper() }}{{ b }}{{ b.secret is defined }}{{ c.x[0].y }}{{ d }}"
    given = {"a": Text("é"), "b": Anything(), "c": {"x": ({"y": 1},)}, "d": True}
    assert BoundedTemplate(text).render(given) == "É<Anything>False1True"
