"""open_adapters: reads the metadata of the adapters that a profile names. No weights are read."""

from pathlib import Path

from tokloom.core.compose.builder import ask, expect
from tokloom.core.compose.opening import FamilyPart
from tokloom.core.composition import Adapter
from tokloom.core.profile import Problem, Profile, ProfileProblems
from tokloom.core.profile.schema import AdapterSection
from tokloom.sdk import AdaptableModel, AdapterInfo, Model


def open_adapters(profile: Profile, family: FamilyPart, model: Model) -> dict[str, Adapter]:
    """Name -> adapter, sorted by name. Raises ProfileProblems for a line of the profile, and CheckpointError for what
    is in an adapter's files.
    """
    sections = sorted(profile.adapters, key=lambda section: section.name)
    engine = profile.engine
    problems: list[Problem] = []
    if sections and not family.caps.adapters:
        help = "remove [adapters], or use a model family with the capability adapters"
        problems += [_problem(section, f"{family.id} takes no adapters", help) for section in sections]
    if len(sections) > engine.max_adapters:
        text = f"{len(sections)} adapters are named and engine.max_adapters is {engine.max_adapters}"
        problems.append(_problem(sections[-1], text, "name fewer, or raise engine.max_adapters"))
    problems += [
        _problem(section, f"{section.path} does not exist", "give a folder that exists here; nothing is downloaded")
        for section in sections
        if not _path(section).exists()
    ]
    if problems:
        raise ProfileProblems(problems)
    adaptable: AdaptableModel = model  # type: ignore[assignment]  # capability `adapters`
    found: dict[str, Adapter] = {}
    for section in sections:
        info = _open(family, adaptable, _path(section))
        if info.rank > engine.max_adapter_rank:
            text = f"its rank is {info.rank} and engine.max_adapter_rank is {engine.max_adapter_rank}"
            problems.append(_problem(section, text, "raise engine.max_adapter_rank, or leave the adapter out"))
        found[section.name] = Adapter(_path(section), info)
    if problems:
        raise ProfileProblems(problems)
    return found


def _open(family: FamilyPart, model: AdaptableModel, path: Path) -> AdapterInfo:
    return expect(family, "open_adapter", ask(family, "open_adapter", lambda: model.open_adapter(path)), AdapterInfo)


def adapter_bytes(adapters: dict[str, Adapter]) -> int:
    """Memory of the weights; adapters with equal digests are held once."""
    return sum({entry.info.digest: entry.info.nbytes for entry in adapters.values()}.values())


def _path(section: AdapterSection) -> Path:
    return Path(section.path).expanduser()


def _problem(section: AdapterSection, text: str, help: str) -> Problem:
    return Problem(text, section.place, f"adapters.{section.name}", help)
