"""Requirements against capabilities: what the parts of a composition need of each other, fail closed."""

from tokloom.core.compose.explain import Explanation
from tokloom.core.composition import Composition
from tokloom.sdk import CompositionError


def check_requirements(composition: Composition, explanation: Explanation) -> None:
    """Raise CompositionError for the first need that nobody declares; note what is given up silently otherwise."""
    _check_allocator(composition)
    _check_kernels(composition)
    _check_speculation(composition, explanation)
    _check_weights(composition)
    if composition.codec.caps.equivalence == "stepwise":
        explanation.downgrades.append(
            f"{composition.codec.id} is stepwise: prefill runs in chunks of one page at fixed positions"
        )
    layerwise = [part.id for part in composition.connectors if part.caps.layerwise]
    if layerwise and composition.settings.graphs:
        explanation.downgrades.append(f"graphs are not used: {', '.join(layerwise)} works layer by layer")


def _refuse(subject: str, message: str, remedy: str) -> CompositionError:
    return CompositionError(message, subject=subject, remedy=remedy)


def _check_allocator(composition: Composition) -> None:
    caps, part = composition.allocator.caps, composition.allocator
    groups = composition.layout.groups
    if caps.max_groups and len(groups) > caps.max_groups:
        text = f"the layout has {len(groups)} KV groups and the allocator manages {caps.max_groups}"
        raise _refuse(part.id, text, "Choose an allocator for several groups")
    if any(group.window is not None for group in groups) and not caps.windows:
        raise _refuse(part.id, "the model has sliding-window layers and the allocator lacks windows", "Choose another")
    if any(group.open is not None for group in groups) and not caps.seals:
        text = f"{composition.codec.id} seals pages and the allocator lacks seals"
        raise _refuse(part.id, text, "Choose another allocator or codec")


def _check_kernels(composition: Composition) -> None:
    sealing = any(group.open is not None for group in composition.layout.groups)
    for part, phase in ((composition.decode, "decode"), (composition.prefill, "prefill")):
        if phase not in part.caps.phases:
            text = f"the kernel does not take {phase} spans"
            raise _refuse(part.id, text, f"Name another kernel in [attention.{phase}]")
        if sealing and "segments" not in part.caps.features:
            text = f"{composition.codec.id} seals pages and the kernel lacks segments"
            raise _refuse(part.id, text, "Choose another kernel or codec")


def _check_speculation(composition: Composition, explanation: Explanation) -> None:
    part, settings = composition.speculator, composition.settings
    if part is None:
        if settings.verification == "rejection":
            explanation.downgrades.append("verification = rejection has no effect: nothing speculates")
        return
    verifiers = [k for k in (composition.decode, composition.prefill) if "verify" in k.caps.phases]
    if not verifiers:
        raise _refuse(part.id, "no attention kernel takes verify spans", "Choose another kernel, or speculation = off")
    kernel = composition.decode if "verify" in composition.decode.caps.phases else composition.prefill
    if part.caps.trees and "tree" not in kernel.caps.features:
        raise _refuse(part.id, f"it drafts trees and {kernel.id} lacks tree", "Choose another kernel or speculator")
    if settings.verification == "rejection" and not part.caps.dense_q:
        text = "verification = rejection needs drafts drawn through the core (dense_q)"
        raise _refuse(part.id, text, "Use verification = match, or a speculator that samples")
    if settings.depth and part.caps.placement == "host":
        explanation.downgrades.append(f"{part.id} drafts on the host: with a step in flight a sequence gets K = 0")
    if settings.depth and part.caps.placement == "device" and kernel.caps.needs_exact_lens:
        text = f"at depth {settings.depth} lengths lag while drafts are in flight and {kernel.id} needs exact ones"
        raise _refuse(part.id, text, "Use depth = 0, or another kernel")
    if not settings.max_draft_tokens:
        explanation.downgrades.append(f"{part.id} never drafts: engine.max_draft_tokens is 0")


def _check_weights(composition: Composition) -> None:
    part, spec = composition.weights, composition.model.spec
    if part.plugin.claim(spec.checkpoint) <= 0:
        declared = spec.checkpoint.quant_method or "none"
        raise _refuse(part.id, f"it cannot read this checkpoint (quantisation: {declared})", "Choose other weights")
