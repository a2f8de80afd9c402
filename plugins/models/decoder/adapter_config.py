"""LoraConfig: what adapter_config.json of a PEFT folder says, of what this family can compute.

What would change the result and cannot be computed is refused by name; what only mattered for training is not read.
"""

import re
from collections.abc import Mapping
from typing import Final, NoReturn, TypeVar

from attrs import frozen

from tokloom.sdk import CheckpointError

T = TypeVar("T", int, float)

#: keys that must be unset, and what they would do
_REFUSED: Final = {
    "use_dora": "weight decomposition (DoRA)",
    "modules_to_save": "whole modules",
    "trainable_token_indices": "trained token embeddings",
    "layer_replication": "replicated layers",
    "target_parameters": "adapters of bare parameters",
    "lora_bias": "biases in the low-rank matrices",
    "alora_invocation_tokens": "activation by tokens",
    "use_qalora": "quantization-aware adapters",
    "use_bdlora": "block-diagonal matrices",
    "arrow_config": "routing between adapters",
    "kasa_config": "singular-value adapters",
    "megatron_config": "Megatron's layers",
    "monteclora_config": "Monte Carlo adapters",
    "velora_config": "compressed activations",
    "fan_in_fan_out": "transposed weights",
}
_ALL_LINEAR: Final = "all-linear"


@frozen(kw_only=True)
class LoraConfig:
    """Low-rank adapters (Hu et al., "LoRA", 2021): `W + scale * B @ A`.

    Attributes:
        targets: a regular expression for whole module names, or names that a module's dotted name ends with.
        exclude: likewise, of modules that are left alone.
        layers: numbers of the layers that are changed; empty: all.
        layers_pattern: names of the list that those layers stand in; empty: any.
        rank, alpha: unless a pattern says otherwise.
        rank_pattern, alpha_pattern: expression for the end of a module's name -> value; the first that matches counts.
        rslora: scale by the square root of the rank (Kalajdzievski, 2023).
    """

    subject: str
    targets: str | tuple[str, ...]
    exclude: str | tuple[str, ...]
    layers: tuple[int, ...]
    layers_pattern: tuple[str, ...]
    rank: int
    alpha: float
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    rslora: bool

    def changes(self, module: str) -> bool:
        """Whether the module of a dotted name, one of the layers', has an adapter."""
        if _names(self.exclude, module):
            return False
        if self.targets == _ALL_LINEAR:
            return True
        if isinstance(self.targets, str):
            return re.fullmatch(self.targets, module) is not None
        return _names(self.targets, module) and (not self.layers or self._layer(module) in self.layers)

    def _layer(self, module: str) -> int:
        """The number of the layer a module stands in; -1 where the pattern names another list."""
        for pattern in self.layers_pattern or (r"[^.]*",):
            match = re.match(rf"(?:^|.*?\.){pattern}\.(\d+)\.", module)
            if match is not None:
                return int(match[1])
        return -1

    def rank_of(self, module: str) -> int:
        return _pattern(self.rank_pattern, module, self.rank)

    def scale_of(self, module: str) -> float:
        """What `B @ A` is multiplied by."""
        rank = self.rank_of(module)
        return _pattern(self.alpha_pattern, module, self.alpha) / (rank**0.5 if self.rslora else rank)


def _names(given: str | tuple[str, ...], module: str) -> bool:
    if isinstance(given, str):
        return bool(given) and re.fullmatch(given, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in given)


def _pattern(values: Mapping[str, T], module: str, default: T) -> T:
    for key, value in values.items():
        if re.match(rf"(.*\.)?({key})$", module):
            return value
    return default


def read_config(subject: str, raw: Mapping[str, object]) -> LoraConfig:
    """Raises CheckpointError naming file and key."""
    reader = _Reader(subject, raw)
    if raw.get("peft_type") != "LORA":
        reader.refuse("peft_type", "only LORA is supported")
    for key, what in _REFUSED.items():
        if raw.get(key):
            reader.refuse(key, f"{what} are not supported")
    if raw.get("bias") not in (None, "none"):
        reader.refuse("bias", "trained biases are not supported: only none is")
    layers = raw.get("layers_to_transform")
    return LoraConfig(
        subject=subject,
        targets=reader.names("target_modules", required=True),
        exclude=reader.names("exclude_modules"),
        layers=reader.numbers("layers_to_transform", [layers] if type(layers) is int else layers),
        layers_pattern=reader.patterns("layers_pattern"),
        rank=int(reader.positive("r", raw.get("r"), whole=True)),
        alpha=reader.positive("lora_alpha", raw.get("lora_alpha")),
        rank_pattern={key: int(value) for key, value in reader.table("rank_pattern", whole=True).items()},
        alpha_pattern=reader.table("alpha_pattern"),
        rslora=reader.flag("use_rslora"),
    )


class _Reader:
    """Typed reads. Errors name file and key."""

    def __init__(self, subject: str, raw: Mapping[str, object]) -> None:
        self._subject = subject
        self._raw = raw

    def refuse(self, key: str, why: str) -> NoReturn:
        raise CheckpointError(
            f"{key} is {self._raw.get(key)!r:.80}: {why}", subject=self._subject, remedy="Use another adapter"
        )

    def positive(self, key: str, value: object, *, whole: bool = False) -> float:
        kinds = (int,) if whole else (int, float)
        if type(value) not in kinds or not 0 < value < 1e9:  # type: ignore[operator]
            self._wrong(key, value, "a positive integer" if whole else "a positive number")
        return value  # type: ignore[return-value]

    def table(self, key: str, *, whole: bool = False) -> dict[str, float]:
        value = self._raw.get(key) or {}
        if not isinstance(value, dict):
            self._wrong(key, value, "a table")
        for name in value:
            self._expression(key, name)
        return {name: self.positive(f"{key}.{name}", item, whole=whole) for name, item in value.items()}

    def flag(self, key: str) -> bool:
        value = self._raw.get(key) or False
        if not isinstance(value, bool):
            self._wrong(key, value, "true or false")
        return value

    def names(self, key: str, *, required: bool = False) -> str | tuple[str, ...]:
        """One expression, or several names."""
        value = self._raw.get(key)
        if isinstance(value, str) and value:
            return value if value == _ALL_LINEAR else self._expression(key, value)
        if value is None and not required:
            return ()
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value) or (required and not value):
            self._wrong(key, value, "a regular expression or a list of module names")
        return tuple(value)

    def patterns(self, key: str) -> tuple[str, ...]:
        value = self._raw.get(key) or []
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list):
            self._wrong(key, value, "an expression or a list of them")
        return tuple(self._expression(key, item) for item in items)

    def numbers(self, key: str, value: object) -> tuple[int, ...]:
        items = value or []
        if not isinstance(items, list) or not all(type(item) is int and item >= 0 for item in items):
            self._wrong(key, value, "a layer's number or a list of them")
        return tuple(items)

    def _expression(self, key: str, value: object) -> str:
        if not isinstance(value, str):
            self._wrong(key, value, "a regular expression")
        try:
            re.compile(value)
        except re.error as error:
            raise CheckpointError(
                f"{key} has {value!r}, which is no regular expression: {error}",
                subject=self._subject,
                remedy="Get the adapter again",
            ) from None
        return value

    def _wrong(self, key: str, value: object, wanted: str) -> NoReturn:
        raise CheckpointError(
            f"{key} is {value!r:.80}, expected {wanted}", subject=self._subject, remedy="Get the adapter again"
        )
