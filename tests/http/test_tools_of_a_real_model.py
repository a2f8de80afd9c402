"""Tool calls of a real model through OpenAI's client: a template shows it tools, grammars hold it to them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

openai = pytest.importorskip("openai", reason="openai is not installed")

pytestmark = [pytest.mark.model, pytest.mark.slow]
TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\nYou may call functions:\\n' }}
    {%- for tool in tools %}{{- tool.function | tojson }}{{- '\\n' }}{%- endfor %}
    {{- 'Call one so: <tool_call>\\n{"name": NAME, "arguments": {...}}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "days": {"type": "integer", "minimum": 1, "maximum": 7},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "set_alarm": {
        "type": "object",
        "properties": {
            "time": {"type": "string", "pattern": "^[0-2][0-9]:[0-5][0-9]$"},
            "repeat": {"type": "array", "items": {"enum": ["mon", "tue", "wed"]}, "maxItems": 2},
        },
        "required": ["time"],
        "additionalProperties": False,
    },
}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()
]
QUESTION: Any = [{"role": "user", "content": "What will the weather be in Paris for three days?"}]


@pytest.fixture(scope="module")
def client(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    template = tmp_path_factory.mktemp("template") / "tools.jinja"
    template.write_text(TEMPLATE)
    command = [sys.executable, "-c", "from tokloom.serve.cli import main; main()", "serve", "--model", str(smollm2)]
    command += ["--port", "0", "--served-model-name", "smol", "--set", f"model.chat_template={template}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = ""
        while "serving" not in line:
            line = process.stderr.readline()
            assert line
        yield openai.OpenAI(base_url=f"{line.split()[-1]}/v1", api_key="none", max_retries=0, timeout=300)
    finally:
        process.kill()
        process.communicate()


def create(client: Any, **options: Any) -> Any:
    given = {"model": "smol", "messages": QUESTION, "tools": TOOLS, "max_tokens": 200, "seed": 5, **options}
    return client.chat.completions.create(**given)


def check(calls: Any) -> None:
    for call in calls:
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", [None, *SCHEMAS])
def test_what_is_required_comes_and_fits_its_schema(client: Any, name: str | None, temperature: float) -> None:
    choice: Any = "required" if name is None else {"type": "function", "function": {"name": name}}
    answer = create(client, tool_choice=choice, parallel_tool_calls=False, temperature=temperature, n=3)
    for found in answer.choices:
        assert found.finish_reason == "tool_calls"
        (call,) = found.message.tool_calls
        assert name in (None, call.function.name)
        check([call])


def test_a_stream_has_the_same_call(client: Any) -> None:
    options = {"tool_choice": "required", "parallel_tool_calls": False, "temperature": 0}
    (whole,) = create(client, **options).choices[0].message.tool_calls
    calls: list[Any] = []
    for chunk in create(client, **options, stream=True):
        calls += chunk.choices[0].delta.tool_calls or []
    (call,) = calls
    assert (call.index, call.function.name) == (0, whole.function.name)
    assert call.function.arguments == whole.function.arguments


def test_a_call_and_its_result_can_be_sent_back(client: Any) -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    message = create(client, tool_choice=choice, temperature=0).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Sunny, 21 degrees."}
    answer = create(client, messages=[*QUESTION, message, result], tool_choice="none", max_tokens=30, temperature=0)
    assert answer.choices[0].message.content
    assert answer.choices[0].message.tool_calls is None


@pytest.mark.parametrize("seed", range(3))
def test_strict_tools_are_kept_where_the_model_decides(client: Any, seed: int) -> None:
    strict = [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    message = create(client, tools=strict, temperature=1.0, seed=seed, max_tokens=120).choices[0].message
    check(message.tool_calls or [])
    assert message.content or message.tool_calls


def test_a_schema_that_cannot_be_kept_is_told_by_its_keyword(client: Any) -> None:
    odd = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "not": {}}}}]
    with pytest.raises(openai.BadRequestError, match="'not'"):
        create(client, tools=odd, tool_choice="required")
