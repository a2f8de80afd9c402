"""Each kind has a page, and the page shows each method of the kind's contracts with its parameters."""

import importlib
import inspect
from types import FunctionType
from typing import Protocol

import pytest
from markdown_pages import ROOT, signatures

from tokloom.core.hooks import Hooks
from tokloom.sdk.kinds import KINDS

PLUGIN_DOCS = ROOT / "docs" / "plugins"


def protocols(kind: str) -> list[type]:
    """The contracts that `sdk/contracts/KIND.py` defines."""
    module = importlib.import_module(f"tokloom.sdk.contracts.{kind}")
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__ and Protocol in value.__bases__
    ]
    assert found, f"{module.__name__} defines no Protocol"
    return found


def methods(kind: str) -> dict[str, set[tuple[str, ...]]]:
    """Method -> the parameter names it has in the kind's contracts, without self."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for protocol in protocols(kind):
        for name, value in vars(protocol).items():
            if isinstance(value, FunctionType) and not name.startswith("_"):
                found.setdefault(name, set()).add(tuple(inspect.signature(value).parameters)[1:])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_page(kind: str) -> None:
    assert (PLUGIN_DOCS / f"{kind}.md").is_file()


def test_every_page_belongs_to_a_kind() -> None:
    assert {path.stem for path in PLUGIN_DOCS.glob("*.md")} <= {*KINDS, "README"}


def existing() -> list[str]:
    return [kind for kind in KINDS if (PLUGIN_DOCS / f"{kind}.md").is_file()]


@pytest.mark.parametrize("kind", existing())
def test_a_page_shows_every_method_with_its_parameters(kind: str) -> None:
    text = (PLUGIN_DOCS / f"{kind}.md").read_text(encoding="utf-8")
    missing = [
        f"{method}({', '.join(parameters)})"
        for method, forms in methods(kind).items()
        for parameters in forms
        if parameters not in {names for _, names in signatures(text, method)}
    ]
    assert not missing, f"docs/plugins/{kind}.md does not show {missing}"


@pytest.mark.parametrize("kind", existing())
def test_no_heading_shows_a_method_with_other_parameters(kind: str) -> None:
    text = (PLUGIN_DOCS / f"{kind}.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    wrong = [
        f"line {line}: {lines[line - 1].strip()}"
        for method, forms in methods(kind).items()
        for line, names in signatures(text, method)
        if lines[line - 1].startswith("#") and names not in forms
    ]
    assert not wrong, f"docs/plugins/{kind}.md: {wrong}"


@pytest.mark.parametrize("kind", existing())
def test_a_page_names_its_contracts_and_its_hook(kind: str) -> None:
    text = (PLUGIN_DOCS / f"{kind}.md").read_text(encoding="utf-8")
    assert hasattr(Hooks, f"tokloom_{kind}")
    assert f"tokloom_{kind}" in text
    missing = [protocol.__name__ for protocol in protocols(kind) if f"`{protocol.__name__}" not in text]
    assert not missing, f"docs/plugins/{kind}.md does not name {missing}"
