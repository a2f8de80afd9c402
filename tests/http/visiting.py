"""What tests of the playground do on its page: look, type, and check that nothing strange happened meanwhile."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from browser import Browser, Page
from fake_core import ByteTokenizer, FakeCore
from served import serving_core

SNAPSHOT = "/v1/tokloom/snapshot"
IDLE = "document.querySelector('.turn') !== null && document.querySelector('.busy') === null"
READY = "document.getElementById('state').textContent === 'ready' && document.getElementById('model').length > 0"
#: text colours against the ground they stand on, of all that is seen: [ratio, text] below what WCAG AA asks for
FAINT = """
(() => {
  const paint = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (text) => {
    paint.clearRect(0, 0, 1, 1); paint.fillStyle = text; paint.fillRect(0, 0, 1, 1);
    return [...paint.getImageData(0, 0, 1, 1).data];
  };
  const light = (color) => {
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = color.slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = rgba(getComputedStyle(at).backgroundColor);
      if (color[3] === 255) return color;
    }
    return [255, 255, 255, 255];
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((part) => part.nodeType === 3 && part.data.trim());
    if (!own || !node.checkVisibility() || node.closest(".unseen, .skip, select")) continue;
    const [a, b] = [light(rgba(getComputedStyle(node).color)), light(ground(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) found.push([ratio, node.textContent.slice(0, 40)]);
  }
  return found;
})()
"""


@contextmanager
def visiting(browser: Browser, url: str, *, expect: str = "", ready: str = READY, **screen: Any) -> Iterator[Page]:
    """A page that must end with a clean console, but for what the test expects, and without a request elsewhere."""
    page = browser.page(**screen).open(url + "/")
    try:
        page.until(ready)
        yield page
        strange = [text for text in page.problems if not (expect and re.search(expect, text))]
        assert not strange
        assert page.requests
        assert all(address.startswith((url, "data:")) for address in page.requests)
    finally:
        page.close()


@contextmanager
def faked(browser: Browser, core: FakeCore, tokenizer: ByteTokenizer | None = None, **screen: Any) -> Iterator[Page]:
    with serving_core(core, tokenizer) as served, visiting(browser, served.url, **screen) as page:
        yield page


def choose(page: Page, **values: object) -> None:
    """Sampling controls, as if they were typed into."""
    for name, value in values.items():
        page.value("document.getElementById('settings').open = true")
        page.type(f"[name={name}]", str(value))


def say(page: Page, text: str) -> None:
    page.type("#prompt", text)
    page.press("Enter")


def ask(page: Page, text: str) -> str:
    """What the page shows as the answer once it is whole."""
    say(page, text)
    page.until(IDLE)
    return page.text(".body")


def numbers(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", text.replace("\u202f", ""))]


def wide(page: Page) -> Any:
    """What sticks out: [element, right edge] beyond the window, unless something around it scrolls."""
    return page.value(
        """[document.documentElement, document.body, document.getElementById('log'), document.querySelector('aside')]
           .filter((n) => n.scrollWidth > n.clientWidth).map((n) => [n.tagName, n.scrollWidth, n.clientWidth])"""
    )
