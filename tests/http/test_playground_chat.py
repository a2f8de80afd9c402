"""Chatting with the page in a real browser, against real servers: what is asked, shown, stopped, and told."""

import json
import random
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, Page, find_chromium
from fake_core import ByteTokenizer, spell
from served import CHAT, Served, endless, eventually, fake_core, freed, serving, serving_core
from tiny_chat import SETS
from visiting import IDLE, READY, ask, choose, faked, numbers, say, visiting

from tokloom.api import AsyncEngine
from tokloom.api.profiles import Secret
from tokloom.sdk import Request

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_chromium() is None, reason="Chromium is not installed")]


# -- chat --------------------------------------------------------------------------------------------------------------


def test_the_answer_is_that_of_the_api(browser: Browser, real: Served) -> None:
    body = {"messages": [{"role": "user", "content": "Why?"}], "max_tokens": 40, "temperature": 0}
    found = real.post(CHAT, body).json()
    with visiting(browser, real.url) as page:
        choose(page, temperature=0, max_tokens=40)
        assert ask(page, "Why?") == found["choices"][0]["message"]["content"]
        assert page.text(".question .text") == "Why?"
        meta = page.text(".meta")
        assert f"answer {found['usage']['completion_tokens']}" in meta
        assert f"prompt {found['usage']['prompt_tokens']}" in meta
        assert "first token" in meta
        assert "tokens/s" in meta


def test_an_answer_grows_while_it_comes(browser: Browser) -> None:
    core = fake_core(spell("one, two, three"))
    with faked(browser, core) as page:
        core.before_return = lambda events: core.gate.clear() if core.drawn >= 4 else None
        say(page, "hi")
        page.until("document.querySelector('.body')?.textContent === 'one,'")
        assert page.shown("#stop")
        assert not page.shown("#send")
        core.before_return = lambda events: None
        core.gate.set()
        page.until(IDLE)
        assert page.text(".body") == "one, two, three"
        assert page.shown("#send")


def test_what_was_said_before_goes_with_the_next_question(browser: Browser) -> None:
    asked: list[Request] = []

    def answer(request: Request, child: int) -> Sequence[int]:
        asked.append(request)
        return list(f"answer {len(asked)}".encode())

    def prompt() -> str:
        return bytes(token for token in asked[-1].prompt_ids if token < 256).decode()

    with faked(browser, fake_core(answer)) as page:
        page.value("document.getElementById('settings').open = true")
        page.type("#system", "Be kind.")
        assert ask(page, "a") == "answer 1"
        assert ask(page, "b") == "answer 2"
        assert prompt() == "[system]Be kind.[user]a[assistant]answer 1[user]b[assistant]"
        page.click(".turn:last-of-type .again")
        page.until("document.querySelectorAll('.body')[1].textContent === 'answer 3'")
        page.until(IDLE)
        assert prompt() == "[system]Be kind.[user]a[assistant]answer 1[user]b[assistant]"
        page.click("#new")
        assert page.value("document.querySelectorAll('.turn').length") == 0
        assert ask(page, "c") == "answer 4"
        assert prompt() == "[system]Be kind.[user]c[assistant]"


def test_controls_reach_the_engine_and_empty_ones_do_not(browser: Browser) -> None:
    asked: list[Request] = []

    def answer(request: Request, child: int) -> Sequence[int]:
        asked.append(request)
        return list(b"fine")

    wanted = {
        "temperature": 0.25,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.125,
        "repetition_penalty": 1.5,
        "seed": 12345,
        "max_tokens": 33,
    }
    with faked(browser, fake_core(answer)) as page:
        ask(page, "a")
        choose(page, **wanted)
        assert page.text("#changed") == "7 set"
        ask(page, "b")
        page.click("button[type=reset]")
        ask(page, "c")
    first, second, third = (request.sampling for request in asked)
    assert {name: getattr(second, name) for name in wanted} == wanted
    assert (third.temperature, third.top_k, third.seed) == (first.temperature, first.top_k, None)
    assert first.max_tokens > 1000


def test_a_value_out_of_range_is_not_sent(browser: Browser) -> None:
    core = fake_core(spell("fine"))
    with faked(browser, core) as page:
        choose(page, top_p=2)
        say(page, "a")
        assert page.value("document.activeElement.name") == "top_p"
        assert page.value("document.getElementById('prompt').value") == "a"
        assert core.steps == 0


def test_keys_send_break_lines_and_stop(browser: Browser) -> None:
    core = fake_core(endless)
    with faked(browser, core) as page:
        page.type("#prompt", "a")
        page.press("Enter", shift=True)
        page.send("Input.insertText", text="b")
        assert page.value("document.getElementById('prompt').value") == "a\nb"
        page.press("Enter")
        page.until("document.querySelector('.body')?.textContent.length > 20")
        assert page.text(".question .text") == "a\nb"
        page.press("Escape")
        page.until(IDLE)
        assert not core.held
        assert page.text(".meta").endswith("stopped")


def test_stop_returns_the_pages(browser: Browser, model: Path) -> None:
    unhindered = threading.Event()

    async def load() -> AsyncEngine:
        engine = await AsyncEngine.from_profile("builtin:cpu", model=model, sets=SETS)
        step = engine.core.step

        def slow() -> Any:  # so that there is something to stop
            unhindered.wait(0.02)
            return step()

        engine.core.step = slow  # type: ignore[method-assign]
        return engine

    with serving(load) as served, visiting(browser, served.url) as page:
        engine = served.server.service.loaded
        assert engine is not None
        allocator = engine.core.state.allocator
        choose(page, temperature=100)  # the end token is one of many
        for _ in range(20):
            say(page, "Tell me all.")
            page.until("document.querySelector('.turn:last-of-type .body p') !== null")
            page.click("#stop")
            page.until(IDLE)
            eventually(lambda: allocator.stats().held_pages == 0)
            if page.text(".meta").endswith("stopped"):
                break
        else:
            raise AssertionError("never stopped in time")
        page.until("document.getElementById('running').textContent === '0 of 4'")
        assert numbers(page.text(".held-count")) == [0]
        assert served.live == 0
        unhindered.set()


def test_a_client_that_leaves_the_page_ends_its_answer(browser: Browser) -> None:
    core = fake_core(endless)
    with serving_core(core) as served:
        page = browser.page().open(served.url + "/")
        page.until(READY)
        say(page, "a")
        eventually(lambda: bool(core.held))
        page.close()
        freed(served, core)


# -- what models write -------------------------------------------------------------------------------------------------

HOSTILE = (
    '<img src=x onerror="window.hacked=1"><script>window.hacked=2</script><b>bold</b>&lt;<style>*{display:none}'
    "</style><iframe src='javascript:parent.hacked=3'></iframe><svg onload='hacked=4'>[x](javascript:hacked=5)"
)


def test_an_answer_is_text_whatever_it_says(browser: Browser) -> None:
    with (
        serving_core(fake_core(spell(HOSTILE)), names=("<i>tiny</i>", "alias")) as served,
        visiting(browser, served.url) as page,
    ):
        assert ask(page, HOSTILE) == HOSTILE
        assert page.text(".question .text") == HOSTILE
        assert page.value("document.querySelectorAll('.turn :is(img, script, b, style, iframe, svg, a)').length") == 0
        assert page.value("window.hacked === undefined")
        assert page.value("document.getElementById('model').options[0].textContent") == "<i>tiny</i>"
        assert page.shown(".body")


def test_code_between_fences_is_shown_as_a_block(browser: Browser) -> None:
    with faked(browser, fake_core(spell("First:\n```py\nx = '<b>'\n\ny = 2\n```\nthen\nmore"))) as page:
        ask(page, "a")
        parts = page.value("[...document.querySelectorAll('.body > *')].map(n => [n.tagName, n.textContent])")
        assert parts == [["P", "First:"], ["PRE", "x = '<b>'\n\ny = 2"], ["P", "then\nmore"]]


def stubbed(page: Page, chunks: Sequence[object], done: bool = True) -> None:
    """The next answers are these chunks, whatever the server says."""
    data = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + ("data: [DONE]\n\n" if done else "")
    page.value(
        f"void (window.fetch = ((fetch) => (url, init) => String(url).includes('completions')"
        f" ? Promise.resolve(new Response({json.dumps(data)})) : fetch(url, init))(window.fetch))"
    )


def delta(**fields: object) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def test_reasoning_and_calls_are_shown_apart(browser: Browser, real: Served) -> None:
    first = {"index": 0, "id": "x", "function": {"name": "weather", "arguments": '{"place": '}}
    chunks = [
        delta(role="assistant", content=""),
        delta(reasoning_content="Hmm, "),
        delta(reasoning_content="<b>well</b>."),
        delta(content="It is"),
        delta(content=" so."),
        delta(tool_calls=[first, {"index": 1, "function": {"name": "time", "arguments": ""}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '"Oslo"}'}}]),
    ]
    with visiting(browser, real.url) as page:
        stubbed(page, chunks)
        assert ask(page, "a") == "It is so."
        assert page.text(".reasoning .text") == "Hmm, <b>well</b>."
        assert page.shown(".reasoning summary")
        assert not page.shown(".reasoning .text")
        page.click(".reasoning summary")
        assert page.shown(".reasoning .text")
        calls = page.value(
            "[...document.querySelectorAll('.calls figure')].map(n => [...n.children].map(c => c.textContent))"
        )
        assert calls == [["calls weather", '{\n  "place": "Oslo"\n}'], ["calls time", ""]]


def test_an_error_inside_a_stream_and_a_stream_without_an_end_are_told(browser: Browser, real: Served) -> None:
    with visiting(browser, real.url) as page:
        stubbed(page, [delta(content="Half"), {"error": {"message": "The engine broke.", "code": "internal_error"}}])
        assert ask(page, "a") == "Half"
        assert page.text(".answer .fault") == "The engine broke."
    with visiting(browser, real.url) as page:
        stubbed(page, [delta(content="Half")], done=False)
        assert ask(page, "a") == "Half"
        assert "cut off" in page.text(".answer .fault")
        assert page.shown(".again")


@pytest.mark.parametrize("seed", range(3))
def test_events_are_read_wherever_the_network_cuts_them(browser: Browser, real: Served, seed: int) -> None:
    rng = random.Random(seed)
    wanted = ["".join(rng.choice('aé漢🧵"\\: ') for _ in range(rng.randrange(1, 12))) for _ in range(40)]
    data = b""
    for text in wanted:
        end = rng.choice(("\n", "\r\n", "\r"))
        lines = [f"data:{' ' if text.startswith(' ') or rng.random() < 0.7 else ''}{text}"]
        lines[:0] = rng.choice(([], [": a comment"], ["event: x", "id: 7"]))
        data += (end.join(lines) + end + end).encode()
    data += b"data: never ended\n"
    pieces: list[list[int]] = []
    while data:
        cut = rng.randrange(1, 9)
        pieces.append(list(data[:cut]))
        data = data[cut:]
    with visiting(browser, real.url) as page:
        read = (
            "(async () => { const {events} = await import(new URL('playground/sse.js', document.baseURI));"
            f" const pieces = {json.dumps(pieces)};"
            " const body = new ReadableStream({pull(c) {"
            " const next = pieces.shift(); next ? c.enqueue(new Uint8Array(next)) : c.close(); }});"
            " const found = []; for await (const data of events({body})) found.push(data); return found; })()"
        )
        assert page.value(read) == wanted


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_refusal_is_shown_in_the_servers_words_and_forgotten(browser: Browser, real: Served) -> None:
    long = "x" * 400
    message = real.post(CHAT, {"messages": [{"role": "user", "content": long}]}).json()["error"]["message"]
    with visiting(browser, real.url, expect=r"status of 400.*completions") as page:
        choose(page, temperature=0, max_tokens=9)
        assert ask(page, long) == ""
        assert page.text(".answer .fault") == message
        assert page.shown(".answer .fault")
        body = {"messages": [{"role": "user", "content": "b"}], "max_tokens": 9, "temperature": 0}
        assert ask(page, "b") == real.post(CHAT, body).json()["choices"][0]["message"]["content"]


def test_without_a_chat_template_it_offers_plain_completion(browser: Browser) -> None:
    asked: list[Request] = []

    def answer(request: Request, child: int) -> Sequence[int]:
        asked.append(request)
        return list(b" and so on")

    with faked(browser, fake_core(answer), ByteTokenizer(template=False), expect="status of 400") as page:
        ask(page, "Once")
        assert "no chat template" in page.text(".answer .fault")
        page.click(".plain")
        page.until("document.querySelector('.body').textContent === ' and so on'")
        page.until(IDLE)
        assert not page.shown(".answer .fault")
        assert bytes(token for token in asked[-1].prompt_ids if token < 256) == b"Once"
        page.click("[name=mode][value=text]")
        assert ask(page, "Twice") == " and so on"
        assert bytes(token for token in asked[-1].prompt_ids if token < 256) == b"Twice"


def test_a_key_is_asked_for_and_stays_in_the_tab(browser: Browser, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sesame")
    with (
        serving_core(fake_core(spell("fine")), api_key=Secret(file=str(keys))) as served,
        visiting(
            browser, served.url, expect="status of 401", ready="!document.getElementById('key-form').hidden"
        ) as page,
    ):
        assert page.text("#state") == "key needed"
        assert page.value("document.activeElement.id") == "key"
        page.type("#key", "wrong")
        page.press("Enter")
        page.until("document.getElementById('key-error').textContent.includes('wrong')")
        page.type("#key", "sesame")
        page.press("Enter")
        page.until(READY)
        assert not page.shown("#key-form")
        assert ask(page, "a") == "fine"
        assert page.value("[localStorage.length, document.cookie, Object.values(sessionStorage)]") == [
            0,
            "",
            ["sesame"],
        ]
        assert not any("sesame" in address for address in page.requests)
        page.send("Page.reload")
        page.until(READY)
        page.click("#forget")
        page.until("document.getElementById('state').textContent === 'key needed'")
        assert page.value("sessionStorage.length") == 0


def test_it_lives_on_when_the_server_comes_back_with_another_model(browser: Browser) -> None:
    expect = "ERR_CONNECTION|ERR_EMPTY_RESPONSE|status of 503"
    with serving_core(fake_core(spell("fine"))) as served:
        url, port = served.url, int(served.url.rsplit(":", 1)[1])
        page = browser.page().open(url + "/")
        page.until(READY)
        assert ask(page, "a") == "fine"
    page.until("document.getElementById('state').textContent === 'not reachable'")
    assert ask(page, "b") == ""
    assert "cannot be reached" in page.text(".answer .fault")
    with serving_core(fake_core(spell("new")), names=("other",), port=port):
        page.until("document.getElementById('model').value === 'other'")
        page.until(READY)
        assert ask(page, "c") == "new"
        assert not [text for text in page.problems if not re.search(expect, text)]
        page.close()
