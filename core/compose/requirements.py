"""Requirements against capabilities: what the parts of a composition need of each other, fail closed.

Every check raises CompositionError for the first need that nobody declares: the part, what is missing, a remedy.
"""

from typing import Any

from tokloom.core.compose.builder import ask
from tokloom.core.compose.explain import Explanation
from tokloom.core.composition import Composition, EngineSettings, Part, verifier
from tokloom.sdk import (
    AllocatorCaps,
    AttentionCaps,
    AttentionKernel,
    CodecCaps,
    CompositionError,
    KVCodec,
    KVGroup,
    ModelCaps,
    ModelSpec,
    SpecNeeds,
    Speculator,
    SpeculatorCaps,
    WeightCaps,
    WeightMethod,
)

KernelPart = Part[AttentionKernel, AttentionCaps]
CodecPart = Part[KVCodec, CodecCaps]


def _refuse(subject: str, message: str, remedy: str) -> CompositionError:
    return CompositionError(message, subject=subject, remedy=remedy)


def check_codec(codec: CodecPart, decode: KernelPart, prefill: KernelPart, settings: EngineSettings) -> None:
    """What a codec needs of kernels and engine whatever its formats are."""
    page, rows = settings.page_tokens, settings.max_batch_tokens
    if codec.caps.equivalence == "stepwise" and rows < page:
        text = f"prefill runs in chunks of whole pages of {page} tokens and engine.max_batch_tokens is {rows}"
        raise _refuse(codec.id, text, f"Raise engine.max_batch_tokens to {page} or more, or lower engine.page_tokens")
    if codec.caps.transforms and decode.caps.applies_transforms != prefill.caps.applies_transforms:
        able, other = (decode, prefill) if decode.caps.applies_transforms else (prefill, decode)
        text = f"{able.id} applies its transforms and {other.id} does not: they would be applied twice or not at all"
        raise _refuse(codec.id, text, "Name one kernel for both phases, or choose another codec")


def check_kernels(decode: KernelPart, prefill: KernelPart, codec: CodecPart, sealing: bool) -> None:
    """Whether each kernel takes the spans and segments it will get."""
    for part, phase in ((decode, "decode"), (prefill, "prefill")):
        if phase not in part.caps.phases:
            text = f"the kernel does not take {phase} spans"
            raise _refuse(part.id, text, f"Name another kernel in [attention.{phase}]")
        if sealing and "segments" not in part.caps.features:
            text = f"{codec.id} seals pages and the kernel lacks segments"
            raise _refuse(part.id, text, "Choose another kernel or codec")
    if sealing and not codec.caps.seals:
        raise _refuse(codec.id, "its formats have open pages and it lacks seals", "Choose another codec")


def check_groups(allocator: str, caps: AllocatorCaps, groups: tuple[KVGroup, ...], codec: str) -> None:
    """Whether the allocator manages such groups."""
    if caps.max_groups and len(groups) > caps.max_groups:
        text = f"the layout has {len(groups)} KV groups ({_owners(groups)}) and the allocator manages {caps.max_groups}"
        raise _refuse(allocator, text, "Choose an allocator for several groups")
    windows = sorted({f"the {group.owner}" for group in groups if group.window is not None})
    if windows and not caps.windows:
        text = f"{' and '.join(windows)} has sliding-window layers and the allocator lacks windows"
        raise _refuse(allocator, text, "Choose another allocator")
    if any(group.open is not None for group in groups) and not caps.seals:
        text = f"{codec} seals pages and the allocator lacks seals"
        raise _refuse(allocator, text, "Choose another allocator or codec")


def _owners(groups: tuple[KVGroup, ...]) -> str:
    own = sum(group.owner == "speculator" for group in groups)
    return f"{len(groups) - own} of the model" + (f", {own} of the speculator" if own else "")


def check_speculator(
    part: Part[Speculator, SpeculatorCaps],
    needs: SpecNeeds,
    decode: KernelPart,
    prefill: KernelPart,
    codec: CodecPart,
    settings: EngineSettings,
    spec: ModelSpec,
    model: ModelCaps,
) -> None:
    """What drafting and verifying need of everyone else."""
    _check_features(part, needs, spec, model)
    if codec.caps.equivalence == "stepwise":
        text = f"{codec.id} is stepwise: verifying several rows at once changes what it stores, hence the tokens"
        raise _refuse(part.id, text, "Use speculation = off, or another codec")
    if verifier(decode, prefill, False) is None:
        raise _refuse(part.id, "no attention kernel takes verify spans", "Choose another kernel, or speculation = off")
    kernel = verifier(decode, prefill, part.caps.trees)
    if kernel is None:
        able = dict.fromkeys(k.id for k in (decode, prefill) if "verify" in k.caps.phases)
        text = f"it drafts trees and {' and '.join(able)} {'lacks' if len(able) == 1 else 'lack'} tree"
        raise _refuse(part.id, text, "Choose another kernel or speculator")
    if settings.verification == "rejection" and not part.caps.dense_q:
        text = "verification = rejection needs drafts drawn through the core (dense_q)"
        raise _refuse(part.id, text, "Use verification = match, or a speculator that samples")
    if settings.depth and part.caps.placement == "device":
        for user in (decode, kernel):
            if user.caps.needs_exact_lens:
                text = (
                    f"at depth {settings.depth} lengths lag while drafts are in flight and {user.id} needs exact ones"
                )
                raise _refuse(part.id, text, "Use depth = 0, or another kernel")


def _check_features(
    part: Part[Speculator, SpeculatorCaps], needs: SpecNeeds, spec: ModelSpec, model: ModelCaps
) -> None:
    if not needs.features:
        return
    wanted = ", ".join(map(str, needs.features))
    if not model.features:
        text = f"it needs hidden states after layers {wanted}, which the model family cannot capture"
        raise _refuse(part.id, text, "Use another speculator or another family")
    count = len(spec.layers)
    if not all(0 <= layer < count for layer in needs.features):
        text = f"it needs hidden states after layers {wanted} and {spec.name} has layers 0 to {count - 1}"
        raise _refuse(part.id, text, "Use a speculator that was made for this model")


def check_weights(part: Part[WeightMethod, WeightCaps], spec: ModelSpec) -> None:
    """Whether the weight method reads the checkpoint."""
    if ask(part, "claim", lambda: int(part.plugin.claim(spec.checkpoint))) <= 0:
        declared = spec.checkpoint.quant_method or "none"
        raise _refuse(part.id, f"it cannot read this checkpoint (quantisation: {declared})", "Choose other weights")


# -- what works, but not as somebody may expect ------------------------------------------------------------------------


def graph_obstacles(composition: Composition) -> list[str]:
    """Why decode steps cannot be replayed from recordings; empty if they can."""
    found = []
    if composition.decode.caps.graph == "none":
        found.append(f"{composition.decode.id} cannot be replayed")
    if composition.needs.features and composition.speculator is not None:
        found.append(f"{composition.speculator.id} needs hidden states")
    layerwise = [part.id for part in composition.connectors if part.caps.layerwise]
    if layerwise:
        found.append(f"{', '.join(layerwise)} works layer by layer")
    if any(group.open is not None for group in composition.layout.groups if group.owner == "model"):
        found.append(f"{composition.codec.id} seals pages")
    return found


def note_given_up(composition: Composition, explanation: Explanation) -> None:
    """Note what works differently from what the profile may let somebody expect."""
    given_up, settings = explanation.downgrades, composition.settings
    if composition.codec.caps.equivalence == "stepwise":
        given_up.append(f"{composition.codec.id} is stepwise: prefill runs in chunks of one page at fixed positions")
    obstacles = graph_obstacles(composition)
    if settings.graphs and obstacles:
        given_up.append(f"graphs are not used: {'; '.join(obstacles)}")
    if settings.graphs and not obstacles and composition.adapters:
        given_up.append("graphs are not used for steps in which a sequence uses an adapter")
    _note_speculation(composition, given_up)


def _note_speculation(composition: Composition, given_up: list[str]) -> None:
    part: Part[Any, Any] | None = composition.speculator
    settings = composition.settings
    if part is None:
        if settings.verification == "rejection":
            given_up.append("verification = rejection has no effect: nothing speculates")
        return
    if settings.depth and part.caps.placement == "host":
        given_up.append(f"{part.id} drafts on the host: with a step in flight a sequence gets K = 0")
    if not settings.max_draft_tokens:
        given_up.append(f"{part.id} never drafts: engine.max_draft_tokens is 0")
