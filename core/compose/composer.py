"""Composer: builds every named plugin once and makes them agree.

Order: device, model (metadata), codec and kernels, formats per layer, speculator, groups, memory, layout; then what
needs the layout: allocator and connectors; last, requirements against capabilities.
"""

import hashlib
from pathlib import Path
from typing import Any, TypeVar

import attrs

from tokloom.core.catalog import Catalog, Resolved
from tokloom.core.compose.explain import Choice, Explanation
from tokloom.core.compose.memory import Budget, plan_memory
from tokloom.core.compose.negotiate import Formats, build_groups, negotiate
from tokloom.core.compose.requirements import check_requirements
from tokloom.core.composition import Composition, EngineSettings, Part
from tokloom.core.context import EngineContext
from tokloom.core.device import Device, resolve
from tokloom.core.profile import Problem, Profile, ProfileProblems, Secret
from tokloom.core.profile.schema import PluginSection
from tokloom.core.profile.structure import structure
from tokloom.core.profile.tree import Node
from tokloom.sdk import (
    CompositionError,
    KVLayout,
    Limits,
    Model,
    ModelCaps,
    ModelFamily,
    ModelSource,
    ModelSpec,
    PluginFault,
    SpecNeeds,
    Speculator,
    SpeculatorCaps,
    TokloomError,
)

T = TypeVar("T")
AnyPart = Part[Any, Any]

#: what the core takes where a profile leaves the choice to it
DEFAULT_PAGE_TOKENS = 32
#: longest sequence served where `max_model_tokens` is auto
DEFAULT_MODEL_TOKENS = 8192


class Composer:
    """Composes one profile. `explanation` is complete after `compose`."""

    def __init__(self, profile: Profile, catalog: Catalog) -> None:
        self._profile = profile
        self._catalog = catalog
        self.explanation = Explanation(profile.name)
        self.resolved: dict[str, Resolved] = {}

    def compose(self) -> Composition:
        """Raises ProfileProblems, CompositionError, CheckpointError or PluginFault."""
        profile, engine = self._profile, self._profile.engine
        required = ("kv.allocator", "kv.codec", "scheduler", "weights", "ops")
        self._require(required)
        device = resolve(engine.device, engine.threads)
        family_caps, model = self._open_model()
        spec = model.spec
        settings = self._settings(device, spec)
        context = self._context(device, spec, settings)
        self._note_engine(device, spec, settings)
        codec = self._part("kv.codec", "codec", context)
        decode, prefill = self._kernels(context)
        formats = negotiate(spec, settings.page_tokens, codec, decode, prefill)
        speculator, needs = self._speculator(context, settings, family_caps)
        groups = build_groups(spec, formats, needs, codec.plugin.residual_tokens)
        budget = self._memory(groups, settings, device, spec)
        layout = KVLayout(
            groups,
            budget.main_pages,
            budget.open_pages,
            _namespace(spec, codec.plugin.fingerprint, groups),
            decode.caps.reads_tail or prefill.caps.reads_tail,
        )
        context.bind_layout(layout)
        connectors = self._tiers(context)
        composition = Composition(
            settings=settings,
            device=device,
            context=context,
            layout=layout,
            model=model,
            model_caps=family_caps,
            decode=decode,
            prefill=prefill,
            writer=decode.caps.writes and prefill.caps.writes,
            codec=codec,
            allocator=self._part("kv.allocator", "allocator", context),
            weights=self._part("weights", "weights", context),
            ops=self._part("ops", "ops", context),
            scheduler=self._part("scheduler", "scheduler", context),
            speculator=speculator,
            needs=needs,
            connectors=connectors,
            observers=tuple(self._optional(profile.observers, "observer", context)),
            **self._logits(context),
        )
        check_requirements(composition, self.explanation)
        self._explain(formats, composition, budget)
        return composition

    # -- plugins -------------------------------------------------------------------------------------------------------

    def _require(self, paths: tuple[str, ...]) -> None:
        sections = self._profile.sections
        problems = [
            Problem(
                f"section [{path}] is missing", self._profile.root.place, help="extend builtin:cpu, or name a plugin"
            )
            for path in paths
            if path not in sections
        ]
        if "attention" not in sections and "attention.decode" not in sections:
            problems.append(Problem("section [attention] is missing", self._profile.root.place))
        if problems:
            raise ProfileProblems(problems)

    def _resolve(self, section: PluginSection, kind: Any) -> Resolved:
        try:
            return self._catalog.resolve(kind, section.plugin)
        except CompositionError as error:
            node = section.node.children["plugin"] if section.node.children else section.node
            message = f"{error.message} ({error.subject})"
            raise ProfileProblems([Problem(message, node.place, section.path, error.remedy)]) from error

    def _build(self, section: PluginSection, kind: Any, context: EngineContext) -> AnyPart:
        resolved = self._resolve(section, kind)
        offer = resolved.offer
        problems: list[Problem] = []
        options = structure(section.options, offer.config, f"{section.path}.options", problems)
        if problems or options is None:
            raise ProfileProblems(problems)
        self.resolved[section.path] = resolved
        self._choose(section, resolved, options)
        try:
            plugin = offer.factory(options, context)
        except TokloomError:
            raise
        except ImportError as error:
            raise CompositionError(
                f"its factory cannot import {error.name or error}",
                subject=f"{kind}.{offer.name}",
                remedy=f"Install what {resolved.listed.distribution} needs, for example its extras",
            ) from error
        except Exception as error:
            raise PluginFault(
                f"its factory raised {type(error).__name__}: {error}",
                subject=f"{kind}.{offer.name}",
                remedy=f"Report it to the authors of {resolved.listed.distribution}",
            ) from error
        listed = resolved.listed
        return Part(offer.kind, offer.name, listed.distribution, listed.version, plugin, offer.capabilities)

    def _part(self, path: str, kind: str, context: EngineContext) -> AnyPart:
        return self._build(self._profile.sections[path], kind, context)

    def _optional(self, sections: tuple[PluginSection, ...], kind: str, context: EngineContext) -> list[AnyPart]:
        """Plugins without which the engine serves the same tokens: they may fall back to absence."""
        parts = []
        for section in sections:
            try:
                parts.append(self._build(section, kind, context))
            except (CompositionError, PluginFault) as error:
                if section.on_unsupported != "fallback":
                    raise
                self.explanation.downgrades.append(f"{section.path}: {section.plugin} left out: {error}")
        return parts

    def _kernels(self, context: EngineContext) -> tuple[AnyPart, AnyPart]:
        sections = self._profile.sections
        if "attention" in sections:
            part = self._part("attention", "attention", context)
            return part, part
        decode, prefill = sections["attention.decode"], sections["attention.prefill"]
        first = self._build(decode, "attention", context)
        same = decode.plugin == prefill.plugin and decode.options.plain() == prefill.options.plain()
        return first, first if same else self._build(prefill, "attention", context)

    def _tiers(self, context: EngineContext) -> tuple[AnyPart, ...]:
        return tuple(self._optional(self._profile.tiers, "connector", context))

    def _logits(self, context: EngineContext) -> dict[str, dict[str, Any]]:
        parts = self._optional(self._profile.logits, "logits", context)
        return {
            "processors": {part.name: part.plugin for part in parts if part.caps.role == "processor"},
            "grammars": {part.name: part.plugin for part in parts if part.caps.role == "grammar"},
        }

    def _speculator(
        self, context: EngineContext, settings: EngineSettings, model: ModelCaps
    ) -> tuple[Part[Speculator, SpeculatorCaps] | None, SpecNeeds]:
        section = self._profile.sections.get("speculation")
        if section is None:
            return None, SpecNeeds()
        try:
            part = self._build(section, "speculator", context)
            needs = part.plugin.needs(settings.page_tokens)
            if needs.features and not model.features:
                raise CompositionError(
                    f"it needs hidden states after layers {needs.features}, which the model family cannot capture",
                    subject=part.id,
                    remedy="Use another speculator or another family",
                )
        except (CompositionError, PluginFault) as error:
            if section.on_unsupported != "fallback":
                raise
            self.explanation.downgrades.append(f"speculation: {section.plugin} left out: {error}")
            return None, SpecNeeds()
        return part, needs

    # -- model ---------------------------------------------------------------------------------------------------------

    def _open_model(self) -> tuple[ModelCaps, Model]:
        section = self._profile.model
        if not section.path:
            place = self._profile.place("model")
            help = "--model PATH, --set model.path=PATH, or [model] path in the profile"
            raise ProfileProblems([Problem("no model is named", place, "model.path", help)])
        context = self._context(resolve(self._profile.engine.device, self._profile.engine.threads), None, None)
        path = Path(section.path).expanduser()
        exists = path.exists()
        source = ModelSource(path=path if exists else None, name="" if exists else section.path, dtype=section.dtype)
        listed = self._catalog.listed("model")
        names = [section.plugin] if section.plugin else [row.qualified for row in listed]
        claimed = []
        reasons = []
        for name in names:
            try:
                part = self._build(_section("model", name), "model", context)
            except (TokloomError, ProfileProblems) as error:
                if section.plugin:
                    raise
                reasons.append(str(error))
                continue
            family: ModelFamily = part.plugin
            known = section.path in family.names() if not exists else family.claims(source)
            if known or section.plugin:
                claimed.append(part)
        if len(claimed) != 1:
            self._refuse_model(section.path, exists, [part.name for part in claimed], reasons)
        part = claimed[0]
        self.explanation.choices = [c for c in self.explanation.choices if c.kind != "model" or c.plugin == part.name]
        model = part.plugin.open(source)
        return part.caps, model

    def _refuse_model(self, path: str, exists: bool, claimed: list[str], reasons: list[str]) -> None:
        place = self._profile.place("model.path")
        if claimed:
            text = f"several model families claim {path}: {', '.join(claimed)}"
            raise ProfileProblems([Problem(text, place, "model.path", "choose one with [model] plugin")])
        if exists:
            help = "; ".join(reasons) or "a folder needs config.json; a file must end in .gguf"
            raise ProfileProblems([Problem(f"no installed model family can open {path}", place, "model.path", help)])
        help = "give a folder or a .gguf file that exists here; nothing is downloaded"
        raise ProfileProblems([Problem(f"{path} does not exist and no plugin provides it", place, "model.path", help)])

    # -- numbers -------------------------------------------------------------------------------------------------------

    def _settings(self, device: Device, spec: ModelSpec) -> EngineSettings:
        engine = self._profile.engine
        longest = engine.max_model_tokens or min(spec.max_tokens, DEFAULT_MODEL_TOKENS)
        if longest > spec.max_tokens:
            text = f"is {longest} and the model's context is {spec.max_tokens}"
            place = self._profile.place("engine.max_model_tokens")
            raise ProfileProblems([Problem(text, place, "engine.max_model_tokens", "lower it, or use auto")])
        return EngineSettings(
            max_batch_tokens=engine.max_batch_tokens,
            max_sequences=min(engine.max_sequences, engine.max_batch_tokens),
            max_waiting=engine.max_waiting,
            max_model_tokens=longest,
            max_draft_tokens=engine.max_draft_tokens if "speculation" in self._profile.sections else 0,
            page_tokens=engine.page_tokens or DEFAULT_PAGE_TOKENS,
            depth=engine.depth,
            threads=device.info.threads,
            verification=engine.verification,
            prefix_wait=engine.prefix_wait,
            graphs=engine.graphs == "on" or (engine.graphs == "auto" and not device.is_host),
            seed=None if engine.seed < 0 else engine.seed,
        )

    def _context(self, device: Device, spec: ModelSpec | None, settings: EngineSettings | None) -> EngineContext:
        engine = self._profile.engine
        limits = Limits(
            max_batch_tokens=engine.max_batch_tokens,
            max_sequences=settings.max_sequences if settings else engine.max_sequences,
            max_model_tokens=settings.max_model_tokens if settings else engine.max_model_tokens,
            max_draft_tokens=settings.max_draft_tokens if settings else engine.max_draft_tokens,
            page_tokens=settings.page_tokens if settings else engine.page_tokens,
        )
        return EngineContext(
            device=device.info, dtype=spec.dtype if spec else self._profile.model.dtype, limits=limits, model=spec
        )

    def _memory(self, groups: tuple[Any, ...], settings: EngineSettings, device: Device, spec: ModelSpec) -> Budget:
        wanted = int(self._profile.engine.kv_memory)
        try:
            return plan_memory(groups, settings, wanted, device.info.memory_bytes, spec.weight_bytes)
        except CompositionError as error:
            place = self._profile.place("engine.kv_memory")
            raise ProfileProblems([Problem(error.message, place, "engine.kv_memory", error.remedy)]) from error

    # -- explaining ----------------------------------------------------------------------------------------------------

    def _choose(self, section: PluginSection, resolved: Resolved, options: Any) -> None:
        written = dict(section.options.walk())
        shown: dict[str, tuple[str, str]] = {}
        for field in attrs.fields(type(options)):
            value = getattr(options, field.name)
            text = repr(value) if isinstance(value, Secret) else str(value)
            node = next((n for path, n in written.items() if path.split(".")[0] == field.name), None)
            shown[field.name] = (text, str(node.place) if node is not None else "default")
        listed = resolved.listed
        self.explanation.choices.append(
            Choice(
                section.path,
                listed.kind,
                listed.name,
                listed.distribution,
                listed.version,
                str(resolved.offer.contract),
                shown,
            )
        )

    def _note_engine(self, device: Device, spec: ModelSpec, settings: EngineSettings) -> None:
        note, place = self.explanation.note, self._profile.place
        self.explanation.model = f"{spec.name} ({len(spec.layers)} layers, vocabulary {spec.vocab_size})"
        note("device", f"{device.info.name}, {settings.threads} threads", str(place("engine.device")))
        note("dtype", spec.dtype, str(place("model.dtype")) if self._profile.model.dtype else "the checkpoint's own")
        longest = self._profile.engine.max_model_tokens
        by = str(place("engine.max_model_tokens")) if longest else f"model context {spec.max_tokens}"
        note("max_model_tokens", settings.max_model_tokens, by)
        if settings.max_sequences < self._profile.engine.max_sequences:
            note("max_sequences", settings.max_sequences, "limited by engine.max_batch_tokens: one row each")

    def _explain(self, formats: Formats, composition: Composition, budget: Budget) -> None:
        explanation, settings = self.explanation, composition.settings
        page = self._profile.engine.page_tokens
        by = str(self._profile.place("engine.page_tokens")) if page else "auto; accepted by the kernels"
        explanation.note("page_tokens", settings.page_tokens, by)
        for format_id, reasons in formats.notes.items():
            explanation.note("KV format", format_id, reasons)
        explanation.note("writer", "the kernel" if composition.writer else "the codec's append", "capability writes")
        explanation.note("depth", settings.depth, str(self._profile.place("engine.depth")))
        explanation.note("graphs", "on" if settings.graphs else "off", str(self._profile.place("engine.graphs")))
        explanation.groups = list(budget.groups)
        explanation.weight_bytes = composition.model.spec.weight_bytes
        explanation.kv_bytes = sum(group.nbytes for group in budget.groups)
        explanation.tokens = budget.tokens
        explanation.sequences = budget.tokens // settings.max_model_tokens


def _section(path: str, plugin: str) -> PluginSection:
    from tokloom.core.profile.errors import Place

    node = Node(Place("model.plugin"), children={})
    return PluginSection(path, plugin, node, "error", node)


def _namespace(spec: ModelSpec, fingerprint: str, groups: tuple[Any, ...]) -> bytes:
    """Everything besides tokens and scope that stored KV depends on."""
    digest = hashlib.sha256()
    parts = [spec.digest, spec.dtype, fingerprint, *(repr(layer) for layer in spec.layers), *(repr(g) for g in groups)]
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()
