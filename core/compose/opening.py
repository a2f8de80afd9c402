"""open_model: finds the one model family that can open what a profile names, and opens it. No weights are read."""

from pathlib import Path

from tokloom.core.compose.builder import Builder, Made, ask, expect
from tokloom.core.composition import Part
from tokloom.core.context import EngineContext
from tokloom.core.profile import PluginSection, Problem, Profile, ProfileProblems
from tokloom.core.profile.errors import Place
from tokloom.core.profile.tree import Node
from tokloom.sdk import Model, ModelCaps, ModelFamily, ModelSource, ModelSpec, TokloomError

FamilyPart = Part[ModelFamily, ModelCaps]


def open_model(profile: Profile, builder: Builder, context: EngineContext) -> tuple[FamilyPart, Model]:
    """The family and what it opened. Raises ProfileProblems unless exactly one family claims the model, and whatever
    opening it raises.
    """
    section = profile.model
    if not section.path:
        help = "--model PATH, --set model.path=PATH, or [model] path in the profile"
        raise ProfileProblems([Problem("no model is named", profile.place("model"), "model.path", help)])
    source = source_of(section.path, section.dtype, _template(profile))
    if section.plugin:
        made = builder.make(_section(section.plugin, profile.place("model.plugin")), "model", context)
    else:
        made = _find(profile, builder, context, source)
    builder.keep(made)
    family = made.part.plugin
    model: Model = ask(made.part, "open", lambda: family.open(source))
    expect(made.part, "spec", ask(made.part, "spec", lambda: model.spec), ModelSpec)
    return made.part, model


def _template(profile: Profile) -> Path | None:
    """The file with the chat template, if the profile names one. Raises ProfileProblems if it is no file."""
    given = profile.model.chat_template
    if not given:
        return None
    path = Path(given).expanduser()
    if not path.is_file():
        place = profile.place("model.chat_template")
        help = "give a file with a Jinja template; a relative path is from the working directory"
        raise ProfileProblems([Problem(f"{given} is no file", place, "model.chat_template", help)])
    return path


def source_of(given: str, dtype: str = "", chat_template: Path | None = None) -> ModelSource:
    """What exists here is a path; anything else is a name that a family may know."""
    path = Path(given).expanduser()
    if path.exists():
        return ModelSource(path=path, dtype=dtype, chat_template=chat_template)
    return ModelSource(name=given, dtype=dtype, chat_template=chat_template)


def _find(profile: Profile, builder: Builder, context: EngineContext, source: ModelSource) -> Made:
    claimed: list[Made] = []
    reasons: list[str] = []
    for name in builder.names("model"):
        try:
            made = builder.make(_section(name, profile.place("model.plugin")), "model", context)
            if _claims(made, source):
                claimed.append(made)
        except TokloomError as error:  # somebody else may know the model
            reasons.append(str(error))
    if len(claimed) == 1:
        return claimed[0]
    raise ProfileProblems([_refusal(profile, source, claimed, reasons)])


def _claims(made: Made, source: ModelSource) -> bool:
    family = made.part.plugin
    if source.path is None and source.name in ask(made.part, "names", family.names):
        return True
    return bool(ask(made.part, "claims", lambda: family.claims(source)))


def _refusal(profile: Profile, source: ModelSource, claimed: list[Made], reasons: list[str]) -> Problem:
    place, path = profile.place("model.path"), profile.model.path
    if claimed:
        names = ", ".join(made.section.plugin for made in claimed)
        text = f"several model families claim {path}: {names}"
        return Problem(text, place, "model.path", "choose one with [model] plugin")
    if source.path is not None:
        help = "; ".join(reasons) or "a folder needs config.json; a file must end in .gguf"
        return Problem(f"no installed model family can open {path}", place, "model.path", help)
    help = "; ".join(["give a folder or a .gguf file that exists here; nothing is downloaded for this name", *reasons])
    return Problem(f"{path} does not exist and no plugin provides it", place, "model.path", help)


def _section(plugin: str, place: Place) -> PluginSection:
    node = Node(place, children={})
    return PluginSection("model", plugin, node, "error", node)
