"""OpenAI's own client and curl against the command line's server with the real model."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

openai = pytest.importorskip("openai", reason="openai is not installed")

pytestmark = [pytest.mark.model, pytest.mark.slow]
COMMAND = [sys.executable, "-c", "from tokloom.serve.cli import main; main()"]
NAME = "smol"
QUESTION: Any = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]


@pytest.fixture(scope="module")
def url(smollm2: Path) -> Iterator[str]:
    arguments = ["serve", "--model", str(smollm2), "--port", "0", "--served-model-name", NAME, "--api-key-env", "KEY"]
    process = subprocess.Popen(
        [*COMMAND, *arguments], stderr=subprocess.PIPE, text=True, env={**os.environ, "KEY": "sk-test"}
    )
    try:
        assert process.stderr is not None
        line = ""
        while "serving" not in line:
            line = process.stderr.readline()
            assert line
        yield line.split()[-1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def client(url: str) -> Any:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="sk-test", max_retries=0, timeout=300)


def test_a_chat_is_the_same_whole_and_streamed(client: Any) -> None:
    options = {"model": NAME, "messages": QUESTION, "max_tokens": 12, "temperature": 0, "seed": 1}
    whole = client.chat.completions.create(**options)
    assert "Paris" in whole.choices[0].message.content
    stream = client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == whole.choices[0].finish_reason


def test_log_probabilities_of_a_prompt_do_not_depend_on_who_wrote_it(client: Any) -> None:
    options = {"model": NAME, "temperature": 0, "logprobs": 2, "max_tokens": 6}
    drawn = client.completions.create(prompt="The capital of France is", **options).choices[0]
    whole = "The capital of France is" + drawn.text
    scored = client.completions.create(prompt=whole, echo=True, **{**options, "max_tokens": 0}).choices[0]
    assert scored.text == whole
    assert scored.logprobs.token_logprobs[0] is None
    count = len(drawn.logprobs.tokens)
    assert scored.logprobs.tokens[-count:] == drawn.logprobs.tokens
    assert scored.logprobs.token_logprobs[-count:] == pytest.approx(drawn.logprobs.token_logprobs, abs=0.1)
    for offset, token in zip(scored.logprobs.text_offset, scored.logprobs.tokens, strict=True):
        assert whole[offset:].startswith(token)


def test_errors_are_those_of_the_client_library(client: Any, url: str) -> None:
    with pytest.raises(openai.NotFoundError, match="not served"):
        client.chat.completions.create(model="gpt", messages=QUESTION)
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=NAME, prompt=[1] * 9000)
    assert caught.value.code == "context_length_exceeded"
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    with pytest.raises(openai.BadRequestError, match="no known format of tool calls"):
        client.chat.completions.create(model=NAME, messages=QUESTION, tools=tools)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{url}/v1", api_key="no", max_retries=0).models.list()
    assert [model.id for model in client.models.list()] == [NAME]


def test_extra_fields_go_through_extra_body(client: Any) -> None:
    extra = {"top_k": 1, "min_tokens": 5, "ignore_eos": True, "cache_salt": "x", "priority": 2}
    answer = client.chat.completions.create(model=NAME, messages=QUESTION, max_tokens=5, extra_body=extra)
    assert answer.usage.completion_tokens == 5


def test_curl_streams(url: str) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    body = json.dumps({"messages": QUESTION, "max_tokens": 12, "stream": True, "temperature": 0})
    command = [curl, "-sSN", f"{url}/v1/chat/completions", "-H", "content-type: application/json"]
    command += ["-H", "authorization: Bearer sk-test", "-d", body]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    lines = [line for line in done.stdout.splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert "Paris" in "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


def test_a_schema_a_vector_and_a_response(client: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "population": {"type": "integer", "maximum": 99}},
        "required": ["city", "population"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}}
    options = {"model": NAME, "messages": QUESTION, "max_tokens": 60, "temperature": 0}
    found = json.loads(client.chat.completions.create(**options, response_format=form).choices[0].message.content)
    assert set(found) == {"city", "population"}
    vectors = [item.embedding for item in client.embeddings.create(model=NAME, input=["a cat", "a dog", "x = 1"]).data]
    near, far = (sum(a * b for a, b in zip(vectors[0], other, strict=True)) for other in vectors[1:])
    assert near > far
    response = client.responses.create(model=NAME, input=QUESTION[0]["content"], max_output_tokens=12, temperature=0)
    assert "Paris" in response.output_text
    with client.responses.stream(
        model=NAME, input=QUESTION[0]["content"], max_output_tokens=12, temperature=0
    ) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == response.output_text
