"""`on_unsupported`: what may be left out, when it is, and that the tokens stay the same."""

from typing import Any

import pytest
from compose_parts import (
    AnyOffer,
    changed,
    closing,
    compose,
    offer,
    raising,
    refusal,
    speculator,
    tier,
    tokens,
)

from tokloom.conformance.doubles import oracle
from tokloom.core.engine import EngineCore
from tokloom.sdk import (
    CompositionError,
    ConnectorCaps,
    LogitsCaps,
    ObserverCaps,
    PluginFault,
    SpeculatorCaps,
)

LOST = ImportError("no module", name="fastlib")


def section(plugin: str, **more: Any) -> dict[str, Any]:
    return {"plugin": plugin, "on_unsupported": "fallback", **more}


#: place -> (kind, capabilities, section around a plugin)
PLACES: dict[str, tuple[Any, Any, Any]] = {
    "speculation": ("speculator", SpeculatorCaps(), lambda given: {"speculation": given}),
    "kv.tiers.0": ("connector", ConnectorCaps(), lambda given: {"kv__tiers": [given]}),
    "observers.0": ("observer", ObserverCaps(), lambda given: {"observers": [given]}),
    "logits.0": ("logits", LogitsCaps(), lambda given: {"logits": [given]}),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_plugin_that_cannot_be_made_is_left_out_where_the_section_says_so(place: str) -> None:
    kind, caps, around = PLACES[place]
    broken = raising(kind, "broken", caps, LOST)
    made = compose(broken, **around(section("broken")))
    (text,) = made.composer.explanation.downgrades
    assert text.startswith(f"{place}: broken left out: {kind}.broken: its factory cannot import fastlib")
    assert "Install what local needs" in text
    assert text in made.text
    composition = made.composition
    assert composition.speculator is None
    assert not composition.connectors
    assert not composition.observers
    assert composition.processors == {}
    assert [choice.section for choice in made.composer.explanation.choices if choice.plugin == "broken"] == []


@pytest.mark.parametrize("place", PLACES)
def test_error_is_the_default(place: str) -> None:
    kind, caps, around = PLACES[place]
    for given in ("broken", {"plugin": "broken"}, {"plugin": "broken", "on_unsupported": "error"}):
        error = refusal(raising(kind, "broken", caps, LOST), kind=CompositionError, **around(given))
        assert error.subject == f"{kind}.broken"


@pytest.mark.parametrize("place", PLACES)
def test_a_name_that_nobody_offers_and_wrong_options_are_errors_all_the_same(place: str) -> None:
    kind, _, around = PLACES[place]
    unknown = str(refusal(**around(section("nobody"))))
    assert f"no installed plugin offers {kind} 'nobody'" in unknown
    fine = offer(kind, "fine", PLACES[place][1], lambda options, context: object())
    wrong = str(refusal(fine, **around(section("fine", options={"x": 1}))))
    assert "unknown key `x`" in wrong
    assert f"in `{place}.options.x`" in wrong


UNFIT: dict[str, tuple[dict[str, Any], tuple[AnyOffer, ...], str]] = {
    "trees": ({"speculation": section("oracle"), "attention": "tags-plain"}, (), "lacks tree"),
    "verify spans": (
        {"speculation": section("garbage"), "attention": "changed"},
        (changed("attention", "tags", phases=frozenset({"decode", "prefill"})),),
        "no attention kernel takes verify spans",
    ),
    "groups": (
        {"speculation": section("featured"), "kv__allocator": "changed"},
        (changed("allocator", "brute", max_groups=1),),
        "1 of the speculator) and the allocator manages 1",
    ),
    "rejection": (
        {"speculation": section("garbage"), "engine__verification": "rejection"},
        (),
        "dense_q",
    ),
    "lengths": (
        {"speculation": section("garbage-on-device"), "engine__depth": 1, "attention": "tags-plain"},
        (),
        "needs exact ones",
    ),
    "needs that raise": (
        {"speculation": section("s")},
        (speculator("s", lambda page: 1 // 0),),  # type: ignore[arg-type,return-value]
        "needs raised ZeroDivisionError",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_speculator_that_does_not_fit_is_left_out_and_the_tokens_are_the_same(case: str) -> None:
    sections, extra, text = UNFIT[case]
    made = compose(*extra, **sections)
    assert made.composition.speculator is None
    assert made.composition.needs.layers == ()
    assert {group.owner for group in made.composition.layout.groups} == {"model"}
    assert "speculation: " in made.given_up
    assert text in made.given_up
    engine = EngineCore(made.composition)
    assert tokens(engine, (1, 2, 3, 4, 5), 9) == oracle.expected_tokens((1, 2, 3, 4, 5), 9)
    engine.close()
    strict = {**sections, "speculation": sections["speculation"]["plugin"]}
    assert text in str(refusal(*extra, **strict))


def test_what_the_model_itself_needs_is_no_matter_of_speculation() -> None:
    error = refusal(
        changed("allocator", "brute", max_groups=1),
        model__path="tagged-window",
        speculation=section("featured"),
        kv__allocator="changed",
        kind=CompositionError,
    )
    assert "2 KV groups (2 of the model)" in error.message


def test_a_tier_that_fails_leaves_the_others_in_their_order() -> None:
    log: list[str] = []
    broken = raising("connector", "broken", ConnectorCaps(), OSError("no disk"))
    made = compose(tier("a", log), broken, tier("b", log), kv__tiers=["a", section("broken"), "b"])
    assert [part.name for part in made.composition.connectors] == ["a", "b"]
    assert "kv.tiers.1: broken left out: connector.broken: its factory raised OSError: no disk" in made.given_up
    assert log == []


def test_a_fitting_plugin_with_a_fallback_is_used() -> None:
    log: list[str] = []
    made = compose(tier("a", log), kv__tiers=[section("a")], speculation=section("oracle"))
    assert made.given_up == ""
    assert made.composition.speculator is not None
    assert made.composition.speculator.id == "speculator.oracle"
    assert len(made.composition.connectors) == 1


def test_nothing_else_falls_back() -> None:
    log: list[str] = []
    broken = raising("scheduler", "broken", compose().composition.scheduler.caps, LOST)
    watcher = closing("observer", "watch", ObserverCaps(), log)
    error = refusal(broken, watcher, scheduler="broken", kind=CompositionError)
    assert error.subject == "scheduler.broken"
    weird = raising("logits", "weird", LogitsCaps(role="grammar"), ValueError("x"))
    assert refusal(weird, logits=["weird"], kind=PluginFault).subject == "logits.weird"
