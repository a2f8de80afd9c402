"""Model family `decoder`: decoders from a Hugging Face folder, a GGUF file or the Hugging Face Hub."""

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
            summary="Llama, Mistral, Mixtral, Qwen2, Qwen3, Gemma 2 and 3, from safetensors or GGUF",
        )
    ]
