"""A headless Chromium over the DevTools protocol, spoken through a pair of pipes: no driver, no port, no library.

https://chromedevtools.github.io/devtools-protocol/; messages are JSON, each ended by a zero byte.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

#: names of the program in distributions
NAMES = ("chromium", "chromium-browser", "google-chrome")
_PATIENCE = 60.0
_KEYS = {"Enter": 13, "Escape": 27, "Tab": 9}


def find_chromium() -> str | None:
    """The program, if it is installed."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One browser process. `session` makes pages that share nothing with each other."""

    def __init__(self, program: str, profile: Path) -> None:
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        flags = [
            "--headless=new",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "--no-sandbox",  # it only visits a server of this process
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-first-run",
            "--no-proxy-server",
        ]
        # the browser takes commands from descriptor 3 and answers on 4
        redirect = 'exec "${@:3}" 3<&"$1" 4>&"$2"'
        with open(profile / "log", "wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", redirect, "bash", str(commands), str(answers), program, *flags],
                pass_fds=(commands, answers),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        os.close(commands)
        os.close(answers)
        self._buffer = b""
        self._last = 0
        self._pages: dict[str, Page] = {}

    def send(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """A command's result."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params} | ({"sessionId": session} if session else {})
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        wanted = self._last
        while True:
            found = self._receive()
            if found.get("id") == wanted:
                assert "error" not in found, (method, found["error"])
                result: dict[str, Any] = found["result"]
                return result
            page = self._pages.get(found.get("sessionId", ""))
            if page is not None:
                page.notice(found)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], _PATIENCE)
            assert ready, "the browser does not answer"
            data = os.read(self._read, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def page(self, width: int = 1280, height: int = 800, *, dark: bool = False, touch: bool = False) -> "Page":
        """A fresh page with storage of its own."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session, context)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        page.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.send("Emulation.setEmulatedMedia", features=[scheme])
        return page

    def close(self) -> None:
        self.send("Browser.close")
        self._process.wait(_PATIENCE)
        os.close(self._read)
        os.close(self._write)


class Page:
    """One tab.

    Attributes:
        problems: what its console says in red: exceptions, refused resources, breaches of the policy.
        requests: addresses it asked for.
    """

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self._browser = browser
        self._session = session
        self._context = context
        self.problems: list[str] = []
        self.requests: list[str] = []

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.send(method, self._session, **params)

    def notice(self, event: dict[str, Any]) -> None:
        """Something happened."""
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.problems.append(json.dumps(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])

    def open(self, url: str) -> "Page":
        self.send("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")
        return self

    def value(self, expression: str) -> Any:
        """A JavaScript expression's value, as JSON carries it; promises are awaited."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, (expression, found["exceptionDetails"])
        return found["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + _PATIENCE
        while self.value(expression) is not True:
            assert time.monotonic() < end, (
                f"never: {expression}\n{self.problems}\n{self.value('document.body.innerText')}"
            )
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        """The text of the last element of that kind, as it stands in the tree."""
        return str(self.value(f"[...document.querySelectorAll({json.dumps(selector)})].at(-1)?.textContent ?? ''"))

    def shown(self, selector: str) -> bool:
        """Whether the last element of that kind can be seen."""
        found = f"[...document.querySelectorAll({json.dumps(selector)})].at(-1)"
        return bool(self.value(f"{found}?.checkVisibility() ?? false"))

    def click(self, selector: str) -> None:
        """A press of the mouse where the last element of that kind is."""
        found = f"[...document.querySelectorAll({json.dumps(selector)})].at(-1)"
        self.value(f"{found}.scrollIntoView({{block: 'nearest'}})")
        x, y = self.value(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({found}.getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, selector: str, text: str) -> None:
        """Text into a field, in place of what it holds."""
        self.value(f"(field => {{ field.focus(); field.select?.() }})(document.querySelector({json.dumps(selector)}))")
        self.send("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        """A key, with what it types."""
        common = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key], "modifiers": 8 if shift else 0}
        typed = {"text": "\r"} if key == "Enter" else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", **common, **typed)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        self._browser.send("Target.disposeBrowserContext", browserContextId=self._context)
