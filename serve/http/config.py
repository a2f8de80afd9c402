"""ServeSection: the table `[serve]` of a profile, and the options of `tokloom serve`. Imports no web framework."""

from collections.abc import Callable, Mapping
from typing import Any

import attrs
from attrs import Attribute, field, frozen

from tokloom.api.formats import AUTO, NONE, REASONING_FORMATS, TOOL_FORMATS
from tokloom.api.profiles import ByteSize, Secret, between
from tokloom.sdk import ProfileError

#: the claim of the front end on profiles
TABLE = "serve"


def _help(text: str) -> dict[str, str]:
    return {"help": text}


def _prefix(instance: object, attribute: "Attribute[Any]", value: str) -> None:
    if value and (not value.startswith("/") or value.endswith("/")):
        raise ValueError(f"must begin with / and not end with one, found {value!r}", attribute)


def _named(instance: object, attribute: "Attribute[Any]", value: tuple[str, ...]) -> None:
    if len(set(value)) < len(value) or not all(name.strip() for name in value):
        raise ValueError("names must differ and not be empty", attribute)


def _known(names: Mapping[str, object]) -> "Callable[[object, Attribute[Any], str], None]":
    def check(instance: object, attribute: "Attribute[Any]", value: str) -> None:
        if value not in (AUTO, NONE, *names):
            raise ValueError(f"must be one of {', '.join((AUTO, NONE, *names))}, found {value!r}", attribute)

    return check


@frozen(kw_only=True)
class ServeSection:
    """`[serve]`"""

    host: str = field(default="127.0.0.1", metadata=_help("Address to listen on; 0.0.0.0 or :: for all."))
    port: int = field(default=8000, validator=between(0, 65535), metadata=_help("TCP port; 0 takes a free one."))
    grpc_port: int = field(
        default=-1, validator=between(-1, 65535), metadata=_help("TCP port of gRPC; 0 takes a free one, -1: no gRPC.")
    )
    api_key: Secret | None = field(
        default=None, metadata=_help("Keys that clients must send one of, separated by blanks; none: open to all.")
    )
    served_model_name: tuple[str, ...] = field(
        default=(), validator=_named, metadata=_help("Names of the model for clients, the first in answers.")
    )
    cors_origins: tuple[str, ...] = field(
        default=(), metadata=_help("Origins of web pages that may call the server; * for all.")
    )
    tls_cert: str = field(default="", metadata=_help("PEM file with the certificate chain: serve HTTPS."))
    tls_key: str = field(default="", metadata=_help("PEM file with its private key."))
    max_body_bytes: ByteSize = field(
        default=ByteSize(4 << 20), validator=between(1024, 1 << 32), metadata=_help("Longest request body.")
    )
    max_queue: int = field(
        default=256, validator=between(0, 1 << 20), metadata=_help("Sequences that may wait beyond those that run.")
    )
    max_connections: int = field(
        default=1024, validator=between(1, 1 << 20), metadata=_help("Open connections, idle ones included.")
    )
    header_seconds: float = field(
        default=10.0, validator=between(0.01, 3600), metadata=_help("Time for a request's line and headers to come.")
    )
    body_seconds: float = field(
        default=60.0, validator=between(0.01, 3600), metadata=_help("Time for a request's body to come.")
    )
    write_seconds: float = field(
        default=60.0, validator=between(0.01, 86400), metadata=_help("Time a client may not read what is sent to it.")
    )
    keep_alive_seconds: int = field(
        default=75, validator=between(1, 86400), metadata=_help("Time a connection may idle between requests.")
    )
    drain_seconds: float = field(
        default=30.0, validator=between(0, 86400), metadata=_help("Time for live requests to end after a signal.")
    )
    tool_format: str = field(
        default=AUTO,
        validator=_known(TOOL_FORMATS),
        metadata=_help("How the model writes tool calls; auto: as its chat template says, none: no tools."),
    )
    reasoning_format: str = field(
        default=AUTO,
        validator=_known(REASONING_FORMATS),
        metadata=_help("How the model marks its reasoning; auto: as its chat template says, none: it is text."),
    )
    root_path: str = field(
        default="", validator=_prefix, metadata=_help("Path prefix under which a proxy shows the server.")
    )

    playground: bool = field(
        default=True, metadata=_help("Serve a page to chat with the model and to watch the engine, at /.")
    )

    def __attrs_post_init__(self) -> None:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key belong together")

    def keys(self) -> tuple[str, ...]:
        """The API keys. Raises ProfileError if the secret is missing, empty, or no header can carry it."""
        if self.api_key is None:
            return ()
        keys = tuple(self.api_key.reveal().split())
        if not keys:
            raise ProfileError("holds no key", subject="serve.api_key", remedy="Put at least one key there")
        if not all(key.isascii() and key.isprintable() for key in keys):
            raise ProfileError("a key is not printable ASCII", subject="serve.api_key", remedy="Use ASCII characters")
        return keys


def option_names() -> dict[str, str]:
    """Field -> long option of `tokloom serve`; the key is given by reference, never on the command line."""
    return {
        item.name: "--" + item.name.replace("_", "-") for item in attrs.fields(ServeSection) if item.name != "api_key"
    }


def is_switch(item: "Attribute[Any]") -> bool:
    """Whether its option is a pair, `--NAME` and `--no-NAME`, without a value."""
    return item.type is bool
