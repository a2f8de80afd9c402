"""An attention kernel that reads like the formula: one softmax per sequence."""

from tokloom.sdk import AttentionCaps, AttentionKernel, Context, NoOptions, Offer, hookimpl


def make(options: NoOptions, context: Context) -> AttentionKernel:
    from tokloom_example_attention.kernel import NaiveAttention

    return NaiveAttention()


@hookimpl
def tokloom_attention() -> list[Offer[NoOptions, AttentionKernel]]:
    return [
        Offer(
            kind="attention",
            name="naive",
            contract="0.1",
            capabilities=AttentionCaps(features=frozenset({"window"})),
            factory=make,
            summary="one softmax per sequence",
        )
    ]
