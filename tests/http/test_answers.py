"""What clients get, over a core whose answers are known."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from fake_core import BOS, spell
from served import CHAT, HI, TEXT, Served, fake_core, serving_core

from tokloom.sdk import Request

HELLO = "héllo wörld"


def answer(request: Request, child: int) -> Sequence[int]:
    """The last byte of the prompt, the child's number, and a text with characters of two bytes."""
    return [request.prompt_ids[-1], ord("0") + child, *HELLO.encode()]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving_core(fake_core(answer)) as server:
        yield server


def ask(served: Served, path: str, **body: Any) -> Any:
    response = served.post(path, body)
    assert response.status_code == 200, response.text
    return response.json()


def chat(served: Served, **body: Any) -> Any:
    return ask(served, CHAT, **{"messages": [{"role": "user", "content": "hi"}], **body})


def test_a_chat_answer_is_whole(served: Served) -> None:
    found = chat(served, model="alias")
    assert found["object"] == "chat.completion"
    assert found["model"] == "alias"
    assert found["id"].startswith("chatcmpl-")
    text = "]0" + HELLO
    assert found["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    prompt = len("[user]hi[assistant]") + 1
    usage = found["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompt, len(text.encode()))
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_chat_stream_begins_with_the_role_and_ends_with_reason_usage_and_done(served: Served) -> None:
    found = served.events(CHAT, {**HI, "max_tokens": 100, "stream_options": {"include_usage": True}})
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert found[-1] == "[DONE]"
    assert found[-2]["choices"] == []
    assert found[-2]["usage"] == chat(served, max_tokens=100)["usage"]
    assert found[-3]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    chunks = found[1:-3]
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == "]0" + HELLO
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert {chunk["id"] for chunk in found[:-1]} == {found[0]["id"]}
    assert {chunk["object"] for chunk in found[:-1]} == {"chat.completion.chunk"}
    assert all(chunk["usage"] is None for chunk in found[:-2])


def test_without_usage_no_chunk_speaks_of_it(served: Served) -> None:
    found = served.events(CHAT, HI)
    assert all("usage" not in chunk and chunk["choices"] for chunk in found[:-1])
    assert found[-2]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_several_answers_keep_apart(served: Served, stream: bool) -> None:
    body = {**HI, "n": 3, "max_tokens": 100}
    texts = dict.fromkeys(range(3), "")
    if stream:
        for chunk in served.events(CHAT, body)[:-1]:
            texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["delta"].get("content", "")
    else:
        for choice in ask(served, CHAT, **body)["choices"]:
            texts[choice["index"]] = choice["message"]["content"]
    assert texts == {index: f"]{index}{HELLO}" for index in range(3)}


def test_parts_and_developer_messages_reach_the_template_as_text(served: Served) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
    wanted = "[system]be brief[user]one two[assistant]"
    assert chat(served, messages=messages)["usage"]["prompt_tokens"] == len(wanted) + 1


def test_chat_logprobs_have_an_entry_per_token(served: Served) -> None:
    found = chat(served, logprobs=True, max_tokens=4)["choices"][0]["logprobs"]["content"]
    data = [ord("]"), ord("0"), ord("h"), "é".encode()[0]]
    assert [entry["bytes"] for entry in found] == [[byte] for byte in data]
    assert [entry["logprob"] for entry in found] == [-float(byte) for byte in data]
    assert [entry["token"] for entry in found] == ["]", "0", "h", "\ufffd"]
    streamed = served.events(CHAT, {**HI, "logprobs": True, "max_tokens": 4})
    logs = [chunk["choices"][0]["logprobs"] for chunk in streamed[:-1]]
    assert [entry for log in logs if log for entry in log["content"]] == found


def test_stop_strings_are_cut_off_or_kept(served: Served) -> None:
    assert chat(served, stop=" w")["choices"][0]["message"]["content"] == "]0héllo"
    assert chat(served, stop=["zzz", " w"])["choices"][0]["finish_reason"] == "stop"
    assert chat(served, stop=" w", include_stop_str_in_output=True)["choices"][0]["message"]["content"] == "]0héllo w"


PROMPTS: dict[str, tuple[Any, list[str]]] = {
    "text": ("ab", ["ab"]),
    "texts": (["ab", "xyz"], ["ab", "xyz"]),
    "ids": ([97, 98], ["ab"]),
    "lists of ids": ([[97], [98, 99]], ["a", "bc"]),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("kind", PROMPTS)
def test_prompts_of_every_form_give_n_answers_each_in_order(
    served: Served, kind: str, echo: bool, stream: bool
) -> None:
    prompt, texts = PROMPTS[kind]
    wanted = [f"{text if echo else ''}{text[-1]}{child}{HELLO}" for text in texts for child in range(2)]
    body = {"prompt": prompt, "n": 2, "echo": echo, "max_tokens": 100}
    if not stream:
        found = ask(served, TEXT, **body)["choices"]
        assert [choice["index"] for choice in found] == list(range(len(wanted)))
        assert [choice["text"] for choice in found] == wanted
        return
    got = [""] * len(wanted)
    ends = []
    for chunk in served.events(TEXT, body)[:-1]:
        choice = chunk["choices"][0]
        got[choice["index"]] += choice["text"]
        ends += [choice["index"]] if choice["finish_reason"] == "stop" else []
    assert got == wanted
    assert sorted(ends) == list(range(len(wanted)))


def test_usage_counts_each_prompt_once_and_every_answer(served: Served) -> None:
    usage = ask(served, TEXT, prompt=["ab", "xyz"], n=2, max_tokens=3)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == ((1 + 2) + (1 + 3), 4 * 3)


def test_text_logprobs_give_offsets_into_the_text(served: Served) -> None:
    found = ask(served, TEXT, prompt="ab", max_tokens=5, logprobs=0)["choices"][0]["logprobs"]
    assert found["tokens"] == ["b", "0", "h", "\ufffd", "\ufffd"]
    assert found["text_offset"] == [0, 1, 2, 3, 3], "a character begins with its first byte"
    assert found["token_logprobs"] == [-98.0, -48.0, -104.0, -195.0, -169.0]
    assert found["top_logprobs"][0] == {"b": -98.0}


def test_no_new_tokens_are_an_answer_too(served: Served) -> None:
    found = ask(served, TEXT, prompt="ab", max_tokens=0, echo=True)["choices"][0]
    assert (found["text"], found["finish_reason"]) == ("ab", "length")


def test_fields_that_change_nothing_are_ignored_and_null_is_left_out(served: Served) -> None:
    ignored = {"metadata": {"a": 1}, "store": True, "service_tier": "auto", "parallel_tool_calls": False}
    nulls = {"temperature": None, "tools": None, "stop": None, "response_format": None, "seed": None, "user": None}
    neutral = {"n": 1, "tool_choice": "auto", "response_format": {"type": "text"}, "modalities": ["text"]}
    for extra in (ignored, nulls, neutral):
        assert chat(served, **extra)["choices"][0]["message"]["content"] == "]0" + HELLO


def test_tokens_and_back(served: Served) -> None:
    found = ask(served, "/tokenize", prompt="hé")
    assert found == {"tokens": [BOS, *"hé".encode()], "count": 4, "max_model_len": 4096}
    assert ask(served, "/tokenize", prompt="hé", add_special_tokens=False)["tokens"] == list("hé".encode())
    asked = ask(served, "/tokenize", messages=HI["messages"])
    assert asked["tokens"] == [BOS, *b"[user]hi[assistant]"]
    assert ask(served, "/detokenize", tokens=found["tokens"]) == {"prompt": "<bos>hé"}
    assert ask(served, "/detokenize", tokens=found["tokens"], skip_special_tokens=True) == {"prompt": "hé"}
    assert ask(served, "/detokenize", tokens=[]) == {"prompt": ""}


def test_models_are_listed_under_all_names(served: Served) -> None:
    listed = served.http.get("/v1/models").json()
    assert [item["id"] for item in listed["data"]] == ["tiny", "alias", "red"]
    assert [item.get("parent") for item in listed["data"]] == [None, None, "tiny"]
    assert served.http.get("/v1/models/alias").json() == listed["data"][1]
    assert served.http.get("/v1/models/other").json()["error"]["code"] == "model_not_found"


def test_a_name_with_slashes_can_be_asked_for() -> None:
    with serving_core(fake_core(spell("a")), names=("org/name@main",)) as served:
        assert served.http.get("/v1/models/org/name@main").json()["id"] == "org/name@main"


def test_health_ready_version_and_metrics(served: Served) -> None:
    assert served.http.get("/health").json() == {"status": "ok"}
    assert served.http.get("/ready").json() == {"status": "ready"}
    assert set(served.http.get("/version").json()) == {"version"}
    response = served.http.get("/metrics")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "no_metrics")
    head = served.http.head("/health")
    assert (head.status_code, head.content) == (200, b"")


def test_what_an_engine_exposes_is_passed_on() -> None:
    with serving_core(fake_core(spell("a"))) as served:
        engine: Any = served.server.service.loaded
        engine.exposition = lambda: ("text/plain; version=1.0.0", b"up 1\n")
        response = served.http.get("/metrics")
        assert (response.status_code, response.content) == (200, b"up 1\n")
        assert response.headers["content-type"] == "text/plain; version=1.0.0"
