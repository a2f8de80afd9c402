"""read_poolings: how a folder wants its hidden states pooled, from the files that sentence-transformers writes."""

from pathlib import Path
from typing import Final

from tokloom.plugins.models.decoder.sources import read_json, read_value
from tokloom.sdk import CheckpointError, Pooling

_MODULES: Final = "modules.json"
#: keys and values of a pooling's config.json -> ours
_MODES: Final[dict[str, Pooling]] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
    "mean": "mean",
    "lasttoken": "last",
}
_PLAIN: Final[tuple[Pooling, ...]] = ("last", "mean")


def read_poolings(path: Path) -> tuple[Pooling, ...]:
    """What a folder allows, its own way first: both where it says nothing, one where it says which, and none where it
    wants something that is not supported (another mode, several at once, or a layer behind the pooling).

    Raises CheckpointError naming the file if one of them is damaged.
    """
    modules = path / _MODULES
    if not modules.is_file():
        own = path / "1_Pooling" / "config.json"
        return _of_config(own) if own.is_file() else _PLAIN
    entries = read_value(modules)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise CheckpointError("is no list of modules", subject=str(modules), remedy="Get the file again")
    kinds = [str(entry.get("type", "")).rpartition(".")[2] for entry in entries]
    if set(kinds) - {"Transformer", "Pooling", "Normalize"} or kinds.count("Pooling") != 1:
        return ()
    folder = str(entries[kinds.index("Pooling")].get("path", ""))
    return _of_config(path / folder / "config.json")


def _of_config(file: Path) -> tuple[Pooling, ...]:
    raw = read_json(file)
    named = raw.get("pooling_mode")
    wanted = [key for key, value in raw.items() if key.startswith("pooling_mode_") and value is True]
    wanted += [named] if isinstance(named, str) else []
    found = _MODES.get(wanted[0]) if len(wanted) == 1 else None
    return () if found is None else (found,)
