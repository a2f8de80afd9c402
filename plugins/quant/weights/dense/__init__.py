"""Weights `dense`: matrices in the compute dtype, as the checkpoint has them."""

from tokloom.sdk import Context, NoOptions, Offer, WeightCaps, WeightMethod, hookimpl


def _make(options: NoOptions, context: Context) -> WeightMethod:
    from tokloom.plugins.quant.weights.dense.method import DenseWeights

    return DenseWeights(context.device.threads)


@hookimpl
def tokloom_weights() -> list[Offer[NoOptions, WeightMethod]]:
    return [
        Offer(
            kind="weights",
            name="dense",
            contract="0.1",
            capabilities=WeightCaps(lossless=True),
            factory=_make,
            summary="weights in the compute dtype",
        )
    ]
