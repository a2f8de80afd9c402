"""Request bodies: the one definition that checks them and that /openapi.json shows.

Fields are strict (nothing is converted) and no others are taken. Of OpenAI's fields that this server does not act on,
those that would change the answer take only their neutral value; those that would not are taken and ignored.
"""

from typing import Annotated, Any, Final, Literal

import attrs
from pydantic import Field, StringConstraints

from tokloom.sdk import GrammarSpec, SamplingParams
from tokloom.serve.http.conversations import InputMessage, Message, ToolChoice, ToolDefinition
from tokloom.serve.http.fields import Ignored, Nothing, Strict, Text, TokenId, exactly

MAX_SEQUENCES: Final = 128
MAX_INPUTS: Final = 2048
_INT64: Final = 2**63

Stop = Annotated[str, Field(min_length=1, max_length=1024)]
TemplateOptions = Annotated[dict[Annotated[str, Field(max_length=64)], Any], Field(max_length=64)]
IdKey = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}$")]

#: fields of OpenAI's API that would change the answer -> what to tell who sends them
UNSUPPORTED: Final = {
    "best_of": "ranking several answers is not supported; use n",
    "suffix": "filling in the middle is not supported",
    "functions": "function calls are not supported; use tools",
    "function_call": "function calls are not supported; use tools",
    "modalities": "only text is supported",
    "dimensions": "vectors cannot be shortened; they have the model's size",
    "previous_response_id": "responses are not stored; send the conversation as input",
    "conversation": "conversations are not stored; send them as input",
    "background": "responses are not stored; wait for the answer, or stream it",
    "truncation": "an input that is too long is refused; shorten it",
    "include": "there is nothing to include",
    "audio": "only text is supported",
    "web_search_options": "web search is not supported",
    "verbosity": "this model has no such setting; ask for it in a message",
}

#: fields that a model may recommend values for
_RECOMMENDED: Final = frozenset({"temperature", "top_p", "top_k", "min_p", "repetition_penalty"})

#: fields of several types -> what they may be, in place of a complaint about each type
EXPECTED: Final = {
    "prompt": "a text, a list of texts, a list of token ids, or a list of such lists; none of them empty",
    "content": 'a text, or a list of parts {"type": "text", "text": "…"}; other parts are not supported',
    "input": "a text, or a list; for embeddings of texts or token ids, for responses of messages; none of them empty",
    "stop": "a text, or up to 16 of them, each of 1 to 1024 characters",
}


class StreamOptions(Strict):
    include_usage: bool = Field(False, description="Send token counts in a chunk before the last line.")
    include_obfuscation: Ignored = None


class StructuredOutputs(Strict):
    """What the answer must look like; exactly one field."""

    json_schema: dict[str, Any] | None = Field(None, alias="json", description="A JSON schema.")
    regex: Text | None = Field(None, description="An expression that the whole answer matches.")
    choice: Annotated[list[Text], Field(min_length=1, max_length=4096)] | None = Field(
        None, description="The answer is one of these texts."
    )
    grammar: Text | None = Field(None, description="A grammar in Lark.")


class NamedSchema(Strict):
    name: str = Field("", max_length=64)
    description: str = ""
    content: dict[str, Any] = Field(alias="schema", description="A JSON schema.")
    strict: Ignored = None


class ResponseFormat(Strict):
    """OpenAI's way to say what the answer must look like. `json_schema` goes with its type."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class Sampling(Strict):
    """What chat and text completions share."""

    model: str | None = Field(None, description="A name from /v1/models; left out, the first.")
    stream: bool = Field(False, description="Send the answer as server-sent events while it comes.")
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1, le=MAX_SEQUENCES, description="Answers to draw.")
    temperature: float = Field(
        1.0, ge=0, le=100, description="0 always takes the most likely token. Left out: what the model recommends."
    )
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
    structured_outputs: StructuredOutputs | None = None
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

    def sampling(
        self,
        defaults: SamplingParams,
        max_tokens: int,
        logprobs: int | None,
        prompt_logprobs: int | None = None,
        grammar: GrammarSpec | None = None,
    ) -> SamplingParams:
        """The engine's parameters. `defaults`: what the model recommends, for what was left out."""
        given = {name: getattr(self, name) for name in _RECOMMENDED & self.model_fields_set}
        if "top_k" in given:
            given["top_k"] = max(0, given["top_k"])
        return attrs.evolve(
            defaults,
            **given,
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias={int(token): value for token, value in self.logit_bias.items()},
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            seed=self.seed,
            n=self.n,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            grammar=grammar,
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
    best_of: Annotated[Literal[1], exactly(int)] = 1
    suffix: Literal[""] = ""


class ChatRequest(Sampling):
    """POST /v1/chat/completions"""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=0, lt=2**31, description="Left out: up to the context's end.")
    max_tokens: int | None = Field(None, ge=0, lt=2**31, description="The older name of max_completion_tokens.")
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20, description="Alternatives per token; needs logprobs.")
    response_format: ResponseFormat | None = None
    tools: list[ToolDefinition] = Field(
        default_factory=list, max_length=128, description="Functions that the model may call."
    )
    tool_choice: ToolChoice = Field(
        "auto", description="auto: the model decides; none; required: at least one call; or the one tool to call."
    )
    parallel_tool_calls: bool = Field(True, description="Whether an answer may have several calls.")
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        None, description="For the chat template, where it knows enable_thinking or reasoning_effort."
    )
    chat_template_kwargs: TemplateOptions = Field(
        default_factory=dict, description="Further variables of the chat template."
    )
    functions: Nothing = Field(default_factory=list)
    function_call: Literal["none"] = "none"
    modalities: list[Literal["text"]] = Field(default_factory=list)
    prediction: Ignored = None


Input = (
    Text
    | Annotated[list[Text], Field(min_length=1, max_length=MAX_INPUTS)]
    | Annotated[list[TokenId], Field(min_length=1)]
    | Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1, max_length=MAX_INPUTS)]
)


class EmbeddingRequest(Strict):
    """POST /v1/embeddings"""

    model: str | None = Field(None, description="A name from /v1/models; left out, the first.")
    input: Input = Field(description="A text, several, token ids, or several lists of them.")
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="base64: of float32 values, least significant byte first."
    )
    dimensions: None = None
    pooling: Literal["", "last", "mean"] = Field("", description="How; left out, the model's own way.")
    normalize: bool = Field(True, description="Divide each vector by its length.")
    priority: int = Field(0, ge=-(2**31), lt=2**31, description="Larger is more urgent, where the scheduler minds.")
    user: str = Field("", max_length=512, description="Whom fairness counts for.")
    cache_salt: str = Field("", max_length=512, description="Requests with different salts share no cached prefix.")


class ResponseTextFormat(Strict):
    """`schema` and what describes it go with the type json_schema."""

    type: Literal["text", "json_object", "json_schema"]
    content: dict[str, Any] | None = Field(None, alias="schema", description="A JSON schema.")
    name: str = Field("", max_length=64)
    description: str = ""
    strict: Ignored = None


class ResponseText(Strict):
    format: ResponseTextFormat | None = None


class ResponseRequest(Strict):
    """POST /v1/responses"""

    model: str | None = Field(None, description="A name from /v1/models; left out, the first.")
    input: Text | Annotated[list[InputMessage], Field(min_length=1)]
    instructions: str = Field("", description="A system message before the input.")
    max_output_tokens: int | None = Field(None, ge=1, lt=2**31, description="Left out: up to the context's end.")
    temperature: float = Field(1.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    text: ResponseText | None = None
    stream: bool = Field(False, description="Send the answer as server-sent events while it comes.")
    metadata: dict[str, str] = Field(default_factory=dict, max_length=16, description="Given back as it is.")
    priority: int = Field(0, ge=-(2**31), lt=2**31, description="Larger is more urgent, where the scheduler minds.")
    user: str = Field("", max_length=512, description="Whom fairness counts for.")
    cache_salt: str = Field("", max_length=512, description="Requests with different salts share no cached prefix.")
    tools: Nothing = Field(default_factory=list)
    tool_choice: Literal["none", "auto"] = "none"
    previous_response_id: None = None
    conversation: None = None
    background: Annotated[Literal[False], exactly(bool)] = False
    truncation: Literal["disabled"] = "disabled"
    include: Nothing = Field(default_factory=list)
    reasoning: None = None
    store: Ignored = None
    parallel_tool_calls: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    stream_options: Ignored = None


class TokenizeRequest(Strict):
    """POST /tokenize; exactly one of prompt and messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = Field(True, description="With the model's usual leading token; for a prompt.")
    add_generation_prompt: bool = Field(True, description="End where the answer begins; for messages.")
    tools: list[ToolDefinition] = Field(default_factory=list, max_length=128, description="For messages.")
    chat_template_kwargs: TemplateOptions = Field(default_factory=dict, description="For messages.")


class DetokenizeRequest(Strict):
    """POST /detokenize"""

    model: str | None = None
    tokens: list[TokenId]
    skip_special_tokens: bool = False
