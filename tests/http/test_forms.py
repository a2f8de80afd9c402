"""Answers of a given form, vectors, adapters as models, and the responses API: over a real engine with a tiny model."""

import base64
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fake_core import spell
from lora_folders import make_adapter
from served import CHAT, HI, TEXT, Served, fake_core, serving, serving_core
from tiny_chat import SETS
from transformers import LlamaForCausalLM

from tokloom.api import AsyncEngine
from tokloom.sdk import GenerationDefaults, Request

EMBED, RESPONSES = "/v1/embeddings", "/v1/responses"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("adapter")
    make_adapter(LlamaForCausalLM.from_pretrained(model), folder, 3)

    async def load() -> AsyncEngine:
        return await AsyncEngine.from_profile(model=str(model), sets=SETS, adapters={"blue": str(folder)})

    with serving(load) as server:
        yield server


def ask(served: Served, path: str, **body: Any) -> Any:
    response = served.post(path, body)
    assert response.status_code == 200, response.text
    return response.json()


def refused(served: Served, path: str, **body: Any) -> str:
    response = served.post(path, body)
    assert response.status_code == 400, response.text
    return str(response.json()["error"]["message"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_is_kept_by_every_answer(served: Served, stream: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "pair", "schema": SCHEMA, "strict": True}}
    body = {**HI, "max_tokens": 60, "n": 3, "seed": 4, "temperature": 1.5, "response_format": form}
    texts = ["", "", ""]
    if stream:
        for chunk in served.events(CHAT, body)[:-1]:
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["delta"].get("content", "")
    else:
        texts = [choice["message"]["content"] for choice in ask(served, CHAT, **body)["choices"]]
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)


def test_all_ways_to_say_the_form(served: Served) -> None:
    def text(path: str, **body: Any) -> str:
        base = HI if path == CHAT else {"prompt": "a"}
        choice = ask(served, path, **{**base, "max_tokens": 60, **body})["choices"][0]
        return str(choice["message"]["content"] if path == CHAT else choice["text"])

    for path in (CHAT, TEXT):
        jsonschema.validate(json.loads(text(path, structured_outputs={"json": SCHEMA})), SCHEMA)
        assert re.fullmatch("[0-9]{3}-x", text(path, structured_outputs={"regex": "[0-9]{3}-x"}))
        assert text(path, structured_outputs={"choice": ["left", "right"]}) in ("left", "right")
        assert text(path, structured_outputs={"grammar": 'start: "ab" | "cd"'}) in ("ab", "cd")
    assert text(CHAT, response_format={"type": "json_object"}, max_tokens=30).startswith("{")
    assert text(CHAT, response_format={"type": "text"})


def test_forms_that_cannot_be_kept_are_refused(served: Served) -> None:
    def form(**fields: Any) -> str:
        return refused(served, CHAT, **{**HI, **fields})

    unsupported = {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}
    assert "'not'" in form(response_format=unsupported)
    assert "schema" in form(response_format={"type": "json_schema"})
    assert "exclude each other" in form(response_format={"type": "json_object"}, structured_outputs={"regex": "a"})
    assert "exactly one" in form(structured_outputs={"regex": "a", "choice": ["a"]})
    assert "exactly one" in form(structured_outputs={})
    assert form(structured_outputs={"regex": "("})
    deep: dict[str, Any] = {"type": "null"}
    for _ in range(120):
        deep = {"type": "array", "items": deep}
    assert form(structured_outputs={"json": deep})
    assert ask(served, CHAT, **HI)["choices"]


def test_vectors_come_as_numbers_or_base64(served: Served) -> None:
    found = ask(served, EMBED, model="tiny", input=["one", "two"])
    assert [item["index"] for item in found["data"]] == [0, 1]
    assert found["model"] == "tiny"
    first = found["data"][0]["embedding"]
    assert sum(value * value for value in first) == pytest.approx(1, abs=1e-5)
    packed = ask(served, EMBED, input="one", encoding_format="base64")["data"][0]["embedding"]
    assert list(struct.unpack(f"<{len(first)}f", base64.b64decode(packed))) == pytest.approx(first, abs=1e-6)
    ids = ask(served, "/tokenize", prompt="one")["tokens"]
    assert ask(served, EMBED, input=ids)["data"][0]["embedding"] == pytest.approx(first, abs=1e-6)
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > len(ids)
    mean = ask(served, EMBED, input=[ids], pooling="mean", normalize=False)["data"][0]["embedding"]
    assert mean != pytest.approx(first, abs=1e-3)


@pytest.mark.parametrize(
    "body", [{}, {"input": ""}, {"input": []}, {"input": [""]}, {"input": "a", "dimensions": 4}, {"input": [[10**6]]}]
)
def test_wrong_embedding_requests_are_refused(served: Served, body: dict[str, Any]) -> None:
    assert refused(served, EMBED, **body)


def test_an_adapter_is_a_model_of_its_own(served: Served) -> None:
    listed = {item["id"]: item.get("parent") for item in served.http.get("/v1/models").json()["data"]}
    assert listed == {"tiny": None, "alias": None, "blue": "tiny"}
    greedy = {**HI, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    plain, blue = (ask(served, CHAT, **greedy, model=name)["choices"][0]["message"] for name in ("tiny", "blue"))
    assert plain["content"] != blue["content"]
    assert ask(served, CHAT, **greedy, model="blue")["model"] == "blue"
    assert (
        ask(served, EMBED, input="a", model="blue")["data"][0] != ask(served, EMBED, input="a", model="tiny")["data"][0]
    )


def test_what_the_model_recommends_is_taken_where_nothing_is_said() -> None:
    core = fake_core(spell("a"))
    seen: list[Any] = []
    add = core.add

    def adding(request: Request) -> None:
        seen.append(request.sampling)
        add(request)

    core.add = adding  # type: ignore[method-assign]
    core.composition.model.spec.generation = GenerationDefaults(temperature=0.5, top_k=7)
    with serving_core(core) as server:
        ask(server, CHAT, **HI)
        ask(server, CHAT, **HI, temperature=1.0, top_k=-1)
        ask(server, TEXT, prompt="a", top_p=0.5, temperature=None)
        ask(server, RESPONSES, input="a")
    kept = [(item.temperature, item.top_k, item.top_p) for item in seen]
    assert kept == [(0.5, 7, 1.0), (1.0, 0, 1.0), (0.5, 7, 0.5), (0.5, 7, 1.0)]


def named(text: str) -> list[tuple[str, Any]]:
    """Events of a responses stream."""
    found = []
    for block in text.strip().split("\n\n"):
        kind, data = block.split("\n")
        found.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_a_response_is_the_same_whole_and_streamed(served: Served) -> None:
    body: dict[str, Any] = {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        "instructions": "be brief",
        "max_output_tokens": 9,
        "temperature": 0,
        "metadata": {"k": "v"},
    }
    whole = ask(served, RESPONSES, **body)
    (message,) = whole["output"]
    chat = {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]}
    same = ask(served, CHAT, **chat, max_tokens=9, temperature=0)
    assert message["content"][0]["text"] == same["choices"][0]["message"]["content"]
    assert whole["usage"]["input_tokens"] == same["usage"]["prompt_tokens"]
    assert whole["metadata"] == {"k": "v"}
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    events = named(served.post(RESPONSES, {**body, "stream": True}).text)
    kinds = [kind for kind, _ in events if not kind.endswith(".delta")]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    deltas = "".join(data["delta"] for kind, data in events if kind.endswith(".delta"))
    assert deltas == message["content"][0]["text"] == events[-1][1]["response"]["output"][0]["content"][0]["text"]
    assert events[0][1]["response"]["status"] == "in_progress"


def test_a_response_may_have_a_form(served: Served) -> None:
    form = {"format": {"type": "json_schema", "name": "pair", "schema": SCHEMA}}
    found = ask(served, RESPONSES, input="a", text=form, max_output_tokens=60)
    assert found["status"] == "completed"
    jsonschema.validate(json.loads(found["output"][0]["content"][0]["text"]), SCHEMA)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input": []},
        {"input": "a", "previous_response_id": "x"},
        {"input": "a", "tools": [{"type": "web_search"}]},
        {"input": "a", "background": True},
        {"input": [{"type": "function_call_output", "call_id": "1", "output": "x"}]},
        {"input": "a", "text": {"format": {"type": "json_schema"}}},
    ],
)
def test_wrong_response_requests_are_refused(served: Served, body: dict[str, Any]) -> None:
    assert refused(served, RESPONSES, **body)


def test_metrics_are_shown_where_an_observer_has_them(model: Path) -> None:
    async def load() -> AsyncEngine:
        return await AsyncEngine.from_profile("builtin:serve", model=str(model), sets=SETS)

    with serving(load) as server:
        ask(server, CHAT, **HI)
        response = server.http.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain")
        assert "tokloom_generated_tokens_total 5.0" in response.text.splitlines()
