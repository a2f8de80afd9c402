"""Profiles with the overrides that callers give. Needs no torch."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokloom.core.profile import Profile, load_profile, profile_schema

__all__ = ["Profile", "profile_schema", "read_profile"]

#: tables of shipped front ends, which an embedder's engine does not read
FRONT_END_TABLES = ("serve",)


def read_profile(
    profile: str | Path | Mapping[str, Any],
    *,
    model: str | Path | None = None,
    sets: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
) -> Profile:
    """A profile with overrides.

    Args:
        model: shorthand for `model.path`.
        sets: `section.key=value` texts, strongest.
        overrides: mapping of the profile's shape, between environment and `sets`.
    """
    texts = [f"{path}={_toml(value)}" for path, value in _leaves(overrides or {}, "")]
    if model is not None:
        texts.append(f"model.path={_toml(str(model))}")
    return load_profile(profile, sets=[*texts, *sets], ignore=FRONT_END_TABLES)


def _leaves(values: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        path = f"{prefix}{key}"
        found += _leaves(value, f"{path}.") if isinstance(value, Mapping) else [(path, value)]
    return found


def _toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {_toml(item)}' for key, item in value.items())} }}"
    return str(value)
