"""Tool calls and reasoning over HTTP: a core answers what a test chose, a template shows what reached it."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from fake_core import BOS, ByteTokenizer, spell
from served import CHAT, HI, Served, fake_core, serving_core

from tokloom.sdk import JSON, ChatMessage, Request, Tool

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "What the sky does.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
TWO = f"Let me see.\n{CALL}\n{CALL.replace('Zürich', 'Bern')}"


class Talking(ByteTokenizer):
    """Keeps what its template was given."""

    def __init__(self) -> None:
        super().__init__()
        self.chat_template = "tools <tool_call> </think> enable_thinking"
        self.given: list[tuple[Sequence[ChatMessage], Sequence[Tool], Mapping[str, JSON]]] = []

    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool],
        options: Mapping[str, JSON],
        add_generation_prompt: bool,
    ) -> Sequence[int]:
        self.given.append((messages, tools, options))
        begun = "<think>\n" if options.get("enable_thinking") else ""
        return [BOS, *f"{messages[-1].content}{begun}".encode()]


@contextmanager
def talking(answer: str | Callable[[Request, int], Sequence[int]], **options: Any) -> Iterator[tuple[Served, Talking]]:
    tokenizer = Talking()
    core = fake_core(spell(answer) if isinstance(answer, str) else answer)
    with serving_core(core, tokenizer, **options) as served:
        yield served, tokenizer


def ask(served: Served, **body: Any) -> Any:
    response = served.post(CHAT, {**HI, "max_tokens": 500, **body})
    assert response.status_code == 200, response.text
    return response.json()


def streamed(served: Served, **body: Any) -> tuple[dict[str, Any], list[Any]]:
    """A stream's deltas put together as clients do, and its events."""
    events = served.events(CHAT, {**HI, "max_tokens": 500, **body})
    assert events[-1] == "[DONE]"
    whole: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": [], "finish_reason": None}
    for event in events[:-1]:
        for choice in event["choices"]:
            delta = choice["delta"]
            whole["content"] += delta.get("content", "")
            whole["reasoning_content"] += delta.get("reasoning_content", "")
            for call in delta.get("tool_calls", []):
                assert call["index"] == len(whole["tool_calls"])
                whole["tool_calls"].append(call)
            whole["finish_reason"] = choice["finish_reason"] or whole["finish_reason"]
    return whole, events


def functions(calls: list[Any]) -> list[tuple[str, Any]]:
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


def test_calls_are_parsed_whole_and_streamed() -> None:
    with talking(TWO) as (served, _):
        choice = ask(served, tools=[WEATHER])["choices"][0]
        wanted = [("weather", {"city": "Zürich"}), ("weather", {"city": "Bern"})]
        assert choice["message"]["content"] == "Let me see."
        assert functions(choice["message"]["tool_calls"]) == wanted
        assert choice["finish_reason"] == "tool_calls"
        ids = [call["id"] for call in choice["message"]["tool_calls"]]
        assert len(set(ids)) == 2
        assert all(len(name) == 9 and name.isalnum() for name in ids)
        found, _ = streamed(served, tools=[WEATHER])
        assert functions(found["tool_calls"]) == wanted
        assert (found["content"], found["finish_reason"]) == ("Let me see.", "tool_calls")


def test_an_answer_that_is_only_a_call_has_no_content() -> None:
    with talking(CALL) as (served, _):
        message = ask(served, tools=[WEATHER])["choices"][0]["message"]
        assert message["content"] is None
        assert len(message["tool_calls"]) == 1


@pytest.mark.parametrize("body", [{}, {"tools": [WEATHER], "tool_choice": "none"}])
def test_where_no_call_may_come_its_text_is_text(body: dict[str, Any]) -> None:
    with talking(TWO) as (served, _):
        choice = ask(served, **body)["choices"][0]
        assert choice["message"] == {"role": "assistant", "content": TWO, "refusal": None}
        assert choice["finish_reason"] == "stop"
        assert streamed(served, **body)[0]["content"] == TWO


def test_a_call_that_is_cut_is_text() -> None:
    with talking(CALL) as (served, _):
        choice = ask(served, tools=[WEATHER], max_tokens=30)["choices"][0]
        assert choice["message"]["content"] == CALL.encode()[:30].decode()
        assert choice["finish_reason"] == "length"


def test_each_answer_has_its_own_calls() -> None:
    texts = [CALL, "None.", TWO]
    with talking(lambda request, child: list(texts[child].encode())) as (served, _):
        choices = ask(served, tools=[WEATHER], n=3)["choices"]
        assert [len(choice["message"].get("tool_calls", [])) for choice in choices] == [1, 0, 2]
        assert [choice["finish_reason"] for choice in choices] == ["tool_calls", "stop", "tool_calls"]


def test_a_conversation_with_calls_and_results_reaches_the_template() -> None:
    with talking("Fine.") as (served, tokenizer):
        made = ask(served, tools=[WEATHER])  # any answer, to see that tools reach it
        assert made["choices"][0]["message"]["content"] == "Fine."
        history = [
            {"role": "developer", "content": "Be brief."},
            {
                "role": "user",
                "content": [{"type": "text", "text": "Zürich"}, {"type": "text", "text": "?"}],
                "name": "Ada",
            },
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "Ask.",
                "tool_calls": [
                    {
                        "id": "abc123456",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city": "Zürich"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "abc123456", "content": "sun"},
        ]
        ask(served, messages=history, tools=[WEATHER], chat_template_kwargs={"tone": "dry"})
        messages, tools, options = tokenizer.given[-1]
        assert [message.role for message in messages] == ["system", "user", "assistant", "tool"]
        assert messages[1].content == "Zürich?"
        assert messages[1].name == "Ada"
        assert messages[2].reasoning == "Ask."
        assert messages[2].content == ""
        assert [(call.name, call.arguments, call.id) for call in messages[2].tool_calls] == [
            ("weather", {"city": "Zürich"}, "abc123456")
        ]
        assert (messages[3].content, messages[3].tool_call_id) == ("sun", "abc123456")
        assert tools == (Tool("weather", "What the sky does.", WEATHER["function"]["parameters"]),)  # type: ignore[index]
        assert options == {"tone": "dry"}


def test_reasoning_is_split_off_and_counted() -> None:
    thought = "<think>\nHm, ü.\n</think>\n\n"
    with talking(thought + "Yes.") as (served, _):
        body = ask(served)
        assert body["choices"][0]["message"] == {
            "role": "assistant",
            "content": "Yes.",
            "refusal": None,
            "reasoning_content": "Hm, ü.",
        }
        counted = len(thought.rstrip().encode())  # a token per byte, up to the end of the mark
        assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": counted}
        found, events = streamed(served, stream_options={"include_usage": True})
        assert (found["reasoning_content"], found["content"]) == ("Hm, ü.", "Yes.")
        assert events[-2]["usage"]["completion_tokens_details"] == {"reasoning_tokens": counted}


def test_reasoning_that_the_prompt_has_begun() -> None:
    with talking("Hm.\n</think>\nYes.") as (served, tokenizer):
        message = ask(served, reasoning_effort="high")["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("Hm.", "Yes.")
        assert tokenizer.given[-1][2] == {"enable_thinking": True}
        message = ask(served, reasoning_effort="none")["choices"][0]["message"]
        assert message["content"] == "Hm.\n</think>\nYes."
        assert tokenizer.given[-1][2] == {"enable_thinking": False}


def test_formats_can_be_named_and_switched_off() -> None:
    with talking("<think>a</think>" + TWO, reasoning_format="none", tool_format="none") as (served, _):
        assert ask(served)["choices"][0]["message"]["content"] == "<think>a</think>" + TWO
        error = served.post(CHAT, {**HI, "tools": [WEATHER]})
        assert error.status_code == 400
    with talking("[TOOL_CALLS]weather[ARGS]{}", tool_format="mistral") as (served, _):
        assert functions(ask(served, tools=[WEATHER])["choices"][0]["message"]["tool_calls"]) == [("weather", {})]


def test_log_probabilities_are_those_of_all_tokens() -> None:
    with talking("<think>a</think>" + CALL) as (served, _):
        body = ask(served, tools=[WEATHER], logprobs=True)
        entries = body["choices"][0]["logprobs"]["content"]
        assert bytes(b for entry in entries for b in entry["bytes"]).decode() == "<think>a</think>" + CALL
        _, events = streamed(served, tools=[WEATHER], logprobs=True)
        logged = [choice["logprobs"] for event in events[:-1] for choice in event["choices"] if choice["logprobs"]]
        assert [entry for log in logged for entry in log["content"]] == entries


def test_responses_have_reasoning_as_an_item_of_its_own() -> None:
    with talking("<think>Hm.</think>Yes.") as (served, _):
        body = served.post("/v1/responses", {"input": "hi"}).json()
        assert [item["type"] for item in body["output"]] == ["reasoning", "message"]
        assert body["output"][0]["content"] == [{"type": "reasoning_text", "text": "Hm."}]
        assert body["output"][1]["content"][0]["text"] == "Yes."
        assert body["usage"]["output_tokens_details"] == {"reasoning_tokens": len("<think>Hm.</think>")}
        with served.http.stream("POST", "/v1/responses", json={"input": "hi", "stream": True}) as response:
            lines = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: ")]
        kinds = [line["type"].removeprefix("response.") for line in lines]
        assert list(dict.fromkeys(kinds)) == [
            "created",
            "in_progress",
            "output_item.added",
            "reasoning_text.delta",
            "reasoning_text.done",
            "output_item.done",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "completed",
        ]
        assert [line["output_index"] for line in lines if "output_index" in line] == sorted(
            line["output_index"] for line in lines if "output_index" in line
        )
        assert lines[-1]["response"]["output"][1:] == [
            {**body["output"][1], "id": lines[-1]["response"]["output"][1]["id"]}
        ]


def test_tokens_of_a_conversation_with_tools() -> None:
    with talking("") as (served, tokenizer):
        body = {"messages": HI["messages"], "tools": [WEATHER], "chat_template_kwargs": {"enable_thinking": True}}
        ids = served.post("/tokenize", body).json()["tokens"]
        assert bytes(ids[1:]).decode() == "hi<think>\n"
        assert tokenizer.given[-1][1][0].name == "weather"
