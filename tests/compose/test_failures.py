"""Compositions that fail: the error says whose fault it is, and nothing that was made stays open."""

import logging
from pathlib import Path
from typing import Any

import pytest
from compose_parts import (
    AnyOffer,
    closing,
    compose,
    layer,
    model,
    offer,
    raising,
    refusal,
    speculator,
    tier,
)

from tokloom.core.profile import ProfileProblems
from tokloom.sdk import (
    CompositionError,
    Context,
    ContractVersion,
    LogitsCaps,
    ModelCaps,
    NoOptions,
    ObserverCaps,
    Offer,
    PluginFault,
    SchedulerCaps,
    TokloomError,
    WeightCaps,
)

BAD = ValueError("broken inside")


def scheduler(error: BaseException) -> AnyOffer:
    return raising("scheduler", "bad", SchedulerCaps(), error)


def test_a_factory_that_raises_is_a_fault_of_its_plugin() -> None:
    error = refusal(scheduler(BAD), scheduler="bad", kind=PluginFault)
    assert error.subject == "scheduler.bad"
    assert error.message == "its factory raised ValueError: broken inside"
    assert "authors of local" in error.remedy
    assert error.__cause__ is BAD


def test_a_library_that_is_missing_is_named_with_what_to_install() -> None:
    error = refusal(scheduler(ImportError("No module", name="fastlib")), scheduler="bad", kind=CompositionError)
    assert (error.subject, error.message) == ("scheduler.bad", "its factory cannot import fastlib")
    assert "Install what local needs" in error.remedy
    nameless = refusal(scheduler(ImportError("libfoo.so: cannot open")), scheduler="bad", kind=CompositionError)
    assert "libfoo.so: cannot open" in nameless.message


def test_errors_of_our_own_tree_stay_as_they_are() -> None:
    own = CompositionError("no such card", subject="scheduler.bad", remedy="Buy one")
    assert refusal(scheduler(own), scheduler="bad") is own


def test_a_factory_that_returns_nothing_is_a_fault() -> None:
    nothing = offer("scheduler", "none", SchedulerCaps(), lambda options, context: None)
    error = refusal(nothing, scheduler="none", kind=PluginFault)
    assert (error.subject, error.message) == ("scheduler.none", "its factory returned nothing")


def test_an_unknown_plugin_is_shown_where_it_is_named_with_the_nearest_one() -> None:
    error = refusal(kind=ProfileProblems, sets=["scheduler=plian"])
    (problem,) = error.problems  # type: ignore[attr-defined]
    assert "no installed plugin offers scheduler 'plian'" in problem.message
    assert str(problem.place) == "--set scheduler=plian"
    assert problem.key == "scheduler"
    assert "Did you mean plain?" in problem.help
    assert "Installed: broken, chaos, plain, refusing" in problem.help


def test_an_offer_of_another_contract_is_refused_with_both_versions() -> None:
    ours = compose().composition.scheduler
    assert ours.name == "plain"
    newer: AnyOffer = Offer(
        kind="scheduler",
        name="newer",
        contract=ContractVersion(7, 0),
        capabilities=SchedulerCaps(),
        factory=lambda options, context: None,
    )
    text = str(refusal(newer, scheduler="newer"))
    assert "contract 7.0; this core has 0.1" in text


def test_a_missing_section_is_named() -> None:
    text = str(refusal(kind=ProfileProblems, scheduler="off", weights="off", attention="off"))
    for path in ("scheduler", "weights", "attention"):
        assert f"section [{path}] is missing" in text
    assert "extend builtin:cpu, or name a plugin" in text


def test_two_logits_plugins_of_one_name_are_refused() -> None:
    twice = [{"plugin": "shift"}, "local/shift"]
    error = refusal(kind=ProfileProblems, logits=twice)
    (problem,) = error.problems  # type: ignore[attr-defined]
    assert problem.message == "two processors are called shift: a request could not say which"
    assert problem.key == "logits.1"
    made = compose(logits=["shift", "parity"]).composition
    assert (list(made.processors), list(made.grammars)) == (["shift"], ["parity"])


# -- nothing stays open ------------------------------------------------------------------------------------------------


def late(error: BaseException) -> AnyOffer:
    """The last plugin that is made."""
    return raising("logits", "late", LogitsCaps(), error)


def test_what_was_made_is_closed_in_reverse_order_if_a_later_plugin_fails() -> None:
    log: list[str] = []
    extra = (tier("a", log), tier("b", log), closing("observer", "o", ObserverCaps(), log), late(BAD))
    error = refusal(*extra, kv__tiers=["a", "b"], observers=["o"], logits=["late"], kind=PluginFault)
    assert error.subject == "logits.late"
    assert log == ["o", "b", "a"]


@pytest.mark.parametrize("error", [CompositionError("no"), ImportError("x"), KeyboardInterrupt(), SystemExit(3)])
def test_it_is_closed_whatever_ends_composing(error: BaseException) -> None:
    log: list[str] = []
    with pytest.raises((TokloomError, KeyboardInterrupt, SystemExit)):
        compose(tier("a", log), late(error), kv__tiers=["a"], logits=["late"])
    assert log == ["a"]


def test_it_is_closed_if_a_requirement_is_not_met_or_options_are_wrong() -> None:
    log: list[str] = []
    refusal(tier("a", log), kv__tiers=["a"], scheduler={"plugin": "plain", "options": {"x": 1}})
    assert log == ["a"]
    refusal(tier("b", log), kv__tiers=["b", "nobody"])
    assert log == ["a", "b"]


def test_a_fault_in_close_hides_neither_the_first_error_nor_other_plugins(caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []
    extra = (tier("a", log), tier("b", log, RuntimeError("stuck")), tier("c", log), late(BAD))
    with caplog.at_level(logging.WARNING, "tokloom"):
        error = refusal(*extra, kv__tiers=["a", "b", "c"], logits=["late"], kind=PluginFault)
    assert error.subject == "logits.late"
    assert log == ["c", "b", "a"]
    assert "connector.b" in caplog.text + repr([record.__dict__ for record in caplog.records])


def test_nothing_is_closed_if_composing_works() -> None:
    log: list[str] = []
    compose(tier("a", log), closing("observer", "o", ObserverCaps(), log), kv__tiers=["a"], observers=["o"])
    assert log == []


def test_scratch_folders_do_not_outlive_a_failure() -> None:
    folders: list[Path] = []

    def make(options: NoOptions, context: Context) -> Any:
        folders.append(context.scratch)
        raise BAD

    refusal(offer("scheduler", "scratchy", SchedulerCaps(), make), scheduler="scratchy")
    (folder,) = folders
    assert not folder.exists()


# -- models ------------------------------------------------------------------------------------------------------------


def family(name: str, models: tuple[str, ...], error: BaseException | None = None) -> AnyOffer:
    """A family under another name that knows `models`; or whose `names` raises."""
    inner = model([layer(0)])

    def make(options: Any, context: Context) -> Any:
        made = inner.factory(options, context)

        def names() -> dict[str, str]:
            if error is not None:
                raise error
            return dict.fromkeys(models, "")

        made.names = names
        return made

    return offer("model", name, ModelCaps(), make)


def test_a_model_that_several_families_claim_is_refused_with_their_names() -> None:
    text = str(refusal(family("one", ("m",)), family("two", ("m",)), model__path="m", kind=ProfileProblems))
    assert "several model families claim m: local/one, local/two" in text
    assert "[model] plugin" in text
    chosen = compose(
        family("one", ("m",)),
        family("two", ("m",)),
        model={"path": "m", "plugin": "two"},
        attention="null",
        kv__codec="null",
    )
    assert [c.plugin for c in chosen.composer.explanation.choices if c.kind == "model"] == ["two"]


def test_only_the_family_that_opens_the_model_is_explained() -> None:
    made = compose(family("one", ()), family("two", ("m",)), model__path="m", attention="null", kv__codec="null")
    assert [c.plugin for c in made.composer.explanation.choices if c.kind == "model"] == ["two"]


def test_a_family_that_fails_to_look_stops_nobody_else() -> None:
    bad = family("bad", (), RuntimeError("cannot look"))
    made = compose(bad, family("two", ("m",)), model__path="m", attention="null", kv__codec="null")
    assert made.composition.model.spec.name == "inline"
    text = str(refusal(bad, model__path="nobody-has-it", kind=ProfileProblems))
    assert "nobody-has-it does not exist and no plugin provides it" in text
    assert "names raised RuntimeError: cannot look" in text


def test_no_model_is_a_problem_that_says_how_to_name_one() -> None:
    text = str(refusal(model={}, kind=ProfileProblems))
    assert "no model is named" in text
    assert "--model PATH" in text


def test_an_open_that_raises_is_a_fault_of_the_family() -> None:
    def make(options: Any, context: Context) -> Any:
        made = model([layer(0)]).factory(options, context)

        def fail(source: Any) -> Any:
            raise IndexError("no layers")

        made.open = fail
        return made

    error = refusal(offer("model", "bad", ModelCaps(), make), model={"path": "inline", "plugin": "bad"})
    assert (error.subject, error.message) == ("model.bad", "open raised IndexError: no layers")


def test_answers_of_wrong_types_are_faults() -> None:
    def make(options: Any, context: Context) -> Any:
        made = model([layer(0)]).factory(options, context)
        made.open = lambda source: object() if source.dtype else None
        return made

    bad = offer("model", "bad", ModelCaps(), make)
    error = refusal(bad, model={"path": "inline", "plugin": "bad"}, kind=PluginFault)
    assert (error.subject, error.message[:27]) == ("model.bad", "spec raised AttributeError:")
    error = refusal(speculator("s", lambda page: None), speculation="s", kind=PluginFault)  # type: ignore[arg-type,return-value]
    assert (error.subject, error.message) == ("speculator.s", "needs gave NoneType, expected SpecNeeds")
    unsure = offer("weights", "unsure", WeightCaps(), lambda options, context: Unsure())
    error = refusal(unsure, weights="unsure", kind=PluginFault)
    assert (error.subject, error.message[:23]) == ("weights.unsure", "claim raised TypeError:")


class Unsure:
    """A weight method that gives no score."""

    def claim(self, checkpoint: object) -> None:
        return None


def test_a_context_longer_than_the_models_is_refused_with_both_numbers() -> None:
    text = str(refusal(engine__max_model_tokens=600, kind=ProfileProblems))
    assert "is 600 and the model's context is 512" in text


def test_factories_see_what_was_decided_before_them() -> None:
    seen: dict[str, Any] = {}

    def make(options: NoOptions, context: Context) -> Any:
        seen.update(limits=context.limits, dtype=context.dtype, model=context.model.name, groups=context.layout.groups)
        return object()

    compose(offer("observer", "look", ObserverCaps(), make), observers=["look"], engine__max_sequences=50)
    assert seen["dtype"] == "float64"
    assert seen["model"] == "tagged"
    assert seen["limits"].max_sequences == 32, "no more than rows of a step"
    assert seen["limits"].max_model_tokens == 120
    assert len(seen["groups"]) == 1
