"""Who may call: keys in the header `authorization`."""

from collections.abc import Iterable
from typing import Final

from tokloom.serve.http.errors import HttpError
from tokloom.serve.keys import Keys

#: what load balancers ask without a key
OPEN_PATHS: Final = frozenset({"/health", "/ready"})


def check_key(
    keys: Keys, path: str, headers: Iterable[tuple[bytes, bytes]], open_paths: frozenset[str] = OPEN_PATHS
) -> None:
    """Raises HttpError 401."""
    if keys.open or path in open_paths:
        return
    values = [value for name, value in headers if name == b"authorization"]
    if not keys.accept(values[0] if len(values) == 1 else b""):
        raise HttpError(
            401,
            "the API key is wrong" if values else "no API key was sent",
            kind="invalid_api_key",
            remedy="Send the header: Authorization: Bearer KEY",
            headers={"www-authenticate": 'Bearer realm="tokloom"'},
        )
