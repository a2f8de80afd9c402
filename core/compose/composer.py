"""Composer: builds every named plugin once and makes them agree.

Order: device, model (metadata), codec and kernels, formats per layer, speculator, groups, memory, layout; then what
needs the layout: allocator and connectors; the rest last. Each need is checked against capabilities as soon as all
involved are known.
"""

import hashlib
from typing import Any

import attrs
from attrs import frozen

from tokloom.core.catalog import Catalog
from tokloom.core.compose.adapters import adapter_bytes, open_adapters
from tokloom.core.compose.builder import AnyPart, Builder, ask, expect
from tokloom.core.compose.explain import AdapterBudget, Explanation
from tokloom.core.compose.memory import Budget, plan_memory
from tokloom.core.compose.negotiate import Formats, build_groups, negotiate
from tokloom.core.compose.opening import open_model
from tokloom.core.compose.requirements import (
    check_codec,
    check_groups,
    check_kernels,
    check_speculator,
    check_weights,
    graph_obstacles,
    note_given_up,
)
from tokloom.core.composition import Composition, EngineSettings
from tokloom.core.context import EngineContext
from tokloom.core.device import Device, resolve
from tokloom.core.profile import PluginSection, Problem, Profile, ProfileProblems
from tokloom.sdk import (
    CompositionError,
    KVGroup,
    KVLayout,
    Limits,
    ModelCaps,
    ModelSpec,
    PluginFault,
    SpecNeeds,
)

#: what the core takes where a profile leaves the choice to it
DEFAULT_PAGE_TOKENS = 32
#: longest sequence served where `max_model_tokens` is auto
DEFAULT_MODEL_TOKENS = 8192


@frozen
class _Base:
    """What is known once the model's layers have formats."""

    settings: EngineSettings
    caps: ModelCaps
    spec: ModelSpec
    codec: AnyPart
    decode: AnyPart
    prefill: AnyPart
    formats: Formats
    residual: int


class Composer:
    """Composes one profile, once. `explanation` is complete after `compose`."""

    def __init__(self, profile: Profile, catalog: Catalog) -> None:
        self.profile = profile
        self.explanation = Explanation(profile.name)
        self._builder = Builder(profile, catalog, self.explanation)
        self._context: EngineContext | None = None

    def compose(self) -> Composition:
        """Raises ProfileProblems, CompositionError, CheckpointError or PluginFault; nothing that was made stays open
        then.
        """
        self._require(("kv.allocator", "kv.codec", "scheduler", "weights", "ops"))
        device = resolve(self.profile.engine.device, self.profile.engine.threads)
        context = EngineContext(device=device.info, dtype=self.profile.model.dtype, limits=self._limits(None))
        self._context = context
        try:
            return self._compose(device, context)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the plugins that were made, for whoever composes without an engine; an engine closes its own."""
        self._builder.close()
        if self._context is not None:
            self._context.close()

    def _compose(self, device: Device, context: EngineContext) -> Composition:
        profile, part = self.profile, self._builder.part
        family, model = open_model(profile, self._builder, context)
        caps, spec = family.caps, model.spec
        adapters = open_adapters(profile, family, model)
        settings = self._settings(device, spec)
        context.bind_model(spec, model.tokenizer, self._limits(settings))
        self._note_engine(device, spec, settings)
        base = self._negotiate(context, settings, caps, spec)
        speculator, needs, groups = self._speculator(context, base)
        budget = self._memory(groups, settings, device, spec.weight_bytes + adapter_bytes(adapters))
        fingerprint = ask(base.codec, "fingerprint", lambda: str(base.codec.plugin.fingerprint))
        layout = KVLayout(
            groups,
            budget.main_pages,
            budget.open_pages,
            _namespace(spec, fingerprint, groups),
            base.decode.caps.reads_tail or base.prefill.caps.reads_tail,
        )
        context.bind_layout(layout)
        connectors = tuple(self._builder.optional(profile.tiers, "connector", context))
        composition = Composition(
            settings=settings,
            device=device,
            context=context,
            layout=layout,
            model=model,
            model_caps=caps,
            decode=base.decode,
            prefill=base.prefill,
            writer=base.decode.caps.writes and base.prefill.caps.writes,
            codec=base.codec,
            allocator=part("kv.allocator", "allocator", context),
            weights=part("weights", "weights", context),
            ops=part("ops", "ops", context),
            scheduler=part("scheduler", "scheduler", context),
            speculator=speculator,
            needs=needs,
            connectors=connectors,
            observers=tuple(self._builder.optional(profile.observers, "observer", context)),
            adapters=adapters,
            **self._logits(context),
        )
        composition = attrs.evolve(composition, used=self._builder.used)
        check_weights(composition.weights, spec)
        note_given_up(composition, self.explanation)
        self._explain(base.formats, composition, budget)
        return composition

    # -- plugins -------------------------------------------------------------------------------------------------------

    def _require(self, paths: tuple[str, ...]) -> None:
        sections, place = self.profile.sections, self.profile.root.place
        help = "extend builtin:cpu, or name a plugin"
        missing = [path for path in paths if path not in sections]
        if "attention" not in sections and "attention.decode" not in sections:
            missing.append("attention")
        if missing:
            raise ProfileProblems([Problem(f"section [{path}] is missing", place, help=help) for path in missing])

    def _negotiate(self, context: EngineContext, settings: EngineSettings, caps: ModelCaps, spec: ModelSpec) -> _Base:
        codec = self._builder.part("kv.codec", "codec", context)
        decode, prefill = self._kernels(context)
        check_codec(codec, decode, prefill, settings)
        formats = negotiate(spec, settings.page_tokens, codec, decode, prefill)
        sealing = any(pair.open is not None for pair in formats.pairs)
        check_kernels(decode, prefill, codec, sealing)
        residual = ask(codec, "residual_tokens", lambda: int(codec.plugin.residual_tokens))
        return _Base(settings, caps, spec, codec, decode, prefill, formats, residual)

    def _kernels(self, context: EngineContext) -> tuple[AnyPart, AnyPart]:
        sections = self.profile.sections
        if "attention" in sections:
            part = self._builder.part("attention", "attention", context)
            return part, part
        decode, prefill = sections["attention.decode"], sections["attention.prefill"]
        first = self._builder.build(decode, "attention", context)
        same = decode.plugin == prefill.plugin and decode.options.plain() == prefill.options.plain()
        return first, first if same else self._builder.build(prefill, "attention", context)

    def _speculator(self, context: EngineContext, base: _Base) -> tuple[AnyPart | None, SpecNeeds, tuple[KVGroup, ...]]:
        """The speculator, or none where it does not fit and may be left out; its needs; the groups that follow."""
        allocator, caps = self._builder.declared("kv.allocator", "allocator")
        groups = build_groups(base.spec, base.formats, SpecNeeds(), base.residual)
        check_groups(allocator, caps, groups, base.codec.id)
        section = self.profile.sections.get("speculation")
        if section is None:
            return None, SpecNeeds(), groups
        try:
            made = self._builder.make(section, "speculator", context)
            part = made.part
            answer = ask(part, "needs", lambda: part.plugin.needs(base.settings.page_tokens))
            needs = expect(part, "needs", answer, SpecNeeds)
            check_speculator(part, needs, base.decode, base.prefill, base.codec, base.settings, base.spec, base.caps)
            both = build_groups(base.spec, base.formats, needs, base.residual)
            check_groups(allocator, caps, both, base.codec.id)
        except (CompositionError, PluginFault) as error:
            self._builder.leave_out(section, error)
            return None, SpecNeeds(), groups
        self._builder.keep(made)
        return part, needs, both

    def _logits(self, context: EngineContext) -> dict[str, dict[str, Any]]:
        parts = self._builder.optional(self.profile.logits, "logits", context)
        found: dict[str, dict[str, Any]] = {"processors": {}, "grammars": {}}
        syntaxes: dict[str, tuple[str, ...]] = {}
        for part in parts:
            table = found["processors" if part.caps.role == "processor" else "grammars"]
            if part.name in table:
                self._refuse_twin(part)
            table[part.name] = part.plugin
            if part.caps.role == "grammar":
                for syntax in sorted({*part.caps.syntaxes, *part.extras}):
                    syntaxes[syntax] = (*syntaxes.get(syntax, ()), part.name)
        return {**found, "syntaxes": syntaxes}

    def _refuse_twin(self, part: AnyPart) -> None:
        def named(section: PluginSection) -> bool:
            return section.plugin.rpartition("/")[2] == part.name

        second = [section for section in self.profile.logits if named(section)][1]
        text = f"two {part.caps.role}s are called {part.name}: a request could not say which"
        raise ProfileProblems([Problem(text, second.node.place, second.path, "keep one of them")])

    # -- numbers -------------------------------------------------------------------------------------------------------

    def _settings(self, device: Device, spec: ModelSpec) -> EngineSettings:
        engine = self.profile.engine
        longest = engine.max_model_tokens or min(spec.max_tokens, DEFAULT_MODEL_TOKENS)
        if longest > spec.max_tokens:
            text = f"is {longest} and the model's context is {spec.max_tokens}"
            place = self.profile.place("engine.max_model_tokens")
            raise ProfileProblems([Problem(text, place, "engine.max_model_tokens", "lower it, or use auto")])
        return EngineSettings(
            max_batch_tokens=engine.max_batch_tokens,
            max_sequences=min(engine.max_sequences, engine.max_batch_tokens),
            max_waiting=engine.max_waiting,
            max_model_tokens=longest,
            max_draft_tokens=engine.max_draft_tokens if "speculation" in self.profile.sections else 0,
            page_tokens=engine.page_tokens or DEFAULT_PAGE_TOKENS,
            depth=engine.depth,
            threads=device.info.threads,
            verification=engine.verification,
            prefix_wait=engine.prefix_wait,
            graphs=engine.graphs == "on" or (engine.graphs == "auto" and not device.is_host),
            seed=None if engine.seed < 0 else engine.seed,
        )

    def _limits(self, settings: EngineSettings | None) -> Limits:
        """Before the model is open, what the profile says: 0 where it says auto."""
        source: Any = settings or self.profile.engine
        return Limits(
            max_batch_tokens=source.max_batch_tokens,
            max_sequences=source.max_sequences,
            max_model_tokens=source.max_model_tokens,
            max_draft_tokens=source.max_draft_tokens,
            page_tokens=source.page_tokens,
        )

    def _memory(
        self, groups: tuple[KVGroup, ...], settings: EngineSettings, device: Device, weight_bytes: int
    ) -> Budget:
        wanted = int(self.profile.engine.kv_memory)
        try:
            return plan_memory(groups, settings, wanted, device.info.memory_bytes, weight_bytes)
        except CompositionError as error:
            place = self.profile.place("engine.kv_memory")
            raise ProfileProblems([Problem(error.message, place, "engine.kv_memory", error.remedy)]) from error

    # -- explaining ----------------------------------------------------------------------------------------------------

    def _note_engine(self, device: Device, spec: ModelSpec, settings: EngineSettings) -> None:
        note, place = self.explanation.note, self.profile.place
        self.explanation.model = f"{spec.name} ({len(spec.layers)} layers, vocabulary {spec.vocab_size})"
        note("device", f"{device.info.name}, {settings.threads} threads", str(place("engine.device")))
        note("dtype", spec.dtype, str(place("model.dtype")) if self.profile.model.dtype else "the checkpoint's own")
        if self.profile.model.chat_template:
            note("chat template", self.profile.model.chat_template, str(place("model.chat_template")))
        longest = self.profile.engine.max_model_tokens
        by = str(place("engine.max_model_tokens")) if longest else f"model context {spec.max_tokens}"
        if not longest and settings.max_model_tokens < spec.max_tokens:
            by = f"auto: the core's limit; model context {spec.max_tokens}"
        note("max_model_tokens", settings.max_model_tokens, by)
        if settings.max_sequences < self.profile.engine.max_sequences:
            note("max_sequences", settings.max_sequences, "limited by engine.max_batch_tokens: one row each")

    def _explain(self, formats: Formats, composition: Composition, budget: Budget) -> None:
        explanation, settings = self.explanation, composition.settings
        page = self.profile.engine.page_tokens
        by = str(self.profile.place("engine.page_tokens")) if page else "auto; accepted by the kernels"
        explanation.note("page_tokens", settings.page_tokens, by)
        for format_id, reasons in formats.notes.items():
            explanation.note("KV format", format_id, reasons)
        explanation.note("writer", "the kernel" if composition.writer else "the codec's append", "capability writes")
        explanation.note("depth", settings.depth, str(self.profile.place("engine.depth")))
        obstacles = graph_obstacles(composition) if settings.graphs else []
        by = "; ".join(obstacles) or str(self.profile.place("engine.graphs"))
        explanation.note("graphs", "on" if settings.graphs and not obstacles else "off", by)
        explanation.groups = list(budget.groups)
        explanation.adapters = [
            AdapterBudget(name, entry.info.digest, entry.info.rank, entry.info.targets, entry.info.nbytes)
            for name, entry in composition.adapters.items()
        ]
        explanation.weight_bytes = composition.model.spec.weight_bytes
        explanation.kv_bytes = sum(group.nbytes for group in budget.groups)
        explanation.tokens = budget.tokens
        explanation.sequences = budget.tokens // settings.max_model_tokens


def _namespace(spec: ModelSpec, fingerprint: str, groups: tuple[KVGroup, ...]) -> bytes:
    """Everything besides tokens and scope that stored KV depends on."""
    digest = hashlib.sha256()
    parts = [spec.digest, spec.dtype, fingerprint, *(repr(layer) for layer in spec.layers), *(repr(g) for g in groups)]
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()
