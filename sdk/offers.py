"""Offer: how a plugin package says what it has. A hook returns offers and does nothing else."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

import pluggy
from attrs import field, frozen

from tokloom.sdk.kinds import ContractVersion, Kind

if TYPE_CHECKING:
    from tokloom.sdk.context import Context
    from tokloom.sdk.contracts.allocator import AllocatorCaps
    from tokloom.sdk.contracts.attention import AttentionCaps
    from tokloom.sdk.contracts.codec import CodecCaps
    from tokloom.sdk.contracts.connector import ConnectorCaps
    from tokloom.sdk.contracts.logits import LogitsCaps
    from tokloom.sdk.contracts.model import ModelCaps
    from tokloom.sdk.contracts.observer import ObserverCaps
    from tokloom.sdk.contracts.ops import OpCaps
    from tokloom.sdk.contracts.scheduler import SchedulerCaps
    from tokloom.sdk.contracts.speculator import SpeculatorCaps
    from tokloom.sdk.contracts.weights import WeightCaps

    Capabilities: TypeAlias = (
        AllocatorCaps
        | AttentionCaps
        | CodecCaps
        | ConnectorCaps
        | LogitsCaps
        | ModelCaps
        | ObserverCaps
        | OpCaps
        | SchedulerCaps
        | SpeculatorCaps
        | WeightCaps
    )

#: Marks a function `tokloom_KIND()` that returns a sequence of offers.
hookimpl: Final = pluggy.HookimplMarker("tokloom")

PROJECT: Final = "tokloom"

ConfigT = TypeVar("ConfigT")
PluginT = TypeVar("PluginT", covariant=True)


@frozen
class NoOptions:
    """The config class of a plugin without options."""


@frozen
class Accepts:
    """A capability question answered with yes. `note` is shown by `compose --explain`."""

    note: str = ""


@frozen
class Unsupported:
    """A capability question answered with no."""

    reason: str


def _version(value: str | ContractVersion) -> ContractVersion:
    return value if isinstance(value, ContractVersion) else ContractVersion.parse(value)


@frozen(kw_only=True)
class Offer(Generic[ConfigT, PluginT]):
    """One registered thing. Offers are data: making one imports nothing heavy and touches no device.

    Attributes:
        kind: which contract.
        name: lower case letters, digits and dashes; unique within its distribution and kind.
        capabilities: an instance of the kind's own capability class.
        factory: called once per engine with the parsed options and a context; heavy imports belong inside.
        config: frozen attrs class of the options; unknown keys in a profile are errors.
        contract: the contract version the plugin was written for, for example `"0.1"`.
        summary: one line for `tokloom plugins`.
        extras: third-party capability names `x-DIST.name`; shown, never required by the core. Those of a grammar are
            syntaxes that requests may name.
    """

    kind: Kind
    name: str
    capabilities: "Capabilities"
    factory: "Callable[[ConfigT, Context], PluginT]" = field(repr=False)
    config: type[ConfigT] = field(default=NoOptions)  # type: ignore[assignment]
    contract: ContractVersion = field(converter=_version)
    summary: str = ""
    extras: frozenset[str] = frozenset()
