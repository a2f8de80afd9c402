"""Request bodies: the one definition that checks them and that /openapi.json shows.

Fields are strict (nothing is converted) and no others are taken. Of OpenAI's fields that this server does not act on,
those that would change the answer take only their neutral value; those that would not are taken and ignored.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from tokloom.sdk import SamplingParams

MAX_SEQUENCES: Final = 128
_INT64: Final = 2**63

Ignored = Annotated[Any, Field(description="Taken for compatibility; ignored.")]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Text = Annotated[str, Field(min_length=1)]
Stop = Annotated[str, Field(min_length=1, max_length=1024)]
IdKey = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}$")]
Nothing = Annotated[list[Any], Field(max_length=0)]

#: fields of OpenAI's API that would change the answer -> what to tell who sends them
UNSUPPORTED: Final = {
    "best_of": "ranking several answers is not supported; use n",
    "suffix": "filling in the middle is not supported",
    "tools": "tool calls are not supported yet",
    "tool_choice": "tool calls are not supported yet",
    "tool_calls": "tool calls are not supported yet",
    "functions": "function calls are not supported; tools will be",
    "function_call": "function calls are not supported; tools will be",
    "response_format": "structured output is not supported yet; only the type text is",
    "modalities": "only text is supported",
    "audio": "only text is supported",
    "web_search_options": "web search is not supported",
    "reasoning_effort": "reasoning models are not supported yet",
    "verbosity": "this model has no such setting; ask for it in a message",
}

#: fields of several types -> what they may be, in place of a complaint about each type
EXPECTED: Final = {
    "prompt": "a text, a list of texts, a list of token ids, or a list of such lists; none of them empty",
    "content": 'a text, or a list of parts {"type": "text", "text": "…"}; other parts are not supported',
    "stop": "a text, or up to 16 of them, each of 1 to 1024 characters",
}


class Strict(BaseModel):
    """Base of everything a client sends."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


class StreamOptions(Strict):
    include_usage: bool = Field(False, description="Send token counts in a chunk before the last line.")
    include_obfuscation: Ignored = None


class Sampling(Strict):
    """What chat and text completions share."""

    model: str | None = Field(None, description="A name from /v1/models; left out, the first.")
    stream: bool = Field(False, description="Send the answer as server-sent events while it comes.")
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1, le=MAX_SEQUENCES, description="Answers to draw.")
    temperature: float = Field(1.0, ge=0, le=100, description="0 always takes the most likely token.")
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, lt=2**31, description="0 and -1 keep all tokens.")
    min_p: float = Field(0.0, ge=0, le=1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, ge=0.01, le=100)
    seed: int | None = Field(None, ge=-_INT64, lt=_INT64, description="The same seed draws the same answer.")
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] = Field(
        default_factory=list, description="Texts that end the answer."
    )
    stop_token_ids: list[TokenId] = Field(default_factory=list, max_length=1024)
    include_stop_str_in_output: bool = Field(False, description="Keep the stop text in the answer.")
    ignore_eos: bool = Field(False, description="Go on after the model's end token.")
    min_tokens: int = Field(0, ge=0, lt=2**31)
    logit_bias: dict[IdKey, Annotated[float, Field(ge=-100, le=100)]] = Field(
        default_factory=dict, max_length=4096, description="Token id -> added to its logit."
    )
    priority: int = Field(0, ge=-(2**31), lt=2**31, description="Larger is more urgent, where the scheduler minds.")
    user: str = Field("", max_length=512, description="Whom fairness counts for.")
    cache_salt: str = Field("", max_length=512, description="Requests with different salts share no cached prefix.")
    metadata: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def with_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, max_tokens: int, logprobs: int | None, prompt_logprobs: int | None = None) -> SamplingParams:
        """The engine's parameters."""
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            top_k=max(0, self.top_k),
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias={int(token): value for token, value in self.logit_bias.items()},
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            seed=self.seed,
            n=self.n,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )


class CompletionRequest(Sampling):
    """POST /v1/completions"""

    prompt: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=MAX_SEQUENCES)]
        | Annotated[list[TokenId], Field(min_length=1)]
        | Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1, max_length=MAX_SEQUENCES)]
    ) = Field(description="A text, several, token ids, or several lists of them.")
    max_tokens: int = Field(16, ge=0, lt=2**31, description="0 computes the prompt only.")
    echo: bool = Field(False, description="Begin the answer with the prompt.")
    logprobs: int | None = Field(None, ge=0, le=20, description="Alternatives to report per token.")
    best_of: Literal[1] = 1
    suffix: Literal[""] = ""


class TextPart(Strict):
    type: Literal["text"]
    text: str


Content = str | Annotated[list[TextPart], Field(min_length=1)]


class Message(Strict):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: str = Field("", description="Taken for compatibility; ignored.")
    refusal: None = None
    audio: None = None
    function_call: None = None
    tool_calls: Nothing | None = None

    @property
    def text(self) -> str:
        """Its parts, one after the other."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class TextFormat(Strict):
    type: Literal["text"]


class ChatRequest(Sampling):
    """POST /v1/chat/completions"""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=0, lt=2**31, description="Left out: up to the context's end.")
    max_tokens: int | None = Field(None, ge=0, lt=2**31, description="The older name of max_completion_tokens.")
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20, description="Alternatives per token; needs logprobs.")
    response_format: TextFormat | None = None
    tools: Nothing = Field(default_factory=list)
    tool_choice: Literal["none", "auto"] = "none"
    functions: Nothing = Field(default_factory=list)
    function_call: Literal["none"] = "none"
    modalities: list[Literal["text"]] = Field(default_factory=list)
    parallel_tool_calls: Ignored = None
    prediction: Ignored = None


class TokenizeRequest(Strict):
    """POST /tokenize; exactly one of prompt and messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = Field(True, description="With the model's usual leading token; for a prompt.")
    add_generation_prompt: bool = Field(True, description="End where the answer begins; for messages.")


class DetokenizeRequest(Strict):
    """POST /detokenize"""

    model: str | None = None
    tokens: list[TokenId]
    skip_special_tokens: bool = False
