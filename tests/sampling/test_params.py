"""Range checks name the field, its value and the range."""

import math
from typing import Any

import pytest
from attrs import fields

from tokloom.core.sampling import validate
from tokloom.sdk import GrammarSpec, RequestError, SamplingParams

WRONG: list[tuple[str, Any]] = [
    ("max_tokens", -1),
    ("max_tokens", 1.5),
    ("min_tokens", -1),
    ("min_tokens", 17),
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", 101),
    ("temperature", "1"),
    ("temperature", True),
    ("temperature", 10**400),
    ("top_k", -1),
    ("top_k", 2.0),
    ("top_p", 0.0),
    ("top_p", 1.01),
    ("top_p", math.nan),
    ("min_p", -0.01),
    ("min_p", 1.01),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", -1.0),
    ("repetition_penalty", math.inf),
    ("presence_penalty", 2.1),
    ("presence_penalty", math.nan),
    ("frequency_penalty", -2.1),
    ("logit_bias", {10: 1.0}),
    ("logit_bias", {-1: 1.0}),
    ("logit_bias", {1: math.nan}),
    ("logit_bias", {1: math.inf}),
    ("logit_bias", {"1": 1.0}),
    ("bad_words", ((),)),
    ("bad_words", ((1, 10),)),
    ("bad_words", (3,)),
    ("stop_token_ids", (10,)),
    ("stop_token_ids", (-1,)),
    ("ignore_eos", 1),
    ("seed", 2**63),
    ("seed", -(2**63) - 1),
    ("seed", 0.5),
    ("n", 0),
    ("n", 129),
    ("logprobs", -1),
    ("logprobs", 21),
    ("prompt_logprobs", 21),
    ("processors", ("a", 1)),
    ("processors", "a"),
    ("grammar", ("json_schema", "{}")),
    ("grammar", GrammarSpec("regex", 5)),  # type: ignore[arg-type]
    ("grammar", "json"),
]


@pytest.mark.parametrize(("field", "value"), WRONG, ids=lambda v: str(v)[:20])
def test_a_wrong_value_is_refused_with_its_field_value_and_range(field: str, value: Any) -> None:
    params = SamplingParams(**{field: value})
    with pytest.raises(RequestError) as caught:
        validate(params, 10, "request 'r'")
    assert field in caught.value.message
    assert caught.value.subject == "request 'r'"
    assert "range" in caught.value.remedy


def test_every_field_has_a_wrong_value_in_this_test() -> None:
    assert {field for field, _ in WRONG} == {f.name for f in fields(SamplingParams)}


def test_extreme_but_allowed_values_pass() -> None:
    validate(SamplingParams(), 10)
    validate(
        SamplingParams(
            max_tokens=0,
            temperature=0,
            top_k=10**9,
            top_p=1,
            min_p=1,
            repetition_penalty=100.0,
            presence_penalty=-2,
            frequency_penalty=2.0,
            logit_bias={0: -1e9, 9: 100},
            bad_words=((0,), (9, 9)),
            stop_token_ids=(0, 9),
            seed=-(2**63),
            n=128,
            logprobs=20,
            prompt_logprobs=0,
            processors=("a",),
            grammar=GrammarSpec("regex", "a*"),
        ),
        10,
    )
