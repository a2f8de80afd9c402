"""Codec `dense`: keys and values as they are, in the model's dtype."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokloom.sdk import CodecCaps, Context, KVCodec, NoOptions, Offer, hookimpl

if TYPE_CHECKING:
    from tokloom.plugins.quant.kv.dense.codec import DenseCodec


def make(options: NoOptions, context: Context) -> "DenseCodec":
    """The codec. It has no options and no state."""
    from tokloom.plugins.quant.kv.dense.codec import DenseCodec

    return DenseCodec()


OFFER: Offer[NoOptions, KVCodec] = Offer(
    kind="codec",
    name="dense",
    capabilities=CodecCaps(equivalence="position", lossless=True),
    factory=make,
    contract="0.1",
    summary="keys and values in the model's dtype, lossless",
)


@hookimpl
def tokloom_codec() -> Sequence[Offer[NoOptions, KVCodec]]:
    return (OFFER,)
