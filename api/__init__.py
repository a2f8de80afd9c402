"""The embedding API: engines that take text or token ids. Names are loaded when they are first used."""

from typing import TYPE_CHECKING, Any

if __name__ != "tokloom.api":
    raise ImportError("import tokloom.api, not api: the folder is reached through the installed package")

if TYPE_CHECKING:
    from tokloom.api.async_engine import AsyncEngine
    from tokloom.api.engine import Engine
    from tokloom.api.loading import open_tokenizer
    from tokloom.api.snapshot import Snapshot
    from tokloom.api.types import Event, GenerateRequest, Result, TokenLogprobs, Usage

_HOMES = {
    "AsyncEngine": "async_engine",
    "Engine": "engine",
    "Event": "types",
    "GenerateRequest": "types",
    "Result": "types",
    "Snapshot": "snapshot",
    "TokenLogprobs": "types",
    "Usage": "types",
    "open_tokenizer": "loading",
}

__all__ = [
    "AsyncEngine",
    "Engine",
    "Event",
    "GenerateRequest",
    "Result",
    "Snapshot",
    "TokenLogprobs",
    "Usage",
    "open_tokenizer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tokloom.api' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"tokloom.api.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
