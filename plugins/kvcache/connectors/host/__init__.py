"""Connector `host`: a tier in main memory. Pages that leave the device pool can come back without being computed."""

from collections.abc import Sequence
from typing import Literal

from attrs import Attribute, field, frozen, validators

from tokloom.plugins.kvcache.connectors.host.sizes import parse_size
from tokloom.sdk import ConnectorCaps, Context, KVConnector, Offer, hookimpl


def _size(options: "HostOptions", _: "Attribute[str]", value: str) -> None:
    parse_size(value)


def _text(value: int | str) -> str:
    return str(value)


@frozen(kw_only=True)
class HostOptions:
    """Options of the `host` tier.

    Attributes:
        capacity: bytes of KV to keep, as text: `"4GiB"`, `"500MB"`, `"1048576"`.
        write_policy: `through`: pages are copied when they are published, by the tier's thread. `back`: pages are
            copied when the device pool is about to reuse them, inside the engine's step: fewer copies, a longer step.
        verify: keep a digest of each block and check it on load; a damaged block is computed again.
        max_jobs: transfers that may wait for the tier's thread. Beyond it stores are dropped, and loads fail.
    """

    capacity: str = field(default="1GiB", converter=_text, validator=_size)
    write_policy: Literal["through", "back"] = field(default="through", validator=validators.in_(("through", "back")))
    verify: bool = True
    max_jobs: int = field(default=256, validator=[validators.instance_of(int), validators.ge(1)])


def _make(options: HostOptions, context: Context) -> KVConnector:
    from tokloom.plugins.kvcache.connectors.host.tier import HostTier

    return HostTier(options, context)


@hookimpl
def tokloom_connector() -> "Sequence[Offer[HostOptions, KVConnector]]":
    """The offer."""
    return [
        Offer(
            kind="connector",
            name="host",
            capabilities=ConnectorCaps(stores=True),
            factory=_make,
            config=HostOptions,
            contract="0.1",
            summary="a tier in main memory: least recently used blocks leave first",
        )
    ]
