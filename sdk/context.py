"""Context: everything a factory gets besides its own configuration."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from attrs import frozen

from tokloom.sdk.contracts.connector import PageAccess
from tokloom.sdk.contracts.model import ModelSpec, Tokenizer
from tokloom.sdk.values.kv import KVLayout
from tokloom.sdk.values.requests import SeqId

if TYPE_CHECKING:
    from torch import Tensor


@frozen(kw_only=True)
class DeviceInfo:
    """Where tensors live.

    Attributes:
        type: `cpu`, `cuda`, …: torch's device type.
        name: torch's device string, for example `cuda:0`.
        threads: host threads the engine may use for compute.
        memory_bytes: memory of the device.
    """

    type: str
    name: str
    threads: int
    memory_bytes: int


@frozen(kw_only=True)
class Limits:
    """The profile's bounds. `max_batch_tokens` counts target rows of a step, drafts included."""

    max_batch_tokens: int
    max_sequences: int
    max_model_tokens: int
    max_draft_tokens: int
    page_tokens: int


class Logger(Protocol):
    """A bound structured logger. Nothing is printed unless the host configures logging."""

    def debug(self, event: str, **fields: str | int | float) -> None: ...

    def info(self, event: str, **fields: str | int | float) -> None: ...

    def warning(self, event: str, **fields: str | int | float) -> None: ...

    def error(self, event: str, **fields: str | int | float) -> None: ...


class Context(Protocol):
    """Handed to every factory. Two engines have two contexts; nothing in it is global."""

    @property
    def device(self) -> DeviceInfo: ...

    @property
    def dtype(self) -> str:
        """Compute dtype of the model, as torch names it without the prefix."""
        ...

    @property
    def limits(self) -> Limits: ...

    @property
    def model(self) -> ModelSpec:
        """The opened model. Raises PluginFault inside the factories of kind `model`, where there is none yet."""
        ...

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The opened model's, None if it has none. Raises PluginFault where `model` does."""
        ...

    @property
    def layout(self) -> KVLayout:
        """Groups and pools. Raises PluginFault before negotiation is over: use it in factories of kinds `allocator`
        and `connector`, and after construction elsewhere.
        """
        ...

    @property
    def pages(self) -> PageAccess:
        """Bytes of device pages. Raises PluginFault before the pools exist: read it when first needed."""
        ...

    @property
    def log(self) -> Logger: ...

    @property
    def scratch(self) -> Path:
        """A private folder that exists and is deleted with the engine."""
        ...

    @property
    def now(self) -> Callable[[], float]:
        """The engine's monotonic clock, seconds."""
        ...

    @property
    def wake(self) -> Callable[[], None]:
        """Thread-safe: make an idle loop run a step. A connector's thread calls it after each end of a job."""
        ...

    def uniform(self, seed: int, position: int, stream: int) -> float:
        """A float64 in [0, 1) that depends on nothing but its arguments (a counter-based generator)."""
        ...

    def sample_draft(self, seq_id: SeqId, depth: int, q_logits: "Tensor") -> int:
        """Draw a draft token from `softmax(q_logits)` `[V]` with the core's generator, and keep q for verification.

        `depth` is 1 for a child of the last committed token. For speculators, inside `propose`. Raises PluginFault
        where `q_logits` is no law over the vocabulary.
        """
        ...
