"""The served OpenAPI document is true: random requests made from it are answered as it says."""

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from fake_core import ByteTokenizer, spell
from hypothesis import HealthCheck, given, settings
from served import CHAT, HI, TEXT, Served, fake_core, serving_core

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

OPERATIONS = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model}"),
    ("POST", CHAT),
    ("POST", TEXT),
    ("POST", "/v1/responses"),
    ("POST", "/v1/embeddings"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/version"),
    ("GET", "/v1/tokloom/snapshot"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    core = fake_core(spell("fine"), sequences=200, limit=500)
    tokenizer = ByteTokenizer()
    tokenizer.chat_template = "tools <tool_call> </think> reasoning_effort"
    with serving_core(core, tokenizer) as server:
        yield server
        assert not core.known


@pytest.fixture(scope="module")
def schemas(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = served.http.get("/openapi.json").json()["components"]["schemas"]
    return found


def fits(schemas: dict[str, Any], name: str, value: object) -> None:
    """Raises where a value is not of one of the document's schemas."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
    jsonschema.Draft202012Validator(schema).validate(value)


def test_every_route_is_described(served: Served) -> None:
    paths = served.http.get("/openapi.json").json()["paths"]
    found = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert found == {*OPERATIONS} - {("GET", "/openapi.json")}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize(("method", "path"), OPERATIONS[2:8])
def test_random_requests_are_answered_as_the_document_says(served: Served, method: str, path: str, mode: str) -> None:
    checks = schemathesis.checks
    checks.load_all_checks()
    chosen = [
        checks.not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]
    if mode == "negative":
        chosen.append(checks.negative_data_rejection)
    statuses: set[int] = set()
    operation = schemathesis.openapi.from_url(f"{served.url}/openapi.json")[path][method]

    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
    @settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def run(case: Any) -> None:
        statuses.add(case.call_and_validate(checks=chosen).status_code)

    run()
    assert (200 in statuses) == (mode == "positive"), statuses


CHATS: list[dict[str, Any]] = [{}, {"logprobs": True}, {"n": 3}, {"stream_options": {"include_usage": True}}]
TEXTS: list[dict[str, Any]] = [{}, {"logprobs": 2}, {"n": 3, "echo": True}, {"stream_options": {"include_usage": True}}]


@pytest.mark.parametrize("extra", CHATS)
def test_chunks_and_answers_of_chats_are_of_their_schemas(
    served: Served, schemas: dict[str, Any], extra: dict[str, Any]
) -> None:
    fits(schemas, "ChatRequest", {**HI, **extra})
    fits(schemas, "ChatCompletion", served.post(CHAT, {**HI, **extra}).json())
    for chunk in served.events(CHAT, {**HI, **extra})[:-1]:
        fits(schemas, "ChatChunk", chunk)


@pytest.mark.parametrize("extra", TEXTS)
def test_chunks_and_answers_of_texts_are_of_their_schemas(
    served: Served, schemas: dict[str, Any], extra: dict[str, Any]
) -> None:
    body = {"prompt": ["a", "b"], **extra}
    fits(schemas, "CompletionRequest", body)
    fits(schemas, "TextCompletion", served.post(TEXT, body).json())
    for chunk in served.events(TEXT, body)[:-1]:
        fits(schemas, "TextCompletion", chunk)


@pytest.mark.parametrize(
    "body",
    [
        {**HI, "temperature": "1"},
        {**HI, "zzz": 1},
        {**HI, "tools": [{}]},
        {**HI, "response_format": {"type": "yaml"}},
        {**HI, "n": 129},
        {"messages": []},
    ],
)
def test_what_is_refused_is_not_of_the_schema(schemas: dict[str, Any], body: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        fits(schemas, "ChatRequest", body)


def test_null_is_of_the_schema_where_it_is_taken(served: Served, schemas: dict[str, Any]) -> None:
    for name in schemas["ChatRequest"]["properties"]:
        body = {**HI, name: None}
        if name == "messages":
            continue
        fits(schemas, "ChatRequest", body)
        assert served.post(CHAT, body).status_code == 200, name
