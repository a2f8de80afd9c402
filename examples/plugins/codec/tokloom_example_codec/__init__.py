"""A KV codec that stores keys and values in float16, whatever the model computes in."""

from tokloom.sdk import CodecCaps, Context, KVCodec, NoOptions, Offer, hookimpl


def make(options: NoOptions, context: Context) -> KVCodec:
    from tokloom_example_codec.codec import HalfCodec

    return HalfCodec()


@hookimpl
def tokloom_codec() -> list[Offer[NoOptions, KVCodec]]:
    return [
        Offer(
            kind="codec",
            name="half",
            contract="0.1",
            capabilities=CodecCaps(equivalence="position"),
            factory=make,
            summary="keys and values in float16",
        )
    ]
