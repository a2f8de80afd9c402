"""Plugins made of a few lines, and compositions of them and of the doubles; nothing that is installed takes part."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from attrs import field, frozen

from tokloom.conformance.doubles import offers
from tokloom.conformance.doubles.null import NullCodec, NullFamily, NullKernel
from tokloom.core.catalog import Catalog
from tokloom.core.compose import Composer
from tokloom.core.composition import Composition
from tokloom.core.engine import EngineCore
from tokloom.core.profile import Profile, load_profile
from tokloom.sdk import (
    Accepts,
    AttentionCaps,
    AttnParams,
    CodecCaps,
    ConnectorCaps,
    Context,
    FormatPair,
    KVFormat,
    LayerSpec,
    ModelCaps,
    ModelSpec,
    NoOptions,
    Offer,
    Request,
    SamplingParams,
    SpecNeeds,
    SpeculatorCaps,
    TokenSegment,
    TokloomError,
    Unsupported,
)

Answer = Accepts | Unsupported
AnyOffer = Offer[Any, Any]


# -- offers ------------------------------------------------------------------------------------------------------------


def offer(kind: Any, name: str, caps: Any, make: Callable[[Any, Context], Any], config: type = NoOptions) -> AnyOffer:
    return Offer(kind=kind, name=name, contract="0.1", capabilities=caps, factory=make, config=config)


def changed(kind: str, name: str, *, called: str = "changed", **caps: Any) -> AnyOffer:
    """A double under another name, with other capabilities."""
    (found,) = [each for each in offers() if (each.kind, each.name) == (kind, name)]
    return attrs.evolve(found, name=called, capabilities=attrs.evolve(found.capabilities, **caps))


def layer(
    number: int,
    *,
    kv_heads: int = 1,
    head: int = 8,
    window: int | None = None,
    dtype: str = "float32",
    key_lookahead: int = 0,
    **params: Any,
) -> LayerSpec:
    return LayerSpec(
        number, AttnParams(kv_heads * 2, kv_heads, head, head, 1.0, window=window, **params), dtype, key_lookahead
    )


def model(layers: Sequence[LayerSpec], *, features: bool = False, name: str = "inline", **spec: Any) -> AnyOffer:
    """A family with one model, `inline`, of these layers."""

    class Family(NullFamily):
        def __init__(self, options: NoOptions, context: Context) -> None:
            super().__init__(options, context)
            values: dict[str, Any] = {"name": name, "digest": "inline", "layers": tuple(layers), "max_tokens": 4096}
            self.spec: ModelSpec = attrs.evolve(self.spec, **{**values, **spec})

        def names(self) -> Mapping[str, str]:
            return {"inline": "for one test"}

    return offer("model", "inline", ModelCaps(features=features), Family)


def kernel(name: str, accepts: Callable[[LayerSpec, KVFormat], Answer] | None = None, **caps: Any) -> AnyOffer:
    """A kernel that computes nothing and accepts what a function says."""

    class Kernel(NullKernel):
        def accepts(self, spec: LayerSpec, format: KVFormat) -> Answer:
            return accepts(spec, format) if accepts is not None else Accepts()

    return offer("attention", name, AttentionCaps(**caps), Kernel)


def codec(
    name: str,
    formats: Callable[[LayerSpec, int], Sequence[FormatPair]] | None = None,
    *,
    residual: int = 0,
    fingerprint: str = "inline",
    **caps: Any,
) -> AnyOffer:
    """A codec that stores nothing in formats that a function says; else planes k and v of the layer's dtype."""

    class Codec(NullCodec):
        residual_tokens = residual

        def formats(self, spec: LayerSpec, page_tokens: int) -> Sequence[FormatPair]:
            return (formats or _plain)(spec, page_tokens)

    Codec.fingerprint = fingerprint
    return offer("codec", name, CodecCaps(**caps), Codec)


def _plain(spec: LayerSpec, page_tokens: int) -> Sequence[FormatPair]:
    return (FormatPair(plain_format(spec, page_tokens)),)


def plain_format(spec: LayerSpec, page_tokens: int, name: str = "kv") -> KVFormat:
    params = spec.params
    shape = (page_tokens, params.kv_heads, params.head_k)
    id = f"{name}-{spec.dtype}-{page_tokens}x{params.kv_heads}x{params.head_k}"
    return KVFormat.pack(id, page_tokens, [("k", spec.dtype, shape), ("v", spec.dtype, shape)])


def speculator(name: str, needs: SpecNeeds | Callable[[int], SpecNeeds] | None = None, **caps: Any) -> AnyOffer:
    """A speculator that is only asked for its needs."""

    class Needy:
        def __init__(self, options: NoOptions, context: Context) -> None:
            pass

        def needs(self, page_tokens: int) -> SpecNeeds:
            return needs(page_tokens) if callable(needs) else needs or SpecNeeds()

    return offer("speculator", name, SpeculatorCaps(**caps), Needy)


class Closing:
    """Notes in a shared list that it was closed; maybe it fails to."""

    def __init__(self, name: str, log: list[str], error: BaseException | None = None) -> None:
        self.name = name
        self.log = log
        self.error = error

    def close(self) -> None:
        self.log.append(self.name)
        if self.error is not None:
            raise self.error


def closing(kind: Any, name: str, caps: Any, log: list[str], error: BaseException | None = None) -> AnyOffer:
    """A plugin of which only `close` matters."""
    return offer(kind, name, caps, lambda options, context: Closing(name, log, error))


def tier(name: str, log: list[str], error: BaseException | None = None) -> AnyOffer:
    return closing("connector", name, ConnectorCaps(), log, error)


def raising(kind: Any, name: str, caps: Any, error: BaseException) -> AnyOffer:
    """A plugin whose factory raises."""

    def make(options: Any, context: Context) -> Any:
        raise error

    return offer(kind, name, caps, make)


# -- compositions ------------------------------------------------------------------------------------------------------


@frozen
class Composed:
    """What came out, and how it is explained."""

    composer: Composer = field(repr=False)
    composition: Composition = field(repr=False)

    @property
    def text(self) -> str:
        return self.composer.explanation.render()

    @property
    def given_up(self) -> str:
        return "\n".join(self.composer.explanation.downgrades)

    def row(self, what: str) -> str:
        """Value and reason of one negotiated line."""
        rows = [f"{c.value} | {c.by}" for c in self.composer.explanation.constraints if c.what == what]
        return "\n".join(rows)


def profile(changes: Mapping[str, Any] | None = None, *, sets: Sequence[str] = ()) -> Profile:
    """The doubles' profile with sections replaced; engine keys are written `engine.KEY` or in a table of their own."""
    sections: dict[str, Any] = {
        "schema": 1,
        "model": {"path": "tagged"},
        "engine": {
            "device": "cpu",
            "threads": 1,
            "page_tokens": 4,
            "max_batch_tokens": 32,
            "max_sequences": 6,
            "max_model_tokens": 120,
            "kv_memory": "1MiB",
        },
        "attention": "tags",
        "kv": {"allocator": "brute", "codec": "tagdense"},
        "scheduler": "plain",
        "weights": "none",
        "ops": "none",
    }
    for key, value in (changes or {}).items():
        table, _, name = key.partition(".")
        if name:
            sections[table] = {**sections.get(table, {}), name: value}
        else:
            sections[table] = value
    return load_profile(sections, sets=sets, environment={})


def compose(*extra: AnyOffer, sets: Sequence[str] = (), **changes: Any) -> Composed:
    """A composition; keys of sections are written with two underscores, `kv__codec="x"`."""
    written = {key.replace("__", "."): value for key, value in changes.items()}
    composer = Composer(profile(written, sets=sets), Catalog(path=[], extra=[*offers(), *extra]))
    return Composed(composer, composer.compose())


def refusal(*extra: AnyOffer, kind: type[TokloomError] = TokloomError, **changes: Any) -> TokloomError:
    """The error of a composition that must not work out."""
    try:
        compose(*extra, **changes)
    except kind as error:
        return error
    raise AssertionError("it was composed")


def tokens(engine: EngineCore, prompt: Sequence[int], count: int) -> list[int]:
    """What an engine says to a prompt, greedily. Raises what ends the request."""
    sampling = SamplingParams(temperature=0.0, max_tokens=count)
    engine.add(Request(request_id="r", segments=(TokenSegment(tuple(prompt)),), sampling=sampling))
    said: list[int] = []
    while engine.busy:
        for event in engine.step():
            said += event.tokens
            if event.error is not None:
                raise event.error
    return said
