"""Attention `cpu`: compiled paged attention of single rows, for decoding on a processor."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokloom.sdk import AttentionCaps, AttentionKernel, CompositionError, Context, NoOptions, Offer, hookimpl

if TYPE_CHECKING:
    from tokloom.plugins.attention.cpu.kernel import CpuAttention

CAPABILITIES = AttentionCaps(
    phases=frozenset({"decode", "verify"}),
    features=frozenset({"window", "soft_cap", "sinks", "segments"}),
    batch_invariant=True,
)


def make(options: NoOptions, context: Context) -> "CpuAttention":
    """The kernel, or, where its extension module was not compiled, the same arithmetic in torch operators."""
    from tokloom.plugins.attention.cpu.kernel import CpuAttention

    if context.device.type != "cpu":
        raise CompositionError(
            f"it runs on a processor, the engine on {context.device.name}",
            subject="attention.cpu",
            remedy='Set device = "cpu" in [engine], or name another kernel',
        )
    return CpuAttention(context.device.threads)


OFFER: Offer[NoOptions, AttentionKernel] = Offer(
    kind="attention",
    name="cpu",
    capabilities=CAPABILITIES,
    factory=make,
    contract="0.1",
    summary="compiled paged attention of single rows: decode and verify, dense and int8 pages",
)


@hookimpl
def tokloom_attention() -> Sequence[Offer[NoOptions, AttentionKernel]]:
    return (OFFER,)
