"""Sampling: the logits pipeline, laws, draws, exact verification of drafts, and the choice of K."""

from tokloom.core.parameters import validate
from tokloom.core.sampling.controller import AdaptiveK, ControllerOptions
from tokloom.core.sampling.logprobs import TokenLogprobs
from tokloom.core.sampling.masks import MaskTimes
from tokloom.core.sampling.rng import derive, stream, uniform, uniforms
from tokloom.core.sampling.sampler import Sampler, VerifyMode
from tokloom.core.sampling.spans import ScoreRows, ScoreSample, SpanRows, SpanSample

__all__ = [
    "AdaptiveK",
    "ControllerOptions",
    "MaskTimes",
    "Sampler",
    "ScoreRows",
    "ScoreSample",
    "SpanRows",
    "SpanSample",
    "TokenLogprobs",
    "VerifyMode",
    "derive",
    "stream",
    "uniform",
    "uniforms",
    "validate",
]
