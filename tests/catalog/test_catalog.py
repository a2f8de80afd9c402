"""Discovery: healthy plugins are found, broken ones are explained and stop nobody."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tokloom.core.catalog import Catalog
from tokloom.sdk import CompositionError, NoOptions, Offer, SchedulerCaps

HEALTHY = """
from tokloom.sdk import NoOptions, Offer, SchedulerCaps, hookimpl

@hookimpl
def tokloom_scheduler():
    return [Offer(kind="scheduler", name="NAME", contract="0.1", capabilities=SchedulerCaps(),
                  factory=lambda options, context: None, summary="fine")]
"""


def install(site: Path, distribution: str, name: str, code: str, kind: str = "scheduler") -> None:
    """A distribution with one entry point, as pip would leave it."""
    module = distribution.replace("-", "_")
    (site / f"{module}.py").write_text(textwrap.dedent(code).replace("NAME", name))
    info = site / f"{module}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[tokloom.plugins]\n{kind}.{name} = {module}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


BROKEN: dict[str, tuple[str, list[str]]] = {
    "import error": ("import nothing_of_that_name", ["importing", "ModuleNotFoundError"]),
    "exits": ("raise SystemExit(3)", ["SystemExit"]),
    "syntax": ("def (", ["SyntaxError"]),
    "misspelt": (HEALTHY.replace("tokloom_scheduler", "tokloom_sheduler"), ["tokloom_sheduler", "tokloom_scheduler?"]),
    "no marker": (HEALTHY.replace("@hookimpl", ""), ["no hook tokloom_scheduler", "hookimpl"]),
    "raises": (HEALTHY.replace("return [", "raise ValueError('oh')\n    return ["), ["tokloom_scheduler raised", "oh"]),
    "no list": (HEALTHY.replace("return [", "return (lambda x: x)([").rstrip() + "[0])", ["returned Offer", "list"]),
    "argument": (HEALTHY.replace("tokloom_scheduler()", "tokloom_scheduler(x)"), ["do not fit"]),
    "other things": (HEALTHY.split("return")[0] + "return [3]", ["int", "no offer named"]),
    "other name": (HEALTHY.replace('name="NAME"', 'name="else"'), ["'else'", "no offer named"]),
    "newer contract": (HEALTHY.replace('"0.1"', '"0.9"'), ["contract 0.9", "0.1"]),
    "other major": (HEALTHY.replace('"0.1"', '"3.0"'), ["contract 3.0", "0.1"]),
    "no version": (HEALTHY.replace('"0.1"', '"new"'), ["MAJOR.MINOR"]),
    "capabilities": (
        HEALTHY.replace("SchedulerCaps", "OpCaps"),
        ["OpCaps", "SchedulerCaps"],
    ),
    "unknown capability": (
        HEALTHY.replace("SchedulerCaps()", 'SchedulerCaps(head_of_line="skpi")'),
        ["head_of_line", "did you mean skip"],
    ),
    "kind": (HEALTHY.replace('kind="scheduler"', 'kind="ops"'), ["kind 'ops'"]),
    "config": (HEALTHY.replace("factory", "config=dict, factory"), ["frozen attrs class"]),
    "factory": (HEALTHY.replace("lambda options, context: None", "3"), ["factory cannot be called"]),
    "extra": (HEALTHY.replace("summary", 'extras=frozenset({"fast"}), summary'), ["x-DIST.name"]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_is_explained_and_stops_nobody(site: Path, case: str) -> None:
    code, words = BROKEN[case]
    name = "broken-" + case.replace(" ", "-")
    install(site, name, "bad", code)
    install(site, "good-" + case.replace(" ", "-"), "good", HEALTHY)
    catalog = Catalog(path=[str(site)])
    rows = {row.listed.name: row for row in catalog.inspect()}
    assert rows["good"].problem == ""
    assert rows["good"].summary == "fine"
    for word in words:
        assert word in rows["bad"].problem, rows["bad"].problem
    with pytest.raises(CompositionError) as caught:
        catalog.resolve("scheduler", "bad")
    assert name in str(caught.value)
    assert catalog.resolve("scheduler", "good").offer.name == "good"


def test_a_kind_that_does_not_exist_is_explained(site: Path) -> None:
    install(site, "odd-kind", "x", HEALTHY, kind="shceduler")
    (row,) = Catalog(path=[str(site)]).inspect()
    assert "no known kind" in row.problem
    assert "scheduler?" in row.problem


def test_a_bare_name_of_two_distributions_is_an_error_only_when_used(site: Path) -> None:
    install(site, "first-dist", "twin", HEALTHY)
    install(site, "second-dist", "twin", HEALTHY)
    install(site, "third-dist", "single", HEALTHY)
    catalog = Catalog(path=[str(site)])
    assert catalog.resolve("scheduler", "single").listed.distribution == "third-dist"
    with pytest.raises(CompositionError, match="first-dist/twin, second-dist/twin"):
        catalog.resolve("scheduler", "twin")
    assert catalog.resolve("scheduler", "second-dist/twin").listed.distribution == "second-dist"


def test_an_unknown_name_suggests_a_near_one(site: Path) -> None:
    install(site, "near-dist", "paged", HEALTHY)
    with pytest.raises(CompositionError, match="Did you mean paged"):
        Catalog(path=[str(site)]).resolve("scheduler", "pagd")


def test_offers_can_be_given_directly() -> None:
    offer: Offer[NoOptions, None] = Offer(
        kind="scheduler",
        name="own",
        contract="0.1",
        capabilities=SchedulerCaps(),
        factory=lambda options, context: None,
    )
    catalog = Catalog(path=[], extra=[offer])
    assert catalog.resolve("scheduler", "own").offer is offer
    assert catalog.resolve("scheduler", "local/own").offer is offer


def test_listing_imports_nothing(site: Path) -> None:
    install(site, "noisy-dist", "loud", "raise SystemExit('imported')")
    code = (
        "import sys\nfrom tokloom.core.catalog import Catalog\n"
        f"rows = Catalog(path=[{str(site)!r}]).listed()\n"
        "assert [row.name for row in rows] == ['loud'], rows\n"
        "assert not {'torch', 'noisy_dist'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_first_party_plugin_can_be_used() -> None:
    rows = [row for row in Catalog().inspect() if row.listed.distribution == "tokloom"]
    assert len(rows) >= 11
    assert [row.problem for row in rows if row.problem] == []
