"""The doubles as a catalog sees them: ordinary offers, found without torch."""

import subprocess
import sys
from typing import Any

import pytest
from doubles_rig import build, folder

from tokloom.conformance.doubles import offers
from tokloom.core.catalog import Catalog
from tokloom.sdk import KVGroup, KVLayout

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from tokloom import conformance
from tokloom.conformance import doubles
assert len(doubles.offers()) > 20
assert "numpy" not in sys.modules
"""


def test_offers_are_listed_without_torch() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH], check=True)


def test_the_catalog_takes_every_double() -> None:
    catalog = Catalog(extra=offers())
    for offer in offers():
        found: Any = catalog.resolve(offer.kind, offer.name)
        assert found.offer.capabilities == offer.capabilities


def test_names_are_unique_in_their_kind() -> None:
    names = [(offer.kind, offer.name) for offer in offers()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("offer", offers(), ids=lambda offer: f"{offer.kind}.{offer.name}")
def test_two_factories_calls_give_two_plugins(offer: Any) -> None:
    layout = KVLayout((KVGroup(0, "model", (0,), build("codec", "tagdense").formats(_spec(), 4)[0].main),), (5,), (0,))
    first, second = (build(offer.kind, offer.name, layout=layout) for _ in range(2))
    assert first is not second


def _spec() -> Any:
    from doubles_rig import context

    return context().model.layers[0]


def test_every_module_of_the_doubles_is_behind_an_offer_or_is_shared() -> None:
    modules = {path.stem for path in folder().glob("*.py")} - {"__init__", "offers", "oracle", "harness"}
    text = (folder() / "offers.py").read_text()
    assert all(f'"{module}:' in text for module in modules)
