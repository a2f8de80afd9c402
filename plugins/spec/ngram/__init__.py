"""Speculator `ngram`: prompt lookup. The tokens that followed the same n-gram earlier in the sequence are proposed."""

from collections.abc import Sequence

from attrs import Attribute, field, frozen, validators

from tokloom.sdk import Context, Offer, Speculator, SpeculatorCaps, hookimpl


def _not_above_max(options: "NgramOptions", _: "Attribute[int]", value: int) -> None:
    if value > options.max_n:
        raise ValueError(f"min_n is {value}, above max_n, which is {options.max_n}")


@frozen(kw_only=True)
class NgramOptions:
    """Options of the `ngram` speculator.

    Attributes:
        max_n: longest n-gram looked up, 1 to 32 tokens.
        min_n: shortest one. Smaller values draft more often and are wrong more often.
    """

    max_n: int = field(default=4, validator=[validators.instance_of(int), validators.ge(1), validators.le(32)])
    min_n: int = field(default=2, validator=[validators.instance_of(int), validators.ge(1), _not_above_max])


def _make(options: NgramOptions, context: Context) -> Speculator:
    from tokloom.plugins.spec.ngram.lookup import NgramSpeculator

    return NgramSpeculator(options.min_n, options.max_n)


@hookimpl
def tokloom_speculator() -> "Sequence[Offer[NgramOptions, Speculator]]":
    """The offer."""
    return [
        Offer(
            kind="speculator",
            name="ngram",
            capabilities=SpeculatorCaps(placement="host"),
            factory=_make,
            config=NgramOptions,
            contract="0.1",
            summary="prompt lookup: repeats what followed the same n-gram before; no weights",
        )
    ]
