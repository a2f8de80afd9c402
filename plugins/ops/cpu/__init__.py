"""Ops `cpu`: compiled operators over rows, for a processor."""

from tokloom.sdk import CompositionError, Context, NoOptions, Offer, OpCaps, OpSet, hookimpl


def _make(options: NoOptions, context: Context) -> OpSet:
    from tokloom.plugins.ops.cpu.ops import CpuOps

    if context.device.type != "cpu":
        raise CompositionError(
            f"they run on a processor, the engine on {context.device.name}",
            subject="ops.cpu",
            remedy='Set device = "cpu" in [engine], or ops = "torch"',
        )
    return CpuOps(context.device.threads)


@hookimpl
def tokloom_ops() -> list[Offer[NoOptions, OpSet]]:
    return [
        Offer(
            kind="ops",
            name="cpu",
            contract="0.1",
            capabilities=OpCaps(batch_invariant=True),
            factory=_make,
            summary="compiled operators over rows: norms, rotary embeddings, activations",
        )
    ]
