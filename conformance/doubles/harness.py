"""Compositions of doubles (and of any installed plugin) through the real catalog, profile and composer.

    composition = compose_doubles(speculator="oracle", pages=40, depth=1, lazy=True)
    engine = EngineCore(composition, poison_pools=True)

This is the one module of the doubles that imports torch and the engine's composer when it is imported.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from tokloom.conformance.doubles.offers import offers
from tokloom.core.catalog import Catalog
from tokloom.core.compose import Composer
from tokloom.core.composition import Composition
from tokloom.core.device import Device, LazyStream
from tokloom.core.profile import load_profile
from tokloom.sdk import Offer

#: a plugin's name, or a profile section: {"plugin": name, "options": {...}}
Section: TypeAlias = str | Mapping[str, Any]


class Clock:
    """Time that moves a millisecond each time somebody looks, and by hand."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        self.time += 0.001
        return self.time


class _FixedCatalog(Catalog):
    """Gives every factory a context with the test's clock, and the layout an exact number of pages per pool."""

    def __init__(self, extra: Sequence[Offer[Any, Any]], pages: int, clock: Callable[[], float]) -> None:
        super().__init__(extra=[*offers(), *extra])
        self._pages = pages
        self._clock = clock

    def resolve(self, kind: Any, name: str) -> Any:
        found = super().resolve(kind, name)
        inner = found.offer.factory

        def factory(options: Any, context: Any) -> Any:
            context._now = self._clock
            if kind in ("allocator", "connector"):
                context.bind_layout(self._sized(context.layout))
            return inner(options, context)

        return attrs.evolve(found, offer=attrs.evolve(found.offer, factory=factory))

    def _sized(self, layout: Any) -> Any:
        main = tuple(self._pages for _ in layout.groups)
        opened = tuple(self._pages if group.open is not None else 0 for group in layout.groups)
        return attrs.evolve(layout, main_pages=main, open_pages=opened)


def compose_doubles(
    *,
    model: str = "tagged",
    attention: Section = "tags",
    codec: Section = "tagdense",
    allocator: Section = "paged",
    scheduler: Section = "plain",
    speculator: Section | None = None,
    connectors: Sequence[Section] = (),
    observers: Sequence[Section] = ("recorder",),
    logits: Sequence[str] = ("shift", "parity"),
    page_tokens: int = 4,
    pages: int = 200,
    depth: int = 0,
    lazy: bool = False,
    max_batch_tokens: int = 32,
    max_sequences: int = 6,
    max_model_tokens: int = 120,
    max_draft_tokens: int = 4,
    adapters: Mapping[str, str] | None = None,
    extra: Sequence[Offer[Any, Any]] = (),
    clock: Callable[[], float] | None = None,
    **engine: Any,
) -> Composition:
    """What a profile with these sections composes to, on the host.

    Args:
        pages: pages of every pool.
        adapters: name -> path.
        lazy: launches run as late as they can (`LazyStream`).
        extra: more offers to choose from.
        clock: what `context.now` is; a `Clock` of its own unless given.
        engine: further keys of `[engine]`.

    Raises what a profile raises: ProfileProblems, CompositionError.
    """
    profile: dict[str, Any] = {
        "schema": 1,
        "model": {"path": model},
        "engine": {
            "device": "cpu",
            "threads": 1,
            "page_tokens": page_tokens,
            "max_batch_tokens": max_batch_tokens,
            "max_sequences": max_sequences,
            "max_model_tokens": max_model_tokens,
            "max_draft_tokens": max_draft_tokens,
            "depth": depth,
            "kv_memory": "64MiB",
            "seed": 7,
            **engine,
        },
        "attention": attention,
        "kv": {"allocator": allocator, "codec": codec, "tiers": list(connectors)},
        "scheduler": scheduler,
        "weights": "none",
        "ops": "none",
        "observers": list(observers),
        "logits": list(logits),
    }
    if adapters:
        profile["adapters"] = dict(adapters)
    if speculator is not None:
        profile["speculation"] = speculator
    catalog = _FixedCatalog(extra, pages, clock or Clock())
    composition = Composer(load_profile(profile, environment={}), catalog).compose()
    stream = LazyStream() if lazy else composition.device.stream
    return attrs.evolve(composition, device=Device(composition.device.info, stream), layout=composition.context.layout)
