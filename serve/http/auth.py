"""Keys: who may call. Comparison takes the same time whatever the key that was sent."""

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

from tokloom.serve.http.errors import HttpError

#: what load balancers ask without a key
OPEN_PATHS: Final = frozenset({"/health", "/ready"})


class Keys:
    """The keys that are accepted; none means that all may call."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(_digest(key.encode()) for key in keys)

    def check(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raises HttpError 401."""
        if not self._digests or path in OPEN_PATHS:
            return
        values = [value for name, value in headers if name == b"authorization"]
        scheme, _, sent = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
        found = False
        digest = _digest(sent.strip())
        for known in self._digests:  # all of them, always
            found |= hmac.compare_digest(known, digest)
        if not found or scheme.lower() != b"bearer":
            raise HttpError(
                401,
                "the API key is wrong" if values else "no API key was sent",
                kind="invalid_api_key",
                remedy="Send the header: Authorization: Bearer KEY",
                headers={"www-authenticate": 'Bearer realm="tokloom"'},
            )


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
