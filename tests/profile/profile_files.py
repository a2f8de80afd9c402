"""Profiles as temporary files, loaded without this process's environment."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tokloom.core.profile import Problem, Profile, ProfileProblems, load_profile


def write(folder: Path, text: str, name: str = "p.toml") -> Path:
    """The bytes of `text`, line ends as they are."""
    path = folder / name
    path.write_bytes(text.encode())
    return path


def load(
    folder: Path,
    text: str,
    *,
    sets: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    claims: Mapping[str, type] | None = None,
) -> Profile:
    """A profile from TOML text; `schema = 1` is put on its first line."""
    path = write(folder, f"schema = 1\n{text}")
    return load_profile(path, sets=sets, environment=environment or {}, claims=claims)


def problems(
    folder: Path,
    text: str,
    *,
    sets: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    claims: Mapping[str, type] | None = None,
) -> tuple[Problem, ...]:
    """Everything that is wrong with a text, which is taken as it is."""
    path = write(folder, text)
    try:
        load_profile(path, sets=sets, environment=environment or {}, claims=claims)
    except ProfileProblems as error:
        return error.problems
    raise AssertionError("the profile was accepted")
