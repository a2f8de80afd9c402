"""From a profile to a running core."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokloom.api.profiles import read_profile
from tokloom.core.catalog import Catalog
from tokloom.core.compose import Composer
from tokloom.core.composition import Composition, Part
from tokloom.core.engine import EngineCore
from tokloom.core.logs import get_logger
from tokloom.sdk import RequestError, Tokenizer, TokloomError

Progress = Callable[[int, int, str], None]


class Loader:
    """Loads one core, maybe on another thread than the one that wants it and may go away meanwhile."""

    def __init__(self, compose: Callable[[], Composition], progress: Progress | None) -> None:
        self._compose = compose
        self._progress = progress
        self._lock = threading.Lock()
        self._abandoned = False
        self._core: EngineCore | None = None

    @classmethod
    def of_profile(
        cls,
        profile: str | Path | Mapping[str, Any],
        model: str | Path | Mapping[str, Any] | None,
        sets: Sequence[str],
        overrides: Mapping[str, Any],
        catalog: Catalog | None,
        progress: Progress | None,
    ) -> "Loader":
        """Arguments as of `Engine.from_profile`."""

        def compose() -> Composition:
            loaded = read_profile(profile, model=model, sets=sets, overrides=overrides)
            return Composer(loaded, catalog or Catalog()).compose()

        return cls(compose, progress)

    def load(self) -> EngineCore:
        """Compose and load. If that fails, the plugins that were made are closed."""
        composition = self._compose()
        try:
            core = EngineCore(composition, progress=self._progress) if self._progress else EngineCore(composition)
        except BaseException:
            _close_parts(composition)
            raise
        with self._lock:
            self._core = core
            abandoned = self._abandoned
        if abandoned:
            core.close()
        return core

    def abandon(self) -> None:
        """Nobody wants the core any more. From any thread."""
        with self._lock:
            self._abandoned = True
            core = self._core
        if core is not None:
            core.close()


def _close_parts(composition: Composition) -> None:
    parts: list[Part[Any, Any]] = [*composition.connectors, *composition.observers]
    for part in parts:
        try:
            part.plugin.close()
        except Exception as error:
            get_logger("api").warning("closing failed", plugin=part.id, error=str(error))
    composition.context.close()


def open_tokenizer(model: str | Path, catalog: Catalog | None = None) -> Tokenizer:
    """The tokenizer of a model folder or file, without loading weights. Raises RequestError if it has none."""
    from tokloom.core.compose.opening import source_of
    from tokloom.core.context import EngineContext
    from tokloom.core.device import resolve
    from tokloom.sdk import Limits

    installed = catalog or Catalog()
    source = source_of(str(model))
    limits = Limits(max_batch_tokens=1, max_sequences=1, max_model_tokens=1, max_draft_tokens=0, page_tokens=1)
    context = EngineContext(device=resolve("auto").info, dtype="", limits=limits)
    for row in installed.listed("model"):
        try:
            offer = installed.resolve("model", row.qualified).offer
            family = offer.factory(offer.config(), context)
            if family.claims(source):
                tokenizer: Tokenizer | None = family.open(source).tokenizer
                if tokenizer is not None:
                    return tokenizer
        except TokloomError:
            continue
    raise RequestError("no tokenizer found", subject=str(model), remedy="Give a model folder or file that carries one")
