"""Model family `decoder`: Llama-type decoders from a Hugging Face folder or a GGUF file."""

from tokloom.sdk import Context, ModelCaps, ModelFamily, NoOptions, Offer, hookimpl


def _make(options: NoOptions, context: Context) -> ModelFamily:
    from tokloom.plugins.models.decoder.family import DecoderFamily

    return DecoderFamily()


@hookimpl
def tokloom_model() -> list[Offer[NoOptions, ModelFamily]]:
    return [
        Offer(
            kind="model",
            name="decoder",
            contract="0.1",
            capabilities=ModelCaps(features=True, adapters=True),
            factory=_make,
            summary="Llama-type decoders (SmolLM2, Llama 2 and 3) from safetensors or GGUF",
        )
    ]
