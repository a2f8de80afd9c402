"""Weights `int8`: symmetric 8-bit integers with one scale per output channel."""

from tokloom.sdk import Context, NoOptions, Offer, WeightCaps, WeightMethod, hookimpl


def _make(options: NoOptions, context: Context) -> WeightMethod:
    from tokloom.plugins.quant.weights.int8.method import Int8Weights

    return Int8Weights()


@hookimpl
def tokloom_weights() -> list[Offer[NoOptions, WeightMethod]]:
    return [
        Offer(
            kind="weights",
            name="int8",
            contract="0.1",
            capabilities=WeightCaps(),
            factory=_make,
            summary="8-bit weights, one scale per output channel",
        )
    ]
