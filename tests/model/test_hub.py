"""Models by name, from a hub that runs here: a server on a local port, in a child process that knows no other."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tiny_models import tiny_llama

from tokloom.plugins.models.decoder.hub import fetch, is_hub_name
from tokloom.sdk import CheckpointError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SCRIPT = """
import json, sys
from tokloom import Engine, GenerateRequest, SamplingParams
from tokloom.sdk import TokloomError
try:
    with Engine.from_profile("builtin:cpu", model=sys.argv[1], sets=["engine.kv_memory=4MiB"]) as engine:
        spec = engine.core.composition.model.spec
        request = GenerateRequest(token_ids=[5, 6, 7], sampling=SamplingParams(max_tokens=3, ignore_eos=True))
        count = len(engine.generate([request])[0].token_ids)
        print(json.dumps({"name": spec.name, "digest": spec.digest, "count": count}))
except TokloomError as error:
    print(json.dumps({"error": type(error).__name__, "text": str(error)}))
"""


class Hub:
    """The few paths of the hub's interface that fetching a model takes."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[str] = []
        hub = self
        files = {file.name: file.read_bytes() for file in folder.iterdir()}

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                pass

            def answer(self, status: int, body: bytes, head: bool, **headers: str) -> None:
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if not head:
                    self.wfile.write(body)

            def reply(self, head: bool) -> None:
                path = self.path.split("?")[0]
                hub.asked.append(path)
                _, _, name = path.partition(f"/org/tiny/resolve/{COMMIT}/")
                if path.startswith("/api/models/org/tiny/revision/main"):
                    siblings = [{"rfilename": file, "size": len(data)} for file, data in files.items()]
                    info = {"id": "org/tiny", "sha": COMMIT, "siblings": siblings}
                    self.answer(200, json.dumps(info).encode(), head)
                elif path.startswith(f"/api/models/org/tiny/tree/{COMMIT}"):
                    tree = [
                        {"type": "file", "path": file, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                        for file, data in files.items()
                    ]
                    self.answer(200, json.dumps(tree).encode(), head)
                elif name in files:
                    tag = f'"{hashlib.sha1(files[name]).hexdigest()}"'
                    self.answer(200, files[name], head, X_Repo_Commit=COMMIT, ETag=tag)
                else:
                    self.answer(404, b"{}", head, X_Error_Code="RepoNotFound")

            def do_GET(self) -> None:
                self.reply(False)

            def do_HEAD(self) -> None:
                self.reply(True)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    tiny_llama(tmp_path / "repository", num_hidden_layers=1)
    (tmp_path / "repository" / "notes.pdf").write_bytes(b"x" * 100)
    hub = Hub(tmp_path / "repository")
    yield hub
    hub.server.shutdown()
    hub.server.server_close()


def run(tmp_path: Path, model: str, **env: str) -> dict[str, object]:
    where = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", **env}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, model],
        env={**os.environ, **where},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


@pytest.mark.slow
def test_a_name_is_fetched_once_and_its_commit_recorded(hub: Hub, tmp_path: Path) -> None:
    online = run(tmp_path, "org/tiny@main", HF_ENDPOINT=hub.url)
    assert online.get("count") == 3, online
    assert online["name"] == f"org/tiny@{COMMIT}"
    assert any(path.endswith("model.safetensors") for path in hub.asked)
    assert not any(path.endswith("notes.pdf") for path in hub.asked)
    hub.asked.clear()
    offline = run(tmp_path, "org/tiny@main", HF_HUB_OFFLINE="1", HF_ENDPOINT=hub.url)
    assert offline == online
    assert not hub.asked
    missing = run(tmp_path, "org/other@main", HF_HUB_OFFLINE="1", HF_ENDPOINT=hub.url)
    assert missing["error"] == "CheckpointError"
    assert "org/other@main" in str(missing["text"])
    assert "HF_HUB_OFFLINE" in str(missing["text"])
    unknown = run(tmp_path, "org/other@main", HF_ENDPOINT=hub.url)
    assert unknown["error"] == "CheckpointError"
    assert "cannot be had from the hub" in str(unknown["text"])


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match=r"tokloom\[hub\]"):
        fetch("org/tiny@main")


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("org/name@main", True),
        ("org/na.me-3@refs/pr/1", True),
        ("org/name", False),
        ("./org/name@main", False),
        ("name@main", False),
        ("a/b/c@main", False),
        ("org/name@", False),
        ("", False),
    ],
)
def test_what_is_a_name(name: str, is_one: bool) -> None:
    assert is_hub_name(name) == is_one
