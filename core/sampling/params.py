"""Range checks of sampling parameters, before a request enters the loop."""

from collections.abc import Iterable
from typing import Final

from tokloom.sdk import RequestError, SamplingParams

MAX_CHILDREN: Final = 128
MAX_LOGPROBS: Final = 20
MAX_TEMPERATURE: Final = 100.0
MAX_REPETITION: Final = 100.0
MAX_ADDITIVE: Final = 2.0
MAX_BIAS: Final = 1e9


def validate(params: SamplingParams, vocab_size: int, subject: str = "") -> None:
    """Check every field. `subject` names the request in the error.

    Raises:
        RequestError: names the field, its value and the allowed range.
    """
    check = _Check(subject)
    check.integer("max_tokens", params.max_tokens, 0, None)
    check.integer("min_tokens", params.min_tokens, 0, None)
    if params.min_tokens > params.max_tokens:
        check.fail("min_tokens", params.min_tokens, f"0 to max_tokens ({params.max_tokens})")
    check.number("temperature", params.temperature, 0.0, MAX_TEMPERATURE)
    check.integer("top_k", params.top_k, 0, None)
    check.number("top_p", params.top_p, 0.0, 1.0, low_open=True)
    check.number("min_p", params.min_p, 0.0, 1.0)
    check.number("repetition_penalty", params.repetition_penalty, 0.0, MAX_REPETITION, low_open=True)
    check.number("presence_penalty", params.presence_penalty, -MAX_ADDITIVE, MAX_ADDITIVE)
    check.number("frequency_penalty", params.frequency_penalty, -MAX_ADDITIVE, MAX_ADDITIVE)
    check.ids("logit_bias", params.logit_bias, vocab_size)
    for token, bias in params.logit_bias.items():
        check.number(f"logit_bias[{token}]", bias, -MAX_BIAS, MAX_BIAS)
    for index, word in enumerate(params.bad_words):
        check.ids(f"bad_words[{index}]", word, vocab_size)
        if len(word) == 0:
            check.fail(f"bad_words[{index}]", word, "at least one token id")
    check.ids("stop_token_ids", params.stop_token_ids, vocab_size)
    check.flag("ignore_eos", params.ignore_eos)
    if params.seed is not None:
        check.integer("seed", params.seed, -(2**63), 2**63 - 1)
    check.integer("n", params.n, 1, MAX_CHILDREN)
    for name, count in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
        if count is not None:
            check.integer(name, count, 0, MAX_LOGPROBS)
    check.names("processors", params.processors)
    if params.grammar is not None:
        check.names("grammar", params.grammar, exactly=2)


class _Check:
    def __init__(self, subject: str) -> None:
        self._subject = subject

    def fail(self, field: str, value: object, allowed: str) -> None:
        raise RequestError(
            f"{field} is {_shown(value)}", subject=self._subject, remedy=f"Give {field} a value in its range: {allowed}"
        )

    def integer(self, field: str, value: object, low: int, high: int | None) -> None:
        fine = isinstance(value, int) and not isinstance(value, bool)
        if not fine or value < low or (high is not None and value > high):  # type: ignore[operator]
            self.fail(field, value, f"an integer from {low}" + ("" if high is None else f" to {high}"))

    def number(self, field: str, value: object, low: float, high: float, *, low_open: bool = False) -> None:
        fine = isinstance(value, int | float) and not isinstance(value, bool)
        if not fine or not low <= value <= high or (low_open and value == low):  # type: ignore[operator]
            self.fail(field, value, f"a number {'above' if low_open else 'from'} {low:g} up to {high:g}")

    def ids(self, field: str, values: object, vocab_size: int) -> None:
        if not isinstance(values, Iterable) or isinstance(values, str | bytes):
            self.fail(field, values, "token ids")
            return
        for value in values:
            self.integer(field, value, 0, vocab_size - 1)

    def flag(self, field: str, value: object) -> None:
        if not isinstance(value, bool):
            self.fail(field, value, "true or false")

    def names(self, field: str, values: object, exactly: int | None = None) -> None:
        fine = isinstance(values, tuple) and all(isinstance(v, str) for v in values)
        if not fine or (exactly is not None and len(values) != exactly):  # type: ignore[arg-type]
            self.fail(field, values, "a tuple of strings" if exactly is None else f"a tuple of {exactly} strings")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
