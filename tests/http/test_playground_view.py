"""The page in a real browser: its live view against the snapshot, and what it looks like on screens of any kind."""

import json

import pytest
from browser import Browser, Page, find_chromium
from fake_core import spell
from served import Served, eventually, fake_core, serving_core
from visiting import FAINT, SNAPSHOT, ask, choose, faked, numbers, visiting, wide

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_chromium() is None, reason="Chromium is not installed")]


# -- the live view -----------------------------------------------------------------------------------------------------


def test_the_live_view_shows_the_snapshot(browser: Browser, real: Served) -> None:
    with visiting(browser, real.url) as page:
        choose(page, temperature=0, max_tokens=60)
        for text in ("A long question, to fill more than one page.", "b"):
            ask(page, text)
        found = real.http.get(SNAPSHOT).json()
        page.until(f"document.getElementById('steps').textContent.replace('\\u202f', '') === '{found['steps']}'")
        (group,) = found["groups"]
        assert group["cached"] > 0
        assert numbers(page.text(".group .count")) == [group["held"] + group["cached"], group["total"]]
        assert numbers(page.text(".held-count") + page.text(".cached-count")) == [group["held"], group["cached"]]
        assert numbers(page.value("document.querySelector('.meter').getAttribute('aria-label')")) == [
            group["held"],
            group["cached"],
            group["total"],
        ]
        assert page.text(".format") == group["format"]
        part = "document.querySelector('.meter .cached').offsetWidth / document.querySelector('.meter').offsetWidth"
        page.until(f"Math.abs({part} - {group['cached'] / group['total']}) < 0.03")  # it moves there
        started = found["hit_tokens"] + found["prefill_tokens"]
        assert numbers(page.text("#hits")) == [round(100 * found["hit_tokens"] / started), found["hit_tokens"]]
        assert page.text("#drafts") == "no speculator"
        assert (numbers(page.text("#running")), page.text("#waiting")) == ([0, 4], "0")
        shown = page.value(
            "[...document.querySelectorAll('#plugin-list li')]"
            ".map((n) => [...n.children].slice(0, 2).map((c) => c.textContent))"
        )
        assert shown == [[plugin["section"], plugin["plugin"]] for plugin in found["plugins"]]
        assert found["model"] in page.text("#engine")
        page.until("/^M.*L/.test(document.querySelector('#decode-line .line').getAttribute('d'))")


def test_rates_are_differences_over_the_engines_clock(browser: Browser, real: Served) -> None:
    base = real.http.get(SNAPSHOT).json()
    steps = [(0.0, 0, 0), (2.0, 100, 30), (4.0, 150, 30), (1.0, 0, 0), (2.0, 8, 5)]  # the fourth is another process
    answers = [
        {**base, "uptime": up, "generated_tokens": drawn, "prefill_tokens": prefill} for up, drawn, prefill in steps
    ]
    with visiting(browser, real.url) as page:
        page.value(
            f"void (window.rates = [], window.left = {json.dumps(answers)}, window.fetch = () =>"
            " Promise.resolve(new Response(JSON.stringify(left.length > 1 ? left.shift() : left[0]))))"
        )
        page.value(
            "void new MutationObserver(() => rates.push([document.getElementById('decode').textContent,"
            " document.getElementById('prefill').textContent])).observe(document.getElementById('decode'),"
            " {childList: true, characterData: true, subtree: true})"
        )
        page.until("window.left.length === 1")
        page.until("document.getElementById('decode').textContent === '8.0'")
        seen = [first for first, _ in page.value("rates")]
        assert [text for text in seen if text not in ("0", "")][-3:] == ["50.0", "25.0", "8.0"]
        assert page.text("#prefill") == "5.0"
        assert page.text("#decode-peak") == "8.0"


def test_a_hidden_page_asks_for_nothing(browser: Browser, real: Served) -> None:
    def asked(page: Page) -> int:
        page.value("1")
        return sum(address.endswith(SNAPSHOT) for address in page.requests)

    hide = "void (Object.defineProperty(document, 'hidden', {get: () => %s, configurable: true}),"
    hide += " document.dispatchEvent(new Event('visibilitychange')))"
    with visiting(browser, real.url) as page:
        page.until("new Promise((done) => setTimeout(() => done(true), 2200))")
        before = asked(page)
        assert before >= 2
        page.value(hide % "true")
        page.until("new Promise((done) => setTimeout(() => done(true), 2500))")
        assert asked(page) <= before + 1  # one may have been on its way
        page.value(hide % "false")
        eventually(lambda: asked(page) > before + 1)


# -- what it looks like ------------------------------------------------------------------------------------------------

LONG = "w" * 300 + " word " * 60 + "\n```\n" + "code " * 80 + "\n```\n"


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone_nothing_sticks_out(browser: Browser, dark: bool) -> None:
    core = fake_core(spell(LONG))
    with faked(browser, core, width=360, height=740, touch=True, dark=dark) as page:
        assert page.value("innerWidth") == 360
        assert not wide(page)
        for name in ("live", "plugins", "settings"):
            assert page.value(f"document.getElementById('{name}').open") is False
        assert page.shown("#digest")
        ask(page, LONG)
        assert page.text(".body").startswith("w" * 300)
        assert not wide(page)
        for name in ("live", "plugins", "settings"):
            page.click(f"#{name} summary")
            page.until(f"document.getElementById('{name}').open")
            assert not wide(page)
            box = page.value("(r => [r.top, r.bottom])(document.getElementById('prompt').getBoundingClientRect())")
            assert 0 < box[0] < box[1] <= 740
            page.click(f"#{name} summary")


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_its_ground(browser: Browser, real: Served, dark: bool, width: int) -> None:
    with visiting(browser, real.url, width=width, dark=dark, expect="status of 400") as page:
        page.value("void document.querySelectorAll('aside details').forEach((n) => { n.open = true })")
        assert page.value(FAINT) == []
        choose(page, temperature=0, max_tokens=9)
        ask(page, "a")
        ask(page, "x" * 400)  # an error
        assert page.value(FAINT) == []
        dim = page.value("getComputedStyle(document.body).backgroundColor")
        assert (sum(numbers(dim)) < 150) == dark


def test_what_has_the_focus_can_be_seen(browser: Browser, real: Served) -> None:
    with visiting(browser, real.url) as page:
        page.value("document.querySelector('.skip').focus()")
        seen: set[str] = set()
        for _ in range(40):
            page.press("Tab")
            here = page.value(
                "((n) => [n.id || n.name || n.className || n.tagName, getComputedStyle(n).outlineStyle])"
                "(document.activeElement)"
            )
            if here[0] == "BODY":
                break
            seen.add(here[0])
            assert here[1] != "none", here
        assert {"model", "new", "prompt", "log", "system", "temperature", "seed"} <= seen


def test_a_wide_page_shows_everything_at_once(browser: Browser, real: Served) -> None:
    with visiting(browser, real.url) as page:
        assert all(page.value(f"document.getElementById('{name}').open") for name in ("live", "plugins", "settings"))
        assert not wide(page)
        assert page.value("document.activeElement.id") == "prompt"
        page.send("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=1, mobile=False)
        page.until("!document.getElementById('live').open")
        assert not wide(page)


def test_under_a_prefix_it_works_as_well(browser: Browser) -> None:
    core = fake_core(spell("fine"))
    with serving_core(core, root_path="/llm") as served, visiting(browser, served.url) as page:
        assert ask(page, "a") == "fine"
