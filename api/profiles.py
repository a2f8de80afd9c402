"""Profiles with the overrides that callers give. Needs no torch."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokloom.core.profile import ByteSize, Profile, Secret, between, load_profile, profile_schema
from tokloom.sdk import ProfileError

__all__ = ["ByteSize", "Profile", "Secret", "between", "profile_schema", "read_profile"]

#: tables of shipped front ends, which an embedder's engine does not read
FRONT_END_TABLES = ("serve",)


def read_profile(
    profile: str | Path | Mapping[str, Any],
    *,
    model: str | Path | Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    claims: Mapping[str, type] | None = None,
) -> Profile:
    """A profile with overrides.

    Args:
        model: shorthand for `model.path`; a mapping overrides the section `model`.
        sets: `section.key=value` texts, strongest.
        overrides: mapping of the profile's shape, between environment and `sets`; dotted keys are accepted.
        claims: table -> attrs class, for a front end that reads a table of its own; `Profile.claims` has the values.
    """
    changes = dict(overrides or {})
    if model is not None:
        changes["model"] = model if isinstance(model, Mapping) else {"path": str(model)}
    texts = [f"{path}={_toml(value, path)}" for path, value in _leaves(changes, "")]
    return load_profile(profile, sets=[*texts, *sets], claims=claims, ignore=FRONT_END_TABLES)


def _leaves(values: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        path = f"{prefix}{key}"
        found += _leaves(value, f"{path}.") if isinstance(value, Mapping) else [(path, value)]
    return found


def _toml(value: Any, path: str) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(item, path) for item in value)}]"
    if isinstance(value, Mapping):
        items = ", ".join(f"{_toml(str(key), path)} = {_toml(item, path)}" for key, item in value.items())
        return f"{{ {items} }}" if items else "{}"
    raise ProfileError(
        f"the override is {type(value).__name__}", subject=path, remedy="Use text, numbers, booleans, lists, mappings"
    )
