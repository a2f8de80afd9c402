"""The page at / as bytes: what is served, to whom, with which headers; and the snapshot behind it."""

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_core import spell
from served import CHAT, HI, Served, eventually, fake_core, raw_post, serving, serving_core
from tiny_chat import SETS

from tokloom.api import AsyncEngine
from tokloom.api.profiles import Secret

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "serve" / "http" / "playground"
SNAPSHOT = "/v1/tokloom/snapshot"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "'self' data:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}


def paths() -> dict[str, Path]:
    """Path on the server -> file."""
    return {"/" if p.name == "index.html" else f"/playground/{p.name}": p for p in ASSETS.iterdir()}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving_core(fake_core(spell("fine"))) as server:
        yield server


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(paths()))
def test_every_file_is_served_as_it_lies_there_under_a_strict_policy(served: Served, path: str) -> None:
    file = paths()[path]
    found = served.http.get(path)
    assert (found.status_code, found.content) == (200, file.read_bytes())
    assert found.headers["content-type"].split(";")[0] == KINDS[file.suffix]
    directives = dict(part.strip().split(" ", 1) for part in found.headers["content-security-policy"].split(";"))
    assert directives == POLICY
    assert found.headers["x-content-type-options"] == "nosniff"
    assert found.headers["referrer-policy"] == "no-referrer"
    head = served.http.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(file.read_bytes()))


def test_a_browser_keeps_a_file_and_asks_whether_it_is_still_the_same(served: Served) -> None:
    tags = set()
    for path in paths():
        found = served.http.get(path)
        assert found.headers["cache-control"] == "no-cache"
        tag = found.headers["etag"]
        tags.add(tag)
        for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            again = served.http.get(path, headers={"if-none-match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
            assert "content-security-policy" in again.headers
        assert served.http.get(path, headers={"if-none-match": '"other"'}).status_code == 200
    assert len(tags) == len(paths())


def test_nothing_in_the_files_comes_from_elsewhere_or_is_code_in_markup() -> None:
    for file in ASSETS.iterdir():
        text = file.read_text(encoding="utf-8").replace('xmlns="http://www.w3.org/2000/svg"', "")
        if file.suffix == ".js":  # where a standard is described
            text = re.sub(r"^// .*$", "", text, flags=re.MULTILINE)
        assert not re.search(r"https?:|(?<![:\w/])//\w", text), file.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
        assert not re.search(r"@import|url\(", text), file.name
    page = (ASSETS / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"\sstyle=|\son\w+=|<style|javascript:", page)
    assert all(" src=" in tag for tag in re.findall(r"<script[^>]*>", page))


def test_links_are_relative_and_lead_to_files() -> None:
    page = (ASSETS / "index.html").read_text(encoding="utf-8")
    links = [link for link in re.findall(r'(?:src|href)="([^"]+)"', page) if not link.startswith("#")]
    for file in ASSETS.glob("*.js"):
        links += ["playground/" + name for name in re.findall(r'from "\./([^"]+)"', file.read_text(encoding="utf-8"))]
    assert {f"/{link}" for link in links} | {"/"} == set(paths())


def test_every_control_of_the_page_has_a_name() -> None:
    page = (ASSETS / "index.html").read_text(encoding="utf-8")
    labelled = set(re.findall(r'<label[^>]* for="([^"]+)"', page))
    wrapped = "".join(re.findall(r"<label[^>]*>.*?</label>", page, re.DOTALL))
    for tag in re.findall(r"<(?:input|select|textarea)[^>]*>", page):
        name = re.search(r' id="([^"]+)"', tag)
        assert tag in wrapped or (name and name[1] in labelled), tag
    for text in re.findall(r"<button[^>]*>(.*?)</button>", page):
        assert text.strip()


# -- who gets it -------------------------------------------------------------------------------------------------------


def test_no_path_leads_out_of_the_folder(served: Served) -> None:
    for path in (
        "/playground/",
        "/playground/index.html",
        "/playground/../page.py",
        "/playground/..%2fpage.py",
        "/playground/%2e%2e/page.py",
        "/playground//etc/passwd",
        "/playground/app.js/",
        "/playground/app.js%00.css",
        "/playground/..\\page.py",
    ):
        with served.connect() as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        assert answer.split()[1] in (b"404", b"400"), path
        assert b"importlib" not in answer
    assert served.post("/", {}).status_code == 405
    assert served.post("/playground/app.js", {}).status_code == 405


def test_where_it_is_switched_off_there_is_nothing() -> None:
    with serving_core(fake_core(spell("fine")), playground=False) as served:
        for path in paths():
            assert served.http.get(path).json()["error"]["code"] == "not_found"
        assert served.http.get("/v1/models").status_code == 200


def test_the_page_needs_no_key_and_all_it_shows_does(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sesame")
    with serving_core(fake_core(spell("fine")), api_key=Secret(file=str(keys))) as served:
        for path in paths():
            assert served.http.get(path).status_code == 200
        for path in (SNAPSHOT, "/v1/models", "/playground/none", "/metrics"):
            assert served.http.get(path).status_code == 401, path
        assert served.post(CHAT, HI).status_code == 401
        assert served.http.get("/v1/models", headers={"authorization": "Bearer sesame"}).status_code == 200
    with serving_core(fake_core(spell("fine")), api_key=Secret(file=str(keys)), playground=False) as served:
        assert served.http.get("/").status_code == 401


def test_under_a_prefix_the_page_is_where_relative_links_work() -> None:
    with serving_core(fake_core(spell("fine")), root_path="/llm") as served:
        base = served.url.removesuffix("/llm")
        for given in ("/llm/", "/"):  # the proxy may take the prefix off
            assert served.http.get(base + given).content == (ASSETS / "index.html").read_bytes()
        assert served.http.get(base + "/llm/playground/app.js").status_code == 200
        found = served.http.get(base + "/llm", follow_redirects=False)
        assert (found.status_code, found.headers["location"]) == (307, "/llm/")
        assert served.http.get(base + "/llmx").status_code == 404


# -- the snapshot ------------------------------------------------------------------------------------------------------


def test_the_snapshot_is_of_its_schema_and_counts_what_was_asked(real: Served) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    schemas = real.http.get("/openapi.json").json()["components"]["schemas"]
    before = real.http.get(SNAPSHOT).json()
    usage = real.post(CHAT, {**HI, "max_tokens": 9, "ignore_eos": True, "temperature": 0}).json()["usage"]
    response = real.http.get(SNAPSHOT)
    after: dict[str, Any] = response.json()
    schema = {"$ref": "#/components/schemas/SnapshotObject", "components": {"schemas": schemas}}
    jsonschema.Draft202012Validator(schema).validate(after)
    assert set(schemas["SnapshotObject"]["required"]) == set(after)
    assert response.headers["cache-control"] == "no-store"
    assert after["generated_tokens"] - before["generated_tokens"] == usage["completion_tokens"] == 9
    grown = {name: after[name] - before[name] for name in ("prefill_tokens", "hit_tokens")}
    assert sum(grown.values()) == usage["prompt_tokens"]
    assert grown["hit_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert after["uptime"] > before["uptime"]
    assert {"section": "kv.allocator", "kind": "allocator"}.items() <= after["plugins"][4].items()


def test_the_snapshot_waits_for_the_model_and_not_for_a_step(model: Path) -> None:
    loading, stepping = threading.Event(), threading.Event()

    async def load() -> AsyncEngine:
        await asyncio.to_thread(loading.wait, 60)
        engine = await AsyncEngine.from_profile("builtin:cpu", model=model, sets=SETS)
        step = engine.core.step

        def held() -> Any:
            assert stepping.wait(60)
            return step()

        engine.core.step = held  # type: ignore[method-assign]
        return engine

    with serving(load, wait=False) as served:
        try:
            found = served.http.get(SNAPSHOT)
            assert (found.status_code, found.json()["error"]["code"]) == (503, "loading")
            assert found.headers["retry-after"]
            loading.set()
            eventually(lambda: served.http.get("/ready").status_code == 200)
            with served.connect() as connection:
                connection.sendall(raw_post(CHAT, json.dumps({**HI, "stream": True}).encode()))
                eventually(lambda: served.live == 1)
                found = served.http.get(SNAPSHOT)
                assert (found.status_code, found.json()["steps"]) == (200, 0)
                stepping.set()
                assert connection.recv(100).startswith(b"HTTP/1.1 200")
        finally:
            loading.set()
            stepping.set()
