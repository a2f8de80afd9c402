"""What a model's authors recommend for sampling, as parameters."""

import attrs

from tokloom.sdk import ModelSpec, SamplingParams


def recommended(spec: ModelSpec, base: SamplingParams | None = None) -> SamplingParams:
    """`base`, or parameters as they are by default, with what the checkpoint recommends in their place."""
    said = attrs.asdict(spec.generation, filter=lambda field, value: value is not None)
    return attrs.evolve(base or SamplingParams(), **said)
