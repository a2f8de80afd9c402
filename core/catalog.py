"""Catalog: which offers are installed. Listing imports nothing; resolving imports only what is named."""

import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, EntryPoint, distributions
from types import ModuleType
from typing import Any, Final, get_args

import attrs
import pluggy
from attrs import frozen

from tokloom.core.hooks import Hooks
from tokloom.sdk import (
    CONTRACTS,
    KINDS,
    PROJECT,
    AllocatorCaps,
    AttentionCaps,
    CodecCaps,
    CompositionError,
    ConnectorCaps,
    GrammarSyntax,
    Kind,
    LogitsCaps,
    ModelCaps,
    ObserverCaps,
    Offer,
    OpCaps,
    SchedulerCaps,
    SpeculatorCaps,
    WeightCaps,
)

GROUP: Final = "tokloom.plugins"
LOCAL: Final = "local"

CAPABILITIES: Final[dict[Kind, type]] = {
    "attention": AttentionCaps,
    "allocator": AllocatorCaps,
    "connector": ConnectorCaps,
    "codec": CodecCaps,
    "weights": WeightCaps,
    "scheduler": SchedulerCaps,
    "speculator": SpeculatorCaps,
    "model": ModelCaps,
    "ops": OpCaps,
    "observer": ObserverCaps,
    "logits": LogitsCaps,
}
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]*")
_EXTRA: Final = re.compile(r"x-[A-Za-z0-9._-]+\.[A-Za-z0-9_-]+")
AnyOffer = Offer[Any, Any]


@frozen
class Listed:
    """An installed offer by name; nothing of it is imported."""

    kind: str
    name: str
    distribution: str
    version: str
    target: str

    @property
    def qualified(self) -> str:
        return f"{self.distribution}/{self.name}"


@frozen
class Inspected:
    """A listed offer after an attempt to load it. `problem` is empty if it can be used."""

    listed: Listed
    problem: str
    contract: str = ""
    summary: str = ""
    capabilities: str = ""
    extras: tuple[str, ...] = ()


@frozen
class Resolved:
    """A loaded, checked offer and where it came from."""

    listed: Listed
    offer: AnyOffer


class _Broken(Exception):
    """Why an entry point is unusable; one sentence that names the hook where there is one."""


class Catalog:
    """Offers of installed distributions, and any given directly.

    Args:
        path: where to look for distributions; None is `sys.path`.
        extra: offers that need no entry point (an embedder's own, tests).
    """

    def __init__(self, *, path: Sequence[str] | None = None, extra: Iterable[AnyOffer] = ()) -> None:
        self._entries: dict[Listed, EntryPoint] = {}
        self._extra: dict[Listed, AnyOffer] = {}
        where = list(sys.path if path is None else path)
        # names are in the metadata, which takes ten times as long to read as the entry points do
        for name in {found.name for found in distributions(path=where) if _ours(found) and found.name}:
            first = next(iter(distributions(name=name, path=where)))  # the one that would be imported
            for entry in _ours(first):
                kind, _, offer = entry.name.partition(".")
                self._entries[Listed(kind, offer, name, first.version, entry.value)] = entry
        for own in extra:
            self._extra[Listed(own.kind, own.name, LOCAL, "0", "")] = own

    def listed(self, kind: str | None = None) -> list[Listed]:
        """All offers, of one kind or of all, sorted."""
        rows = [row for row in (*self._entries, *self._extra) if kind is None or row.kind == kind]
        return sorted(rows, key=lambda row: (row.kind, row.name, row.distribution))

    def inspect(self) -> list[Inspected]:
        """Load everything, one by one; a broken plugin is a row with its problem."""
        rows = []
        for listed in self.listed():
            try:
                offer = self._load(listed)
            except _Broken as error:
                rows.append(Inspected(listed, str(error)))
                continue
            rows.append(
                Inspected(
                    listed,
                    "",
                    str(offer.contract),
                    offer.summary,
                    _shown(offer.capabilities),
                    tuple(sorted(offer.extras)),
                )
            )
        return rows

    def resolve(self, kind: Kind, name: str) -> Resolved:
        """The offer that a profile calls `name` or `distribution/name`.

        Raises CompositionError if there is none, if several distributions offer the bare name, or if it is broken.
        """
        rows = self.listed(kind)
        if "/" in name:
            matches = [row for row in rows if row.qualified == name]
        else:
            matches = [row for row in rows if row.name == name]
        if not matches:
            names = sorted({row.name for row in rows} | {row.qualified for row in rows if "/" in name})
            near = difflib.get_close_matches(name, names, 1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise CompositionError(
                f"no installed plugin offers {kind} {name!r}",
                subject=f"{kind}.{name}",
                remedy=f"{hint}Installed: {', '.join(names) or 'none'}",
            )
        if len(matches) > 1:
            raise CompositionError(
                f"{len(matches)} distributions offer {kind} {name!r}",
                subject=f"{kind}.{name}",
                remedy="Write one of " + ", ".join(row.qualified for row in matches),
            )
        try:
            return Resolved(matches[0], self._load(matches[0]))
        except _Broken as error:
            raise CompositionError(
                str(error),
                subject=f"{kind}.{name} of {matches[0].distribution} {matches[0].version}",
                remedy="Update or remove the distribution, or name another plugin",
            ) from error

    def _load(self, listed: Listed) -> AnyOffer:
        if listed in self._extra:
            offer = self._extra[listed]
            check_offer(offer, listed)
            return offer
        if listed.kind not in KINDS:
            near = difflib.get_close_matches(listed.kind, KINDS, 1)
            raise _Broken(
                f"entry point {listed.kind}.{listed.name} is of no known kind"
                + (f"; did you mean {near[0]}?" if near else "")
            )
        module = _import(self._entries[listed])
        offers = _offers(module, listed.kind)
        named = [offer for offer in offers if isinstance(offer, Offer) and offer.name == listed.name]
        if not named:
            names = [repr(offer.name) if isinstance(offer, Offer) else type(offer).__name__ for offer in offers]
            given = ", ".join(names) or "nothing"
            raise _Broken(f"hook tokloom_{listed.kind} returned {given}, but no offer named {listed.name!r}")
        check_offer(named[0], listed)
        return named[0]


def _ours(distribution: Distribution) -> list[EntryPoint]:
    return [entry for entry in distribution.entry_points if entry.group == GROUP]


def _import(entry: EntryPoint) -> ModuleType:
    try:
        module = entry.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may even exit the process at import
        raise _Broken(f"importing {entry.value} raised {type(error).__name__}: {error}") from error
    if not isinstance(module, ModuleType):
        raise _Broken(f"entry point {entry.name} names {type(module).__name__} {entry.value}, not a module")
    return module


def _offers(module: ModuleType, kind: str) -> Sequence[object]:
    """Call the module's hook of this kind, alone in a plugin manager of its own."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Hooks)
    try:
        manager.register(module)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise _Broken(_misspelt(error, module)) from error
    hook = getattr(manager.hook, f"tokloom_{kind}")
    if not hook.get_hookimpls():
        raise _Broken(f"module {module.__name__} implements no hook tokloom_{kind} (is hookimpl missing?)")
    try:
        answers = hook()
    except Exception as error:
        raise _Broken(f"hook tokloom_{kind} raised {type(error).__name__}: {error}") from error
    offers: list[object] = []
    for answer in answers:
        if not isinstance(answer, (list, tuple)):
            raise _Broken(f"hook tokloom_{kind} returned {type(answer).__name__}, expected a list of offers")
        offers += answer
    return offers


def _misspelt(error: pluggy.PluginValidationError, module: ModuleType) -> str:
    known = [f"tokloom_{kind}" for kind in KINDS]
    for name in vars(module):
        if hasattr(vars(module)[name], f"{PROJECT}_impl") and name not in known:
            near = difflib.get_close_matches(name, known, 1)
            return f"hook {name} does not exist" + (f"; did you mean {near[0]}?" if near else "")
    return f"hooks of {module.__name__} do not fit: {error}"


def check_offer(offer: AnyOffer, listed: Listed) -> None:
    """Raise `_Broken` with the first thing that is wrong with an offer."""
    hook = f"hook tokloom_{listed.kind}"
    if offer.kind != listed.kind:
        raise _Broken(f"{hook} returned an offer of kind {offer.kind!r}")
    if not _NAME.fullmatch(offer.name):
        raise _Broken(f"{hook} offers the name {offer.name!r}; use lower case letters, digits and dashes")
    ours = CONTRACTS[offer.kind]
    theirs = offer.contract
    if theirs.major != ours.major or theirs.minor > ours.minor:
        raise _Broken(
            f"{hook} offers {offer.name!r} for {offer.kind} contract {theirs}; this core has {ours} "
            f"(same major, minor up to {ours.minor})"
        )
    wanted = CAPABILITIES[offer.kind]
    if type(offer.capabilities) is not wanted:
        raise _Broken(
            f"{hook} offers {offer.name!r} with capabilities {type(offer.capabilities).__name__}, "
            f"expected {wanted.__name__}"
        )
    _check_capabilities(offer, hook)
    if not (isinstance(offer.config, type) and attrs.has(offer.config)) or not _is_frozen(offer.config):
        raise _Broken(f"{hook} offers {offer.name!r} whose config is not a frozen attrs class")
    if not callable(offer.factory):
        raise _Broken(f"{hook} offers {offer.name!r} whose factory cannot be called")
    for extra in offer.extras:
        if not _EXTRA.fullmatch(extra):
            raise _Broken(f"{hook} offers {offer.name!r} with extra capability {extra!r}; write x-DIST.name")


def _check_capabilities(offer: AnyOffer, hook: str) -> None:
    """Set- and choice-valued capabilities may only hold the words of the contract."""
    known = _CHOICES.get(offer.kind, {})
    for field, words in known.items():
        value = getattr(offer.capabilities, field)
        given = value if isinstance(value, frozenset) else {value}
        unknown = sorted(str(word) for word in given - words)
        if unknown:
            near = difflib.get_close_matches(unknown[0], words, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(words))}"
            raise _Broken(f"{hook} offers {offer.name!r} with unknown capability {field} = {unknown[0]!r}{hint}")


_CHOICES: Final[dict[str, dict[str, frozenset[str]]]] = {
    "attention": {
        "phases": frozenset({"decode", "verify", "prefill"}),
        "features": frozenset({"window", "soft_cap", "sinks", "alibi", "non_causal", "tree", "segments"}),
        "graph": frozenset({"none", "decode", "any"}),
    },
    "codec": {"equivalence": frozenset({"position", "stepwise"})},
    "scheduler": {"head_of_line": frozenset({"strict", "skip"})},
    "speculator": {"placement": frozenset({"host", "device"})},
    "logits": {"role": frozenset({"processor", "grammar"}), "syntaxes": frozenset(get_args(GrammarSyntax))},
}


def _is_frozen(cls: type) -> bool:
    return getattr(cls.__setattr__, "__name__", "") == "_frozen_setattrs"


def _shown(capabilities: Any) -> str:
    """Capabilities that differ from the most modest ones, for people."""
    parts = []
    for field in attrs.fields(type(capabilities)):
        value = getattr(capabilities, field.name)
        if isinstance(value, frozenset):
            value = "+".join(sorted(value)) or "none"
        if value is False or value == "none":
            continue
        parts.append(field.name if value is True else f"{field.name}={value}")
    return ", ".join(parts)
