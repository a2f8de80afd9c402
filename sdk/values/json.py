"""JSON: what the `json` module reads and writes, as a type."""

from collections.abc import Mapping, Sequence

JSON = str | int | float | bool | Sequence["JSON"] | Mapping[str, "JSON"] | None
