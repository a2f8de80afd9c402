"""Rope: rotary frequencies and how they are stretched to longer contexts."""

import math
from typing import Final

from attrs import frozen

from tokloom.plugins.models.decoder.fields import Fields

_KINDS: Final = ("default", "linear", "llama3", "yarn")


@frozen(kw_only=True)
class Rope:
    """One set of rotary frequencies.

    Attributes:
        theta: base of the frequencies.
        kind: `default`, `linear`, `llama3` (Llama 3.1, "The Llama 3 Herd of Models") or `yarn` ("YaRN", equations 17
            to 25).
        factor: by how much contexts are stretched.
        low, high: of `llama3` the frequency band, of `yarn` the rotations `beta_slow` and `beta_fast`.
        original: the context trained on.
        truncate: of `yarn`: the band's ends are whole dimensions.
        attention: what cos and sin are multiplied by.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192
    truncate: bool = True
    attention: float = 1.0

    def frequencies(self, head_dim: int) -> list[float]:
        """`[head_dim / 2]` frequencies."""
        plain = [self.theta ** (-2.0 * i / head_dim) for i in range(head_dim // 2)]
        if self.kind == "linear":
            return [f / self.factor for f in plain]
        if self.kind == "llama3":
            return [self._llama3(f) for f in plain]
        if self.kind == "yarn":
            return self._yarn(plain, head_dim)
        return plain

    def _llama3(self, frequency: float) -> float:
        wavelength = 2 * math.pi / frequency
        if wavelength < self.original / self.high:
            return frequency
        if wavelength > self.original / self.low:
            return frequency / self.factor
        smooth = (self.original / wavelength - self.low) / (self.high - self.low)
        return (1 - smooth) * frequency / self.factor + smooth * frequency

    def _yarn(self, plain: list[float], head_dim: int) -> list[float]:
        """Dimensions that turn often within the original context stay, those that turn seldom are interpolated."""

        def dimension(rotations: float) -> float:
            return head_dim * math.log(self.original / (rotations * 2 * math.pi)) / (2 * math.log(self.theta))

        first, last = dimension(self.high), dimension(self.low)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, head_dim - 1)
        width = last - first if last != first else 0.001
        ramps = [min(max((i - first) / width, 0.0), 1.0) for i in range(len(plain))]
        return [f / self.factor * ramp + f * (1 - ramp) for f, ramp in zip(plain, ramps, strict=True)]


def yarn_attention(factor: float, scale: float = 1.0) -> float:
    """YaRN's growth of attention with the stretch."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def hf_rope(fields: Fields, theta: float, longest: int) -> Rope:
    """From a table of rotary parameters that may leave out `rope_theta`. `longest`: the model's context."""
    theta = fields.positive("rope_theta", theta)
    if fields.get("partial_rotary_factor", float, 1.0) != 1.0:
        raise fields.fail("partial_rotary_factor", f"is {fields.values['partial_rotary_factor']}", "Supported: 1")
    named = fields.raw("rope_type"), fields.raw("type")
    kind = str(named[0] or named[1] or "default")
    if kind not in _KINDS:
        raise fields.fail("rope_type", f"is {kind!r}", f"Supported: {', '.join(_KINDS)}")
    if kind == "default":
        rope = Rope(theta=theta)
    elif kind == "linear":
        rope = Rope(theta=theta, kind=kind, factor=fields.positive("factor"))
    elif kind == "llama3":
        rope = Rope(
            theta=theta,
            kind=kind,
            factor=fields.positive("factor"),
            low=fields.positive("low_freq_factor"),
            high=fields.positive("high_freq_factor"),
            original=fields.size("original_max_position_embeddings", most=1 << 30),
        )
    else:
        rope = _hf_yarn(fields, theta, longest)
    fields.refuse_unread(frozenset({"original_max_position_embeddings"}))
    return rope


def _hf_yarn(fields: Fields, theta: float, longest: int) -> Rope:
    if theta <= 1:
        raise fields.fail("rope_theta", f"is {theta}; yarn needs a base above 1")
    original = fields.size("original_max_position_embeddings", longest, most=1 << 30)
    factor = fields.positive("factor", longest / original)
    scale, whole = fields.optional("mscale"), fields.optional("mscale_all_dim")
    attention = fields.optional("attention_factor")
    if attention is None and scale and whole:
        attention = yarn_attention(factor, scale) / yarn_attention(factor, whole)
    return Rope(
        theta=theta,
        kind="yarn",
        factor=factor,
        low=fields.positive("beta_slow", 1.0),
        high=fields.positive("beta_fast", 32.0),
        original=original,
        truncate=fields.get("truncate", bool, True),
        attention=yarn_attention(factor) if attention is None else attention,
    )


def gguf_rope(fields: Fields, arch: str, theta: float, longest: int) -> Rope:
    """From GGUF's `ARCH.rope.*`."""
    at = f"{arch}.rope.scaling."
    theta = fields.positive(f"{arch}.rope.freq_base", theta)
    kind = fields.get(at + "type", str, "none")
    if kind == "none":
        return Rope(theta=theta)
    factor = fields.positive(at + "factor", 1.0)
    if kind == "linear":
        return Rope(theta=theta, kind=kind, factor=factor)
    if kind == "yarn" and theta > 1:
        return Rope(
            theta=theta,
            kind=kind,
            factor=factor,
            low=fields.positive(at + "yarn_beta_slow", 1.0),
            high=fields.positive(at + "yarn_beta_fast", 32.0),
            original=fields.size(at + "original_context_length", longest, most=1 << 30),
            attention=fields.positive(at + "attn_factor", 1.0) * yarn_attention(factor),
        )
    raise fields.fail(at + "type", f"is {kind!r}", "Supported: none, linear, yarn")
