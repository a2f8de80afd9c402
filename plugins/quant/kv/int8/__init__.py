"""Codec `int8`: keys and values as 8-bit integers with one scale per token and head."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokloom.sdk import CodecCaps, Context, KVCodec, NoOptions, Offer, hookimpl

if TYPE_CHECKING:
    from tokloom.plugins.quant.kv.int8.codec import Int8Codec


def make(options: NoOptions, context: Context) -> "Int8Codec":
    """The codec. It has no options and no state."""
    from tokloom.plugins.quant.kv.int8.codec import Int8Codec

    return Int8Codec()


OFFER: Offer[NoOptions, KVCodec] = Offer(
    kind="codec",
    name="int8",
    capabilities=CodecCaps(equivalence="position", lossless=False),
    factory=make,
    contract="0.1",
    summary="keys and values as symmetric int8 with a scale per token and head",
)


@hookimpl
def tokloom_codec() -> Sequence[Offer[NoOptions, KVCodec]]:
    return (OFFER,)
