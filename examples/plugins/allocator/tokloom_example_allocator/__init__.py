"""An allocator without a prefix cache: each sequence owns its pages alone."""

from tokloom.sdk import AllocatorCaps, Context, KVAllocator, NoOptions, Offer, hookimpl


def make(options: NoOptions, context: Context) -> KVAllocator:
    from tokloom_example_allocator.allocator import ExclusiveAllocator

    return ExclusiveAllocator(options, context)


@hookimpl
def tokloom_allocator() -> list[Offer[NoOptions, KVAllocator]]:
    return [
        Offer(
            kind="allocator",
            name="exclusive",
            contract="0.1",
            capabilities=AllocatorCaps(windows=True),
            factory=make,
            summary="pages are never shared",
        )
    ]
