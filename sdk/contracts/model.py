"""ModelFamily: opens a model source and runs its forward pass. The core speaks token ids only."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from attrs import field, frozen

from tokloom.sdk.contracts.ops import OpSet
from tokloom.sdk.contracts.weights import CheckpointInfo, WeightMethod
from tokloom.sdk.values.batches import ForwardBatch, Hidden, LayerSpec
from tokloom.sdk.values.json import JSON
from tokloom.sdk.values.requests import Pooling

if TYPE_CHECKING:
    from torch import Tensor


@frozen(kw_only=True)
class ModelCaps:
    """What a family can do.

    Attributes:
        features: hidden states after chosen layers can be captured.
        adapters: low-rank adapters can be added: what `open` returns is an `AdaptableModel`, what `load` returns an
            `AdaptedModel`.
    """

    features: bool = False
    adapters: bool = False


@frozen(kw_only=True)
class ModelSource:
    """Where a model comes from. Exactly one of `path` and `name` is set.

    Attributes:
        path: an existing folder or file.
        name: a name that the family itself provides, or that it knows how to get.
        dtype: compute dtype; empty takes the checkpoint's.
        chat_template: a file with the chat template to use in place of the checkpoint's.
    """

    path: Path | None = None
    name: str = ""
    dtype: str = ""
    chat_template: Path | None = None


@frozen(kw_only=True)
class GenerationDefaults:
    """What a model's authors recommend for sampling: fields of `SamplingParams`, None where they say nothing. Engines
    apply none of it by themselves; `Engine.default_sampling` gives it to callers.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None


@frozen(kw_only=True)
class ModelSpec:
    """What composition needs to know of a model, without its weights.

    Attributes:
        name: for people.
        digest: of config and weights (names, sizes and times suffice for large files); part of cache keys.
        layers: attention layers; index i of a layer in `layers[i].layer`.
        vocab_size: ids run from 0 below it.
        hidden_size: of `Hidden.last`.
        max_tokens: context length.
        eos_ids: ids that end a sequence.
        bos_id: id that a prompt starts with, or -1.
        dtype: compute dtype.
        weight_bytes: estimate of what `load` will hold with plain weights.
        poolings: how hidden states may become the vector of a task `embed`, the model's own way first; empty: the model
            is not for embedding.
        generation: what the checkpoint recommends for sampling.
    """

    name: str
    digest: str
    layers: tuple[LayerSpec, ...]
    vocab_size: int
    hidden_size: int
    max_tokens: int
    eos_ids: tuple[int, ...]
    bos_id: int
    dtype: str
    weight_bytes: int
    poolings: tuple[Pooling, ...] = ()
    checkpoint: CheckpointInfo = field(factory=lambda: CheckpointInfo("", {}, {}), repr=False)
    generation: GenerationDefaults = field(factory=GenerationDefaults)


@frozen(kw_only=True)
class AdapterInfo:
    """What composition needs to know of an adapter, without its weights.

    Attributes:
        digest: of its whole content, configuration and weights: adapters with equal digests share KV.
        rank: its largest rank.
        targets: the kinds of linear layers it changes, as its files call them, sorted.
        nbytes: what `load_adapter` will hold.
    """

    digest: str
    rank: int
    targets: tuple[str, ...]
    nbytes: int


class AttentionCall(Protocol):
    """What a forward pass calls once for every layer of `ModelSpec.layers`, in order: writes k and v, attends, returns
    a fresh `[T, q_heads, head_v]` in q's dtype. q `[T, q_heads, head_k]`, k `[T, kv_heads, head_k]`,
    v `[T, kv_heads, head_v]`, rotated already; they may be strided and are not modified.
    """

    def __call__(self, layer: int, q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor": ...


@frozen
class Tool:
    """A function that a model may call.

    Attributes:
        parameters: a JSON schema of the object of its arguments.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, JSON] = field(factory=dict[str, JSON])


@frozen
class ToolCall:
    """A call that a model made.

    Attributes:
        arguments: by name.
        id: what the message with the result refers to; empty where nobody gave one.
    """

    name: str
    arguments: Mapping[str, JSON] = field(factory=dict[str, JSON])
    id: str = ""


@frozen
class ChatMessage:
    """One message of a conversation.

    Attributes:
        role: as the model's template knows it: `system`, `user`, `assistant`, `tool` ...
        name: of who speaks; of the function, where the role is `tool`.
        tool_calls: what an assistant's message calls.
        tool_call_id: which call a message of the role `tool` answers.
        reasoning: what an assistant thought before `content`.
    """

    role: str
    content: str
    name: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    reasoning: str = ""


class Tokenizer(Protocol):
    """Text to ids and back. Thread-safe."""

    def encode(self, text: str, *, add_special: bool) -> Sequence[int]:
        """Ids of `text`; with `add_special` the model's usual leading token, never doubled."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """Text of `ids`; invalid UTF-8 becomes U+FFFD."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes a token adds to the text, special tokens as their text."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that are not text."""
        ...

    @property
    def chat_template(self) -> str:
        """The source text of what `chat` renders; empty: there is none. Callers look in it for how the model writes
        tool calls and reasoning.
        """
        ...

    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool],
        options: Mapping[str, JSON],
        add_generation_prompt: bool,
    ) -> Sequence[int]:
        """Ids of a conversation through the model's chat template (sandboxed). `options` are further variables for the
        template, such as `enable_thinking`; those that this method sets itself are refused. Raises RequestError without
        a template, or where the template refuses the messages.
        """
        ...


class LoadedModel(Protocol):
    """A model with weights. Stateless between calls. Called under `torch.inference_mode`."""

    def forward(self, batch: ForwardBatch, attention: AttentionCall, ops: OpSet) -> Hidden:
        """One pass over `[T]` rows of several sequences: row-wise but for `attention`, which alone knows of
        sequences.
        """
        ...

    def logits(self, hidden: "Tensor") -> "Tensor":
        """`[R, H] -> [R, V]` float32 (float64 from float64) for chosen rows of `Hidden.last`."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of weights held."""
        ...


class Model(Protocol):
    """An opened source: metadata is read and checked, weights are not."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None when the source carries no tokenizer: the model is used with token ids only."""
        ...

    def load(self, weights: WeightMethod, device: str, progress: "Progress") -> LoadedModel:
        """Read weights to `device` (torch's device string), on the thread that makes the engine. Missing, extra or
        misshapen tensors raise CheckpointError naming them.
        """
        ...


class AdaptableModel(Model, Protocol):
    """A model of a family with the capability `adapters`."""

    def open_adapter(self, path: Path) -> AdapterInfo:
        """Read and check an adapter's metadata: that it fits this model and that all of it can be computed. Raises
        CheckpointError naming file, and key or tensor.
        """
        ...


class AdaptedModel(LoadedModel, Protocol):
    """A loaded model of a family with the capability `adapters`. Its `forward` applies `ForwardBatch.adapters`."""

    def load_adapter(self, path: Path) -> AdapterInfo:
        """Read an adapter's weights; batches may name its digest from then on. Called before the first `forward`, once
        per digest. Raises CheckpointError as `open_adapter` does.
        """
        ...


class Progress(Protocol):
    """Told how far loading is: `done` of `total` in the loader's own units, and what it is at. Called on the loading
    thread.
    """

    def __call__(self, done: int, total: int, what: str, /) -> None: ...


class ModelFamily(Protocol):
    """A family of architectures."""

    def claims(self, source: ModelSource) -> bool:
        """Whether `open` could read the source. Cheap: looks at names and at most a header. Of a source without a path:
        whether the family knows how to get models of such a name; nothing is fetched yet.
        """
        ...

    def open(self, source: ModelSource) -> Model:
        """Read and check metadata. Raises CheckpointError naming file and key."""
        ...

    def names(self) -> Mapping[str, str]:
        """Models this family provides by name -> one line about each; usually empty."""
        ...
