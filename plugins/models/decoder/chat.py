"""ChatTemplate: a model's own Jinja template, rendered in a sandbox with a bounded result."""

from collections.abc import Mapping, Sequence
from typing import NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokloom.sdk import ChatMessage, RequestError

#: characters a conversation may render to
MAX_CHARACTERS = 4_000_000


class ChatTemplate:
    """Hugging Face's conventions: `messages`, `add_generation_prompt`, the special tokens' texts, `raise_exception`.

    The sandbox gives no access to files, modules or attributes that begin with an underscore, and bounds `range`.
    """

    def __init__(self, text: str, source: str, tokens: Mapping[str, str]) -> None:
        self._source = source
        self._tokens = dict(tokens)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _refuse
        self._problem = ""
        try:
            self._template = environment.from_string(text)
        except (TemplateError, RecursionError) as error:
            self._problem = str(error) or type(error).__name__

    def render(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool) -> str:
        """The conversation as one text. Raises RequestError if the template refuses it or fails."""
        if self._problem:
            raise RequestError(f"the chat template is invalid: {self._problem}", subject=self._source)
        fields = [{"role": message.role, "content": message.content} for message in messages]
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(
                messages=fields, add_generation_prompt=add_generation_prompt, **self._tokens
            ):
                size += len(piece)
                if size > MAX_CHARACTERS:
                    raise RequestError(
                        f"the chat template made more than {MAX_CHARACTERS} characters", subject=self._source
                    )
                pieces.append(piece)
        except RequestError:
            raise
        except Exception as error:  # a template may raise anything its expressions raise
            raise RequestError(
                f"the chat template refuses these messages: {error}",
                subject=self._source,
                remedy="Send messages with the roles the model was trained on",
            ) from error
        return "".join(pieces)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
