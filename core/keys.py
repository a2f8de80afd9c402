"""Cache keys: SHA-256 chains over pages of tokens, rooted in what else must match."""

import hashlib
from array import array
from collections.abc import Sequence

from tokloom.sdk import CacheKey, KVLayout, Scope

VERSION = b"tokloom-kv-1"


def _field(tag: bytes, value: bytes) -> bytes:
    """Tagged and length-prefixed, so that no two field lists give the same bytes."""
    return tag + len(value).to_bytes(8, "little") + value


def root_key(namespace: bytes, scope: Scope) -> CacheKey:
    """The parent of a first page: version, namespace of the composition, and scope."""
    parts = [VERSION, _field(b"n", namespace), _field(b"s", scope.salt.encode()), _field(b"a", scope.adapter.encode())]
    parts += [_field(b"m", digest.encode()) for digest in scope.media]
    return hashlib.sha256(b"".join(parts)).digest()


class KeyChain:
    """The keys of a sequence's full pages, per group, extended as tokens become known.

    The key of a page covers its tokens, `key_lookahead` further ones, and its parent. Groups with equal page size and
    lookahead share one list.
    """

    def __init__(self, layout: KVLayout, scope: Scope) -> None:
        self._root = root_key(layout.namespace, scope)
        chains: dict[tuple[int, int], list[CacheKey]] = {}
        self.groups: tuple[list[CacheKey], ...] = tuple(
            chains.setdefault((group.page_tokens, group.key_lookahead), []) for group in layout.groups
        )
        self._chains = tuple(chains.items())

    def extend(self, tokens: Sequence[int]) -> tuple[list[CacheKey], ...]:
        """Add keys of pages that `tokens` (all tokens of the sequence so far) complete; returns all, per group."""
        for (page, lookahead), keys in self._chains:
            while (stop := (len(keys) + 1) * page + lookahead) <= len(tokens):
                parent = keys[-1] if keys else self._root
                content = array("q", tokens[stop - lookahead - page : stop]).tobytes()
                keys.append(hashlib.sha256(parent + page.to_bytes(4, "little") + content).digest())
        return self.groups
