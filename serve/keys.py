"""Keys: who may call. Comparison takes the same time whatever the key that was sent."""

import hashlib
import hmac
from collections.abc import Iterable


class Keys:
    """The keys that are accepted; none means that all may call."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(_digest(key.encode()) for key in keys)

    @property
    def open(self) -> bool:
        """Whether all may call."""
        return not self._digests

    def accept(self, header: bytes) -> bool:
        """Whether the value of the header or metadata `authorization`, `Bearer KEY`, has a key that is accepted."""
        scheme, _, sent = header.partition(b" ")
        found = False
        digest = _digest(sent.strip())
        for known in self._digests:  # all of them, always
            found |= hmac.compare_digest(known, digest)
        return self.open or (found and scheme.lower() == b"bearer")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
