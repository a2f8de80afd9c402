"""Attention `torch`: paged attention in plain torch operators, every feature, any device."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokloom.sdk import AttentionCaps, AttentionKernel, Context, NoOptions, Offer, hookimpl

if TYPE_CHECKING:
    from tokloom.plugins.attention.torch.kernel import TorchAttention

CAPABILITIES = AttentionCaps(
    features=frozenset({"window", "soft_cap", "sinks", "alibi", "non_causal", "tree", "segments"}),
)


def make(options: NoOptions, context: Context) -> "TorchAttention":
    """The kernel. It has no options and keeps nothing between steps."""
    from tokloom.plugins.attention.torch.kernel import TorchAttention

    return TorchAttention()


OFFER: Offer[NoOptions, AttentionKernel] = Offer(
    kind="attention",
    name="torch",
    capabilities=CAPABILITIES,
    factory=make,
    contract="0.1",
    summary="paged attention in plain torch operators: every feature, dense and int8 pages",
)


@hookimpl
def tokloom_attention() -> Sequence[Offer[NoOptions, AttentionKernel]]:
    return (OFFER,)
