"""The embedding API: engines that take text or token ids."""

if __name__ != "tokloom.api":
    raise ImportError("import tokloom.api, not api: the folder is reached through the installed package")

from tokloom.api.async_engine import AsyncEngine
from tokloom.api.engine import Engine
from tokloom.api.loading import open_tokenizer
from tokloom.api.types import Event, GenerateRequest, Result, TokenLogprobs, Usage

__all__ = [
    "AsyncEngine",
    "Engine",
    "Event",
    "GenerateRequest",
    "Result",
    "TokenLogprobs",
    "Usage",
    "open_tokenizer",
]
