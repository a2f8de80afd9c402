"""Tokloom: a plugin-based microkernel for LLM inference.

The names below are loaded when they are first used: importing `tokloom` needs neither torch nor a model.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokloom.api import AsyncEngine, Engine, Event, GenerateRequest, Result, TokenLogprobs, Usage
    from tokloom.core.catalog import Catalog
    from tokloom.sdk import CapacityError, ChatMessage, Objectives, RequestError, SamplingParams, TokloomError, TraceContext

__version__ = "0.1.0"

_HOMES = {
    "AsyncEngine": "tokloom.api",
    "CapacityError": "tokloom.sdk",
    "Catalog": "tokloom.core.catalog",
    "ChatMessage": "tokloom.sdk",
    "Engine": "tokloom.api",
    "Event": "tokloom.api",
    "GenerateRequest": "tokloom.api",
    "Objectives": "tokloom.sdk",
    "RequestError": "tokloom.sdk",
    "Result": "tokloom.api",
    "SamplingParams": "tokloom.sdk",
    "TokenLogprobs": "tokloom.api",
    "TokloomError": "tokloom.sdk",
    "TraceContext": "tokloom.sdk",
    "Usage": "tokloom.api",
}

__all__ = [
    "AsyncEngine",
    "CapacityError",
    "Catalog",
    "ChatMessage",
    "Engine",
    "Event",
    "GenerateRequest",
    "Objectives",
    "RequestError",
    "Result",
    "SamplingParams",
    "TokenLogprobs",
    "TokloomError",
    "TraceContext",
    "Usage",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tokloom' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
