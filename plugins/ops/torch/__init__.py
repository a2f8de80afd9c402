"""Ops `torch`: every function in plain torch operators."""

from tokloom.sdk import Context, NoOptions, Offer, OpCaps, OpSet, hookimpl


def _make(options: NoOptions, context: Context) -> OpSet:
    from tokloom.plugins.ops.torch.ops import TorchOps

    return TorchOps()


@hookimpl
def tokloom_ops() -> list[Offer[NoOptions, OpSet]]:
    return [
        Offer(
            kind="ops",
            name="torch",
            contract="0.1",
            capabilities=OpCaps(batch_invariant=True),
            factory=_make,
            summary="plain torch operators",
        )
    ]
