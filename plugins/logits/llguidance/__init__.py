"""Grammar `llguidance`: output held to a JSON schema, a regular expression, a Lark grammar or a choice of texts."""

from collections.abc import Sequence

from attrs import field, frozen, validators

from tokloom.sdk import Context, GrammarFactory, LogitsCaps, Offer, hookimpl


@frozen(kw_only=True)
class LLGuidanceOptions:
    """Options of the `llguidance` grammar.

    Attributes:
        cached: compiled specifications kept for requests that bring the same one, at least 1; some 100 KB each.
        max_bytes: longest specification that is taken, at least 1.
    """

    cached: int = field(default=256, validator=[validators.instance_of(int), validators.ge(1)])
    max_bytes: int = field(default=65536, validator=[validators.instance_of(int), validators.ge(1)])


def _make(options: LLGuidanceOptions, context: Context) -> GrammarFactory:
    from tokloom.plugins.logits.llguidance.factory import LLGuidanceFactory

    return LLGuidanceFactory(options.cached, options.max_bytes, context)


@hookimpl
def tokloom_logits() -> "Sequence[Offer[LLGuidanceOptions, GrammarFactory]]":
    """The offer."""
    return [
        Offer(
            kind="logits",
            name="llguidance",
            capabilities=LogitsCaps(
                role="grammar", syntaxes=frozenset({"json_schema", "json_object", "regex", "lark", "choice"})
            ),
            factory=_make,
            config=LLGuidanceOptions,
            contract="0.1",
            summary="JSON schemas, regular expressions, Lark grammars, choices; masks in tens of microseconds",
        )
    ]
