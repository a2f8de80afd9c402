"""Observer `prometheus`: the engine's numbers for scraping."""

from collections.abc import Sequence

from attrs import field, frozen, validators

from tokloom.sdk import CompositionError, Context, Observer, ObserverCaps, Offer, hookimpl


@frozen(kw_only=True)
class PrometheusOptions:
    """Options of the `prometheus` observer.

    Attributes:
        max_tenants: tenants that get a label of their own; those that come later are counted together as `other`.
    """

    max_tenants: int = field(default=50, validator=[validators.instance_of(int), validators.ge(0)])


def _make(options: PrometheusOptions, context: Context) -> Observer:
    try:
        from tokloom.plugins.observe.prometheus.exporter import PrometheusExporter
    except ModuleNotFoundError as error:
        raise CompositionError(
            str(error),
            subject="observer.prometheus",
            remedy="pip install 'tokloom[metrics]'",
        ) from None
    return PrometheusExporter(options.max_tenants, context.model.name, context.now)


@hookimpl
def tokloom_observer() -> "Sequence[Offer[PrometheusOptions, Observer]]":
    """The offer."""
    return [
        Offer(
            kind="observer",
            name="prometheus",
            capabilities=ObserverCaps(exposition=True),
            factory=_make,
            config=PrometheusOptions,
            contract="0.1",
            summary="counters, gauges and histograms in Prometheus' text format",
        )
    ]
