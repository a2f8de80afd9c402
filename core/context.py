"""EngineContext: the Context of one engine. The composer makes it; the engine binds what exists only later."""

import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tokloom.core.logs import get_logger
from tokloom.sdk import DeviceInfo, KVLayout, Limits, Logger, ModelSpec, PageAccess, PluginFault, SeqId, Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

DraftSampler = Callable[[SeqId, int, "Tensor"], int]


class EngineContext:
    """Implements `tokloom.sdk.Context`. Values that do not exist yet raise PluginFault with the reason."""

    def __init__(
        self,
        *,
        device: DeviceInfo,
        dtype: str,
        limits: Limits,
        model: ModelSpec | None = None,
        tokenizer: Tokenizer | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._device = device
        self._dtype = dtype
        self._limits = limits
        self._now = now
        self._model = model
        self._tokenizer = tokenizer
        self._layout: KVLayout | None = None
        self._pages: PageAccess | None = None
        self._sample_draft: DraftSampler | None = None
        self._uniform: Callable[[int, int, int], float] | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._woken = threading.Event()

    def bind_model(self, model: ModelSpec, tokenizer: Tokenizer | None, limits: Limits) -> None:
        """The model is open: its dtype and the limits that follow from it replace what the profile says."""
        self._model = model
        self._tokenizer = tokenizer
        self._dtype = model.dtype
        self._limits = limits

    def bind_layout(self, layout: KVLayout) -> None:
        self._layout = layout

    def bind_pages(self, pages: PageAccess) -> None:
        self._pages = pages

    def bind_sampling(self, uniform: Callable[[int, int, int], float], sample_draft: DraftSampler) -> None:
        self._uniform = uniform
        self._sample_draft = sample_draft

    @property
    def device(self) -> DeviceInfo:
        return self._device

    @property
    def dtype(self) -> str:
        return self._dtype

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def model(self) -> ModelSpec:
        return _bound(self._model, "model", "the model is opened")

    @property
    def tokenizer(self) -> Tokenizer | None:
        _bound(self._model, "tokenizer", "the model is opened")
        return self._tokenizer

    @property
    def layout(self) -> KVLayout:
        return _bound(self._layout, "layout", "formats and pools are negotiated")

    @property
    def pages(self) -> PageAccess:
        return _bound(self._pages, "pages", "the pools are allocated")

    @property
    def log(self) -> Logger:
        return get_logger("plugin")

    @property
    def scratch(self) -> Path:
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="tokloom-")
        return Path(self._scratch.name)

    @property
    def now(self) -> Callable[[], float]:
        return self._now

    @property
    def wake(self) -> Callable[[], None]:
        return self._woken.set

    def wait(self, timeout: float) -> bool:
        """Sleep until somebody wakes the engine, at most `timeout` seconds; clears the wake-up."""
        woken = self._woken.wait(timeout)
        self._woken.clear()
        return woken

    def uniform(self, seed: int, position: int, stream: int) -> float:
        return _bound(self._uniform, "uniform", "the engine runs")(seed, position, stream)

    def sample_draft(self, seq_id: SeqId, depth: int, q_logits: "Tensor") -> int:
        return _bound(self._sample_draft, "sample_draft", "the engine runs")(seq_id, depth, q_logits)

    def close(self) -> None:
        """Delete the scratch folder."""
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None


def _bound(value: T | None, name: str, when: str) -> T:
    if value is None:
        raise PluginFault(f"context.{name} does not exist before {when}", remedy="Read it when it is first needed")
    return value
