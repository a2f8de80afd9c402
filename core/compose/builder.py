"""Builder: makes the plugins that a profile names, says what they are, and closes them if composing fails."""

from collections.abc import Callable
from typing import Any, TypeVar

import attrs
from attrs import frozen

from tokloom.core.catalog import Catalog, Resolved
from tokloom.core.compose.explain import Choice, Explanation
from tokloom.core.composition import Part, Used
from tokloom.core.context import EngineContext
from tokloom.core.logs import get_logger
from tokloom.core.profile import Problem, Profile, ProfileProblems, Secret
from tokloom.core.profile.schema import PluginSection
from tokloom.core.profile.structure import structure
from tokloom.sdk import CompositionError, PluginFault, TokloomError

T = TypeVar("T")
AnyPart = Part[Any, Any]

#: kinds whose contract has `close`: they may own threads, files and sockets
CLOSED_KINDS = ("connector", "observer")


@frozen
class Made:
    """A plugin that was made and is not yet part of the explanation."""

    section: PluginSection
    resolved: Resolved
    options: Any
    part: AnyPart


def ask(part: AnyPart, what: str, question: Callable[[], T]) -> T:
    """A plugin's answer. Whatever it raises that is no TokloomError becomes a PluginFault that names it."""
    try:
        return question()
    except TokloomError:
        raise
    except Exception as error:
        raise PluginFault(
            f"{what} raised {type(error).__name__}: {error}",
            subject=part.id,
            remedy=f"Report it to the authors of {part.distribution}",
        ) from error


def expect(part: AnyPart, what: str, value: object, kind: type[T]) -> T:
    """The value if it is what the contract says; else a PluginFault."""
    if not isinstance(value, kind):
        text = f"{what} gave {type(value).__name__}, expected {kind.__name__}"
        raise PluginFault(text, subject=part.id, remedy=f"Report it to the authors of {part.distribution}")
    return value


class Builder:
    """Makes plugins of one profile. Everything it made is closed by `close`, the last first."""

    def __init__(self, profile: Profile, catalog: Catalog, explanation: Explanation) -> None:
        self._profile = profile
        self._catalog = catalog
        self._explanation = explanation
        self._open: list[AnyPart] = []

    def names(self, kind: str) -> list[str]:
        """Every installed plugin of a kind, as `distribution/name`."""
        return [row.qualified for row in self._catalog.listed(kind)]

    def declared(self, path: str, kind: Any) -> tuple[str, Any]:
        """`KIND.NAME` and capabilities of the plugin of a section, before it is made."""
        offer = self._resolve(self._profile.sections[path], kind).offer
        return f"{offer.kind}.{offer.name}", offer.capabilities

    @property
    def used(self) -> tuple[Used, ...]:
        """The plugins that were kept."""
        return tuple(
            Used(
                section=choice.section,
                kind=choice.kind,
                plugin=choice.plugin,
                distribution=choice.distribution,
                version=choice.version,
            )
            for choice in self._explanation.choices
        )

    def part(self, path: str, kind: str, context: EngineContext) -> AnyPart:
        """The plugin of the section at a path."""
        return self.build(self._profile.sections[path], kind, context)

    def build(self, section: PluginSection, kind: Any, context: EngineContext) -> AnyPart:
        """The plugin of a section, as part of the composition."""
        made = self.make(section, kind, context)
        self.keep(made)
        return made.part

    def optional(self, sections: tuple[PluginSection, ...], kind: str, context: EngineContext) -> list[AnyPart]:
        """Plugins without which the engine serves the same tokens: they may fall back to absence."""
        parts = []
        for section in sections:
            try:
                parts.append(self.build(section, kind, context))
            except (CompositionError, PluginFault) as error:
                self.leave_out(section, error)
        return parts

    def leave_out(self, section: PluginSection, error: TokloomError) -> None:
        """Go on without a plugin if its section says so; else raise what is wrong with it."""
        if section.on_unsupported != "fallback":
            raise error
        self._explanation.downgrades.append(f"{section.path}: {section.plugin} left out: {error}")

    def make(self, section: PluginSection, kind: Any, context: EngineContext) -> Made:
        """The plugin of a section; `keep` makes it part of the explanation.

        Raises ProfileProblems for its name and options, CompositionError or PluginFault for what its factory does.
        """
        resolved = self._resolve(section, kind)
        offer, listed = resolved.offer, resolved.listed
        problems: list[Problem] = []
        options = structure(section.options, offer.config, f"{section.path}.options", problems)
        if problems or options is None:
            raise ProfileProblems(problems)
        plugin = _call_factory(resolved, options, context)
        part: AnyPart = Part(
            offer.kind,
            offer.name,
            listed.distribution,
            listed.version,
            plugin,
            offer.capabilities,
            frozenset(offer.extras),
        )
        if offer.kind in CLOSED_KINDS:
            self._open.append(part)
        return Made(section, resolved, options, part)

    def keep(self, made: Made) -> None:
        """Show a plugin in the explanation, with where each option was written."""
        written = dict(made.section.options.walk())
        shown: dict[str, tuple[str, str]] = {}
        for field in attrs.fields(type(made.options)):
            value = getattr(made.options, field.name)
            text = repr(value) if isinstance(value, Secret) else str(value)
            node = next((n for path, n in written.items() if path.split(".")[0] == field.name), None)
            shown[field.name] = (text, str(node.place) if node is not None else "default")
        listed, contract = made.resolved.listed, str(made.resolved.offer.contract)
        choice = Choice(
            made.section.path, listed.kind, listed.name, listed.distribution, listed.version, contract, shown
        )
        self._explanation.choices.append(choice)

    def close(self) -> None:
        """Close what was made. Faults are logged: the reason why nothing was composed is told elsewhere."""
        while self._open:
            part = self._open.pop()
            try:
                part.plugin.close()
            except Exception as error:
                get_logger("compose").warning("closing failed", plugin=part.id, error=str(error))

    def _resolve(self, section: PluginSection, kind: Any) -> Resolved:
        try:
            return self._catalog.resolve(kind, section.plugin)
        except CompositionError as error:
            node = section.node.children["plugin"] if section.node.children else section.node
            message = f"{error.message} ({error.subject})"
            raise ProfileProblems([Problem(message, node.place, section.path, error.remedy)]) from error


def _call_factory(resolved: Resolved, options: Any, context: EngineContext) -> Any:
    offer, distribution = resolved.offer, resolved.listed.distribution
    subject = f"{offer.kind}.{offer.name}"
    try:
        plugin = offer.factory(options, context)
    except TokloomError:
        raise
    except ImportError as error:
        raise CompositionError(
            f"its factory cannot import {error.name or error}",
            subject=subject,
            remedy=f"Install what {distribution} needs, for example its extras",
        ) from error
    except Exception as error:
        raise PluginFault(
            f"its factory raised {type(error).__name__}: {error}",
            subject=subject,
            remedy=f"Report it to the authors of {distribution}",
        ) from error
    if plugin is None:
        remedy = f"Report it to the authors of {distribution}"
        raise PluginFault("its factory returned nothing", subject=subject, remedy=remedy)
    return plugin
