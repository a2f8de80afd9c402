"""Sampling parameters as a caller gives them, checked before a request enters the loop."""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from tokloom.core.checks import Checks
from tokloom.core.shown import shown
from tokloom.sdk import GrammarSpec, SamplingParams

MAX_CHILDREN: Final = 128
MAX_LOGPROBS: Final = 20
MAX_TEMPERATURE: Final = 100.0
MIN_REPETITION: Final = 0.01
MAX_REPETITION: Final = 100.0
MAX_ADDITIVE: Final = 2.0
MAX_BIAS: Final = 1e9


def validate(params: SamplingParams, vocab_size: int, subject: str = "") -> SamplingParams:
    """The same parameters as plain Python values. `subject` names the request in the error.

    Integers and reals of other libraries (numpy's scalars, fractions) are taken for what they are worth, any sized
    collection where ids or names are wanted; what the caller does to its collections afterwards changes nothing.

    Raises:
        RequestError: names the field, its value and the allowed range.
    """
    clean = Checks(subject)
    if not isinstance(params, SamplingParams):
        clean.fail("sampling", params, "SamplingParams")
    found = _numbers(params, clean)
    found["logit_bias"] = _bias(params.logit_bias, vocab_size, clean)
    found["bad_words"] = tuple(
        clean.ids(f"bad_words[{index}]", word, vocab_size, least=1)
        for index, word in enumerate(clean.items("bad_words", params.bad_words, "a sequence of token sequences"))
    )
    found["stop_token_ids"] = clean.ids("stop_token_ids", params.stop_token_ids, vocab_size)
    found["ignore_eos"] = clean.flag("ignore_eos", params.ignore_eos)
    found["processors"] = clean.texts("processors", params.processors)
    if params.grammar is not None:
        found["grammar"] = _grammar(params.grammar, clean)
    return attrs.evolve(params, **found)


def _grammar(given: object, clean: "Checks") -> GrammarSpec:
    if not isinstance(given, GrammarSpec):
        clean.fail("grammar", given, "a GrammarSpec, or None")
    return GrammarSpec(
        clean.text("grammar.syntax", given.syntax),
        clean.text("grammar.text", given.text),
        clean.text("grammar.offer", given.offer),
    )


def _numbers(params: SamplingParams, clean: "Checks") -> dict[str, Any]:
    found: dict[str, Any] = {
        "max_tokens": clean.integer("max_tokens", params.max_tokens, 0),
        "min_tokens": clean.integer("min_tokens", params.min_tokens, 0),
        "temperature": clean.number("temperature", params.temperature, 0.0, MAX_TEMPERATURE),
        "top_k": clean.integer("top_k", params.top_k, 0),
        "top_p": clean.number("top_p", params.top_p, 0.0, 1.0, low_open=True),
        "min_p": clean.number("min_p", params.min_p, 0.0, 1.0),
        "repetition_penalty": clean.number(
            "repetition_penalty", params.repetition_penalty, MIN_REPETITION, MAX_REPETITION
        ),
        "n": clean.integer("n", params.n, 1, MAX_CHILDREN),
    }
    if found["min_tokens"] > found["max_tokens"]:
        clean.fail("min_tokens", params.min_tokens, f"0 to max_tokens ({shown(params.max_tokens)})")
    for name in ("presence_penalty", "frequency_penalty"):
        found[name] = clean.number(name, getattr(params, name), -MAX_ADDITIVE, MAX_ADDITIVE)
    if params.seed is not None:
        found["seed"] = clean.integer("seed", params.seed, -(2**63))
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(params, name) is not None:
            found[name] = clean.integer(name, getattr(params, name), 0, MAX_LOGPROBS)
    return found


def _bias(given: object, vocab_size: int, clean: "Checks") -> Mapping[int, float]:
    if not isinstance(given, Mapping):
        clean.fail("logit_bias", given, "a mapping of token ids to numbers")
    try:
        entries = dict(given.items())
    except Exception:
        clean.fail("logit_bias", given, "a mapping of token ids to numbers")
    tokens = clean.ids("logit_bias", entries.keys(), vocab_size)
    return {
        token: clean.number(f"logit_bias[{token}]", value, -MAX_BIAS, MAX_BIAS)
        for token, value in zip(tokens, entries.values(), strict=True)
    }
