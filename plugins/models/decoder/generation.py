"""What a checkpoint recommends for sampling, from generation_config.json or GGUF's `general.sampling.*`."""

from collections.abc import Mapping
from typing import Final

from tokloom.plugins.models.decoder.fields import Fields
from tokloom.sdk import GenerationDefaults

#: field -> GGUF key
_GGUF: Final[Mapping[str, str]] = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


def hf_generation(fields: Fields | None) -> GenerationDefaults:
    """From generation_config.json. `do_sample: false` is greedy whatever else is said."""
    if fields is None:
        return GenerationDefaults()
    greedy = fields.raw("do_sample") is False
    return GenerationDefaults(
        temperature=0.0 if greedy else _number(fields, "temperature", 0.0),
        top_k=None if greedy else _count(fields, "top_k"),
        top_p=None if greedy else _share(fields, "top_p", 0.0, 1.0),
        min_p=None if greedy else _share(fields, "min_p", -1.0, 1.0),
        repetition_penalty=_number(fields, "repetition_penalty", 0.01),
        max_tokens=_count(fields, "max_new_tokens"),
    )


def gguf_generation(fields: Fields) -> GenerationDefaults:
    """From GGUF metadata."""
    key = {field: f"general.sampling.{name}" for field, name in _GGUF.items()}
    return GenerationDefaults(
        temperature=_number(fields, key["temperature"], 0.0),
        top_k=_count(fields, key["top_k"]),
        top_p=_share(fields, key["top_p"], 0.0, 1.0),
        min_p=_share(fields, key["min_p"], -1.0, 1.0),
        repetition_penalty=_number(fields, key["repetition_penalty"], 0.01),
    )


def _number(fields: Fields, key: str, least: float) -> float | None:
    if fields.raw(key) is None:
        return None
    value = fields.get(key, float)
    if not least <= value <= 100.0:
        raise fields.fail(key, f"is {value}; it must be between {least} and 100")
    return value


def _share(fields: Fields, key: str, above: float, most: float) -> float | None:
    if fields.raw(key) is None:
        return None
    value = fields.get(key, float)
    if not above < value <= most or value < 0:
        raise fields.fail(key, f"is {value}; it must be a share of 1")
    return value


def _count(fields: Fields, key: str) -> int | None:
    if fields.raw(key) is None:
        return None
    value = fields.get(key, int)
    if value < 0:
        raise fields.fail(key, f"is {value}; it must not be negative")
    return value
