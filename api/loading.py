"""From a profile to a running core."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokloom.core.catalog import Catalog
from tokloom.core.compose import Composer
from tokloom.core.engine import EngineCore
from tokloom.core.profile import Profile, load_profile
from tokloom.sdk import ModelSource, RequestError, Tokenizer, TokloomError

#: tables of shipped front ends, which an embedder's engine does not read
FRONT_END_TABLES = ("serve",)

Progress = Callable[[int, int, str], None]


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
        import json

        return json.dumps(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {_toml(item)}' for key, item in value.items())} }}"
    return str(value)


def start(profile: Profile, catalog: Catalog | None, progress: Progress | None) -> EngineCore:
    """Compose and load."""
    composition = Composer(profile, catalog or Catalog()).compose()
    return EngineCore(composition, progress=progress) if progress else EngineCore(composition)


def open_tokenizer(model: str | Path, catalog: Catalog | None = None) -> Tokenizer:
    """The tokenizer of a model folder or file, without loading weights. Raises RequestError if it has none."""
    from tokloom.core.context import EngineContext
    from tokloom.core.device import resolve
    from tokloom.sdk import Limits

    installed = catalog or Catalog()
    source = ModelSource(path=Path(model).expanduser())
    limits = Limits(max_batch_tokens=1, max_sequences=1, max_model_tokens=1, max_draft_tokens=0, page_tokens=1)
    context = EngineContext(device=resolve("auto").info, dtype="", limits=limits)
    for row in installed.listed("model"):
        try:
            offer = installed.resolve("model", row.qualified).offer
            family = offer.factory(offer.config(), context)
            if family.claims(source):
                tokenizer: Tokenizer | None = family.open(source).tokenizer
                if tokenizer is not None:
                    return tokenizer
        except TokloomError:
            continue
    raise RequestError("no tokenizer found", subject=str(model), remedy="Give a model folder or file that carries one")
