"""The sections that the core owns, as attrs classes. Their metadata makes the reference in docs and the JSON Schema."""

from typing import Any, Literal

from attrs import Attribute, field, frozen

from tokloom.core.profile.errors import Place
from tokloom.core.profile.tree import Node
from tokloom.core.profile.types import AutoByteSize, AutoInt

#: the schema number that profiles are written in
SCHEMA = 1


def _help(text: str) -> dict[str, str]:
    return {"help": text}


def between(low: float, high: float) -> Any:
    """A validator: `low <= value <= high`. `auto` (0) passes where the type allows it."""

    def check(instance: object, attribute: "Attribute[Any]", value: float) -> None:
        auto = attribute.type in (AutoInt, AutoByteSize) and value == 0
        if not auto and not low <= value <= high:
            raise ValueError(f"must be between {low} and {high}, found {value}", attribute)

    return check


@frozen(kw_only=True)
class ModelSection:
    """`[model]`"""

    path: str = field(
        default="", metadata=_help("A folder, a .gguf file, org/name@revision, or a name that a plugin provides.")
    )
    plugin: str = field(default="", metadata=_help("The model family; empty: the only one that claims the path."))
    dtype: str = field(default="", metadata=_help("Compute dtype; empty: the checkpoint's own."))
    chat_template: str = field(
        default="", metadata=_help("File with the chat template to use; empty: the checkpoint's own.")
    )


@frozen(kw_only=True)
class EngineSection:
    """`[engine]`"""

    device: str = field(default="auto", metadata=_help("auto, or a device name as torch writes it."))
    threads: AutoInt = field(
        default=AutoInt(0), validator=between(1, 4096), metadata=_help("Host threads for compute, or auto.")
    )
    depth: int = field(default=0, validator=between(0, 1), metadata=_help("Steps in flight while the next is planned."))
    max_batch_tokens: int = field(
        default=512, validator=between(1, 1 << 20), metadata=_help("Rows of a step, drafts included.")
    )
    max_sequences: int = field(default=32, validator=between(1, 65536), metadata=_help("Sequences that run at once."))
    max_waiting: int = field(
        default=1024,
        validator=between(1, 1 << 20),
        metadata=_help("Sequences that may wait; more are refused."),
    )
    max_model_tokens: AutoInt = field(
        default=AutoInt(0), validator=between(2, 1 << 24), metadata=_help("Longest sequence, or auto: the model's own.")
    )
    max_draft_tokens: int = field(
        default=4, validator=between(0, 64), metadata=_help("Drafts verified per sequence and step, at most.")
    )
    page_tokens: AutoInt = field(
        default=AutoInt(0), validator=between(1, 1024), metadata=_help("Tokens per KV page, or auto.")
    )
    kv_memory: AutoByteSize = field(
        default=AutoByteSize(0), validator=between(1, 1 << 50), metadata=_help("Memory of the KV pools, or auto.")
    )
    verification: Literal["match", "rejection"] = field(
        default="match", metadata=_help("match: tokens equal to plain decoding; rejection: equal in law.")
    )
    prefix_wait: int = field(
        default=64,
        validator=between(0, 1 << 20),
        metadata=_help("Steps a waiting sequence may wait for another to compute the prefix they share."),
    )
    max_adapters: int = field(
        default=64, validator=between(0, 65536), metadata=_help("Adapters that the profile may name.")
    )
    max_adapter_rank: int = field(
        default=256, validator=between(1, 65536), metadata=_help("Largest rank of an adapter.")
    )
    graphs: Literal["auto", "on", "off"] = field(
        default="auto", metadata=_help("Replay decode steps from recordings: auto does so where the device gains.")
    )
    seed: int = field(
        default=-1,
        validator=between(-1, (1 << 62) - 1),
        metadata=_help("Seed of requests that bring none; -1 draws fresh ones."),
    )


@frozen
class AdapterSection:
    """One line of `[adapters]`: where the adapter of a name is."""

    name: str
    path: str
    place: Place


@frozen
class PluginSection:
    """A section of a kind: which plugin, its options as written, and what to do where it does not fit."""

    path: str
    plugin: str
    options: Node
    on_unsupported: Literal["error", "fallback"]
    node: Node


#: profile path -> kind, for sections that hold one plugin
SLOTS: dict[str, str] = {
    "attention": "attention",
    "attention.decode": "attention",
    "attention.prefill": "attention",
    "kv.allocator": "allocator",
    "kv.codec": "codec",
    "scheduler": "scheduler",
    "speculation": "speculator",
    "weights": "weights",
    "ops": "ops",
}
