"""ReasoningFormat: how a model marks what it thinks before it answers."""

from typing import Final

from attrs import frozen


@frozen
class ReasoningFormat:
    """Reasoning stands between `begin` and `end`, before the answer. Some templates write `begin` themselves, so that
    the model's text starts inside.
    """

    name: str
    begin: str
    end: str


#: name -> format; of two that a template names, the first counts
REASONING_FORMATS: Final = {
    found.name: found
    for found in (
        ReasoningFormat("think", "<think>", "</think>"),  # DeepSeek-R1, Qwen3, QwQ, SmolLM3, Granite's successors
        ReasoningFormat("brackets", "[THINK]", "[/THINK]"),  # Magistral
    )
}
