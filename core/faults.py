"""Faults: what plugins did wrong, counted per plugin; the first of each method is logged."""

from collections.abc import Mapping

from tokloom.core.logs import get_logger


class Faults:
    """Counts by plugin id. A fault never propagates into another plugin's or a request's fate by itself."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._logged: set[tuple[str, str]] = set()
        self._log = get_logger("faults")
        self.last: dict[str, str] = {}

    def record(self, plugin: str, method: str, error: Exception | str) -> None:
        """Note that `plugin`'s `method` raised or returned what the text says."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        self._counts[plugin] = self._counts.get(plugin, 0) + 1
        self.last[plugin] = f"{method}: {text}"
        if (plugin, method) not in self._logged:
            self._logged.add((plugin, method))
            self._log.warning("plugin_fault", plugin=plugin, method=method, reason=text)

    def count(self, plugin: str) -> int:
        return self._counts.get(plugin, 0)

    @property
    def counts(self) -> Mapping[str, int]:
        """By plugin."""
        return dict(self._counts)

    @property
    def total(self) -> int:
        return sum(self._counts.values())
