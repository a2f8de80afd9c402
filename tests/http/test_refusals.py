"""What is wrong gets the right status, a body in OpenAI's form, and harms nobody: the next request is answered."""

import json
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any

import httpx
import pytest
from fake_core import spell
from served import CHAT, HI, TEXT, Served, fake_core, raw_post, serving_core

LIMIT = 200_000


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    core = fake_core(spell("fine"))
    with serving_core(core, max_body_bytes=LIMIT) as server:
        yield server
        assert not core.known


@pytest.fixture(autouse=True)
def next_request_is_served(served: Served) -> Iterator[None]:
    yield
    assert served.post(CHAT, HI).json()["choices"][0]["message"]["content"] == "fine"
    assert served.live == 0


def refused(response: Any, status: int, code: str) -> dict[str, Any]:
    """The error of a response in OpenAI's form."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    error: dict[str, Any] = response.json()["error"]
    assert list(response.json()) == ["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert error["code"] == code, error
    assert "Traceback" not in error["message"]
    return error


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi", **fields}]}


def tool(**fields: Any) -> dict[str, Any]:
    return {**HI, "tools": [{"type": "function", "function": {"name": "f", **fields}}]}


#: body of a chat request -> code, param, a word of the message
WRONG: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "no messages": ({}, "missing_required_parameter", "messages", "missing"),
    "empty messages": ({"messages": []}, "invalid_value", "messages", "at least 1"),
    "messages of text": ({"messages": "hi"}, "invalid_value", "messages", "list"),
    "role": (message(role="robot"), "invalid_value", "messages[0].role", "assistant"),
    "image": (
        message(content=[{"type": "image_url", "image_url": {"url": "x"}}]),
        "invalid_value",
        "messages[0].content",
        "parts",
    ),
    "content of a number": (message(content=5), "invalid_value", "messages[0].content", "text"),
    "typo": ({**HI, "temprature": 1}, "unknown_parameter", "temprature", "did you mean temperature"),
    "unknown with null": ({**HI, "zzz": None}, "unknown_parameter", "zzz", "no known field"),
    "unknown inside": (message(nam="x"), "unknown_parameter", "messages[0].nam", "no known field"),
    "a tool without a function": (
        {**HI, "tools": [{"type": "function"}]},
        "missing_required_parameter",
        "tools[0].function",
        "is missing",
    ),
    "another kind of tool": ({**HI, "tools": [{"type": "web_search"}]}, "invalid_value", "tools[0].type", "function"),
    "a tool without a name": (tool(name=""), "invalid_value", "tools[0].function.name", "match"),
    "a tool with a control character": (tool(name="a\n"), "invalid_value", "tools[0].function.name", "match"),
    "parameters of a list": (tool(parameters=[]), "invalid_value", "tools[0].function.parameters", "dictionary"),
    "a typo in a tool": (tool(parametres={}), "unknown_parameter", "tools[0].function.parametres", "no known field"),
    "two tools of a name": ({**HI, "tools": tool()["tools"] * 2}, "invalid_value", "", "'f'"),
    "200 tools": ({**HI, "tools": tool()["tools"] * 200}, "invalid_value", "tools", "128"),
    "tools of no template": (tool(), "invalid_value", "", "no known format"),
    "forced tool": ({**HI, "tool_choice": "required"}, "invalid_value", "", "no tools"),
    "any tool": ({**HI, "tool_choice": "any"}, "invalid_value", "tool_choice", "required"),
    "unknown tool": (
        {**tool(), "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "invalid_value",
        "",
        "'g'",
    ),
    "calls of a user": (message(tool_calls=[]), "unknown_parameter", "messages[0].tool_calls", "no known field"),
    "arguments that are no object": (
        message(role="assistant", tool_calls=[{"id": "1", "function": {"name": "f", "arguments": "[1]"}}]),
        "invalid_value",
        "",
        "messages[0].tool_calls[0].function.arguments",
    ),
    "a result of no call": (message(role="tool"), "missing_required_parameter", "messages[0].tool_call_id", "missing"),
    "an answer of nothing": (message(role="assistant", content=None), "invalid_value", "", "messages[0].content"),
    "no content": (
        {**HI, "messages": [{"role": "user"}]},
        "missing_required_parameter",
        "messages[0].content",
        "missing",
    ),
    "no role": ({**HI, "messages": [{"content": "a"}]}, "missing_required_parameter", "messages[0].role", "missing"),
    "grammar of no format": (
        {**HI, "response_format": {"type": "grammar"}},
        "invalid_value",
        "response_format.type",
        "json_schema",
    ),
    "audio": ({**HI, "modalities": ["audio"]}, "unsupported_parameter", "modalities[0]", "text"),
    "effort of no template": ({**HI, "reasoning_effort": "low"}, "invalid_value", "", "no such setting"),
    "effort": ({**HI, "reasoning_effort": "much"}, "invalid_value", "reasoning_effort", "medium"),
    "hot": ({**HI, "temperature": 1e6}, "invalid_value", "temperature", "less than or equal to 100"),
    "text for a number": ({**HI, "temperature": "1"}, "invalid_value", "temperature", "number"),
    "true for a number": ({**HI, "n": True}, "invalid_value", "n", "integer"),
    "n": ({**HI, "n": 10**9}, "invalid_value", "n", "less than or equal to 128"),
    "top_p": ({**HI, "top_p": 0}, "invalid_value", "top_p", "greater than 0"),
    "seed": ({**HI, "seed": 2**63}, "invalid_value", "seed", "less than"),
    "huge integer": ({**HI, "max_tokens": 10**400}, "invalid_value", "max_tokens", "less than"),
    "stops": ({**HI, "stop": ["x"] * 20_000}, "invalid_value", "stop", "up to 16"),
    "empty stop": ({**HI, "stop": [""]}, "invalid_value", "stop", "1 to 1024"),
    "bias key": ({**HI, "logit_bias": {"x": 1}}, "invalid_value", "logit_bias.x", "match"),
    "bias token": ({**HI, "logit_bias": {"-5": 1}}, "invalid_value", "logit_bias.-5", "match"),
    "several": ({"temprature": 1, "n": 0}, "invalid_value", "n", "messages: is missing; temprature"),
    "alternatives": ({**HI, "top_logprobs": 2}, "invalid_value", "", "logprobs"),
    "min above max": ({**HI, "min_tokens": 6}, "invalid_value", "", "min_tokens"),
    "model": ({**HI, "model": "gpt-x"}, "model_not_found", "model", "tiny, alias"),
    "model of a number": ({**HI, "model": 5}, "invalid_value", "model", "string"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_chat_request_is_told_which_field(served: Served, case: str, stream: bool) -> None:
    body, code, param, words = WRONG[case]
    status = 404 if code == "model_not_found" else 400
    error = refused(served.post(CHAT, {**body, "stream": stream}), status, code)
    assert error["param"] == (param or None)
    assert words in error["message"]


PROMPTS: dict[str, Any] = {
    "empty text": "",
    "no prompts": [],
    "an empty one": ["a", ""],
    "mixed": ["a", 1],
    "no ids": [[]],
    "negative id": [-1],
    "boolean": [True],
    "fraction": [1.5],
    "deep": [[[1]]],
    "table": {"a": 1},
    "too many": ["a"] * 129,
}


@pytest.mark.parametrize("case", PROMPTS)
def test_a_wrong_prompt_is_told_what_prompts_are(served: Served, case: str) -> None:
    error = refused(served.post(TEXT, {"prompt": PROMPTS[case]}), 400, "invalid_value")
    assert error["param"] == "prompt"
    assert "list of token ids" in error["message"]


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        ({"suffix": "x"}, "unsupported_parameter"),
        ({"best_of": 3}, "unsupported_parameter"),
        ({"n": 128}, "invalid_value"),
    ],
)
def test_what_text_completions_cannot_do_is_said(served: Served, extra: dict[str, Any], code: str) -> None:
    refused(served.post(TEXT, {"prompt": ["a", "b"], **extra}), 400, code)


HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "no JSON": b"{",
    "array": b"[]",
    "text": b'"hi"',
    "bad UTF-8": b'{"prompt": "\xff\xfe"}',
    "half a character": b'{"prompt": "\\ud800"}',
    "NaN": b'{"prompt": "a", "temperature": NaN}',
    "infinity": b'{"prompt": "a", "temperature": -Infinity}',
    "beyond floats": b'{"prompt": "a", "temperature": 1e999}',
    "deep arrays": b"[" * (LIMIT - 10),
    "deep tables": b'{"a":' * 30_000,
    "deep within what is ignored": b'{"prompt": "a", "metadata": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "NUL": b"\0\0\0",
    "byte order mark": b'\xef\xbb\xbf{"prompt": "a"}',
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_json_is_refused(served: Served, case: str) -> None:
    response = served.http.post(TEXT, content=HOSTILE[case], headers={"content-type": "application/json"})
    refused(response, 400, "invalid_json" if case != "beyond floats" else response.json()["error"]["code"])


def test_the_last_of_two_equal_keys_counts(served: Served) -> None:
    body = b'{"prompt": 5, "prompt": "a", "n": 2, "n": 1}'
    response = served.http.post(TEXT, content=body, headers={"content-type": "application/json"})
    assert len(response.json()["choices"]) == 1


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/detokenize"])
def test_bodies_in_other_forms_are_refused(served: Served, path: str) -> None:
    refused(served.http.post(path, data={"prompt": "x"}), 415, "unsupported_media_type")
    refused(served.post(path, {"prompt": "x"}, content_encoding="gzip"), 415, "unsupported_media_type")


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("extra", [1, 50_000, 40_000_000])
def test_a_body_that_is_too_long_is_refused_whatever_it_claims(served: Served, extra: int, chunked: bool) -> None:
    total = LIMIT + extra

    def pieces() -> Iterator[bytes]:
        left = total
        while left:
            yield b" " * min(left, 65536)
            left -= min(left, 65536)

    headers = {"content-type": "application/json"} | ({} if chunked else {"content-length": str(total)})
    try:
        response = served.http.post(TEXT, content=pieces(), headers=headers)
    except httpx.TransportError:  # the connection may be cut while the rest is still being sent
        if extra < 10_000_000:
            raise
        return
    refused(response, 413, "request_too_large")


def test_a_body_at_the_limit_is_taken(served: Served) -> None:
    body = json.dumps(HI).encode()
    body += b" " * (LIMIT - len(body))
    response = served.http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 200


def test_a_client_that_asks_first_is_told_before_it_sends(served: Served) -> None:
    with served.connect() as connection:
        head = raw_post(TEXT, b"", "expect: 100-continue\r\n").replace(b"content-length: 0", b"content-length: 9999999")
        connection.sendall(head)
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"100 Continue" not in answer


@pytest.mark.parametrize("path", ["/none", "/v1", "/v1/", "/v1/chat", "/v1/audio", "/v1/models/", "/%00", "/..%2f"])
def test_paths_that_are_not_there(served: Served, path: str) -> None:
    refused(served.http.get(path), 404, "not_found")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "GET", "OPTIONS", "TRACE", "BREW"])
def test_methods_that_a_path_does_not_have(served: Served, method: str) -> None:
    response = served.http.request(method, CHAT)
    refused(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "POST"


def test_what_is_left_of_a_refused_body_is_no_second_request(served: Served) -> None:
    inner = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    with served.connect() as connection:
        connection.sendall(raw_post("/nowhere", inner))
        connection.sendall(b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 404")
    assert answer.count(b"HTTP/1.1") == 2
    assert b'"version"' in answer


def test_token_ids_that_the_model_lacks(served: Served) -> None:
    error = refused(served.post("/detokenize", {"tokens": [5, 258]}), 400, "invalid_value")
    assert "258" in error["message"]
    assert refused(served.post("/tokenize", {}), 400, "invalid_value")["message"].startswith("needs either")
    refused(served.post(TEXT, {"prompt": [2**31 - 1], "echo": True}), 400, "invalid_value")


GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"GET\r\n\r\n",
    b"\0" * 100,
    b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
    b"\r\n\r\nA\r\n\r\n",
]


@pytest.mark.parametrize("data", GARBAGE)
def test_bytes_that_are_no_http_get_an_answer_and_an_end(served: Served, data: bytes) -> None:
    with served.connect() as connection:
        connection.sendall(data)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert json.loads(body)["error"]["code"] == "invalid_http"


@pytest.mark.parametrize(("path", "status"), [("/v1/nothing", 404), ("/v1/models", 405), (CHAT, 415)])
def test_a_refusal_before_the_body_was_read_arrives_and_keeps_the_connection(path: str, status: int) -> None:
    """The body comes late, in two pieces: a server that closes on unread bytes resets the connection."""
    with serving_core(fake_core(spell("a"))) as served, served.connect() as connection:
        for _ in range(2):
            head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: text/x\r\ncontent-length: 60000\r\n\r\n"
            connection.sendall(head.encode() + b"x" * 100)
            connection.sendall(b"x" * 59900)
            answer = HTTPResponse(connection)  # head and body may come in pieces
            answer.begin()
            assert answer.status == status
            assert json.loads(answer.read())["error"]["message"]
            assert answer.getheader("connection") != "close"
