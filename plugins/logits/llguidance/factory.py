"""LLGuidanceFactory: compiled specifications, one tokenizer, and a fresh matcher for every sequence."""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from tokloom.plugins.logits.llguidance.matcher import MatcherGrammar, too_complex
from tokloom.plugins.logits.llguidance.schema import check_lark_schemas, read_json, read_schema
from tokloom.sdk import CompositionError, Context, Grammar, GrammarSpec, RequestError, Tokenizer

#: compact and strict: no whitespace between tokens of JSON, and an error for what cannot be honoured
_JSON: Final[dict[str, Any]] = {"whitespace_flexible": False, "lenient": False, "coerce_one_of": False}
_META: Final = re.compile(r"[\\.+*?()|\[\]{}^$#&~/-]")


class LLGuidanceFactory:
    """Implements `tokloom.sdk.GrammarFactory`.

    Args:
        cached: compiled specifications that are kept, the least recently used one goes first.
        max_bytes: longest specification.
    """

    def __init__(self, cached: int, max_bytes: int, context: Context) -> None:
        if context.tokenizer is None:
            raise CompositionError(
                f"{context.model.name} has no tokenizer, and a grammar is about text",
                subject="logits.llguidance",
                remedy="Leave the plugin out, or use a model that carries its tokenizer",
            )
        self._text = context.tokenizer
        self._cached = cached
        self._max_bytes = max_bytes
        self._limits = LLParserLimits(
            max_lexer_states=20_000, initial_lexer_fuel=1_000_000, step_lexer_fuel=200_000, verbose_errors=False
        )
        self._tokenizer: LLTokenizer | None = None
        self._building = threading.Lock()
        self._lock = threading.Lock()
        self._compiled: OrderedDict[tuple[str, str], LLMatcher] = OrderedDict()

    def start(self, specification: GrammarSpec, vocab_size: int, eos_ids: Sequence[int]) -> Grammar:
        matcher = self._matcher(specification, vocab_size, eos_ids)
        return MatcherGrammar(matcher.deep_copy(), vocab_size, frozenset(eos_ids))

    def _matcher(self, specification: GrammarSpec, vocab_size: int, eos_ids: Sequence[int]) -> LLMatcher:
        """Compiled, in its first state; never advanced, so that copying it is safe from any thread."""
        key = specification.syntax, specification.text
        with self._lock:
            if key in self._compiled:
                self._compiled.move_to_end(key)
                return self._compiled[key]
        made = self._compile(specification, vocab_size, eos_ids)
        with self._lock:
            self._compiled[key] = made
            while len(self._compiled) > self._cached:
                self._compiled.popitem(last=False)
        return made

    def _compile(self, specification: GrammarSpec, vocab_size: int, eos_ids: Sequence[int]) -> LLMatcher:
        size = len(specification.text.encode())
        if size > self._max_bytes:
            raise RequestError(
                f"the specification has {size} bytes", remedy=f"At most {self._max_bytes} are taken (option max_bytes)"
            )
        grammar = _grammar(specification)
        matcher = LLMatcher(self._vocabulary(vocab_size, eos_ids), grammar, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise RequestError(
                f"the {specification.syntax} is not accepted: {_in_short(matcher.get_error())}",
                remedy="See docs/structured.md for what is supported and its limits",
            )
        nothing = not any(matcher.compute_bitmask())
        if nothing or "NoExtension" in matcher.get_error():
            raise RequestError(f"no text fits the {specification.syntax}", remedy="Loosen it")
        if matcher.is_error():
            raise too_complex(matcher)
        return matcher

    def _vocabulary(self, vocab_size: int, eos_ids: Sequence[int]) -> LLTokenizer:
        """Built at the first use: 0.4 s for 49k tokens."""
        with self._building:
            if self._tokenizer is None:
                source: Any = _Vocabulary(self._text, vocab_size, eos_ids)
                self._tokenizer = LLTokenizer(source, n_vocab=len(source.tokens), eos_token=source.ends)
            return self._tokenizer


class _Vocabulary:
    """What llguidance reads of a tokenizer. Ids that the tokenizer does not know have no bytes and are never allowed.
    An end id is needed: a model without one gets one behind its vocabulary.
    """

    is_tokenizer_wrapper: Final = True
    bos_token_id: Final = None

    def __init__(self, text: Tokenizer, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._text = text
        self.tokens = [text.token_bytes(token) for token in range(vocab_size)]
        self.ends = list(eos_ids) or [vocab_size]
        if not eos_ids:
            self.tokens.append(b"<end>")
        self.eos_token_id = self.ends[0]
        self.special_token_ids = sorted({*text.special_ids, *self.ends})

    def __call__(self, text: str) -> list[int]:
        return list(self._text.encode(text, add_special=False))


def _grammar(specification: GrammarSpec) -> str:
    """In llguidance's own notation."""
    text = specification.text
    if specification.syntax == "regex":
        return LLMatcher.grammar_from_regex(text)
    if specification.syntax == "choice":
        return LLMatcher.grammar_from_regex("|".join(_META.sub(r"\\\g<0>", choice) for choice in _choices(text)))
    if specification.syntax == "lark":
        return LLMatcher.grammar_from_lark(check_lark_schemas(text, _JSON))
    if specification.syntax == "json_object" and text:
        raise RequestError("json_object takes no text", remedy="Leave it empty, or use json_schema")
    schema = {"type": "object"} if specification.syntax == "json_object" else read_schema(text)
    try:
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_JSON)  # type: ignore[arg-type]
    except ValueError as error:
        raise RequestError(f"the schema is not accepted: {_in_short(str(error))}", remedy="Simplify it") from None


def _choices(text: str) -> list[str]:
    choices = read_json(text, "the choice")
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise RequestError("the choice is no list of texts", remedy='Give a JSON array such as ["yes", "no"]')
    return choices


def _in_short(error: str) -> str:
    """Without the parts that show a whole grammar."""
    line = " ".join(error.partition("<state>")[0].split())
    return line if len(line) <= 300 else f"{line[:297]}..."
