"""The examples run as printed; the plugin packages work as wheels in an environment of their own."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_chat import SETS, tiny_chat_model

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(ROOT / "tests" / "packaging"))

from installed import Environment, copy_repository, run  # noqa: E402

KINDS = {"allocator": "exclusive", "scheduler": "shortest", "codec": "half", "attention": "naive"}
SECTIONS = {"allocator": "kv.allocator", "scheduler": "scheduler", "codec": "kv.codec", "attention": "attention"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_chat_model(tmp_path_factory.mktemp("chat"))


def test_the_script_answers(model: Path) -> None:
    environment = {**os.environ, "TOKLOOM__MODEL__DTYPE": "float32", "TOKLOOM__ENGINE__KV_MEMORY": "4MiB"}
    command = [sys.executable, str(EXAMPLES / "script.py"), str(model), "hello"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert "tokens, first after" in done.stdout


def test_the_web_application_streams_and_refuses(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi", reason="fastapi is not installed")
    pytest.importorskip("httpx", reason="httpx is not installed")
    from fastapi.testclient import TestClient

    monkeypatch.setenv("MODEL", str(model))
    for text in SETS:
        key, _, value = text.partition("=")
        monkeypatch.setenv("TOKLOOM__" + key.upper().replace(".", "__"), value)
    spec = importlib.util.spec_from_file_location("fastapi_app", EXAMPLES / "fastapi_app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fastapi_app", module)
    spec.loader.exec_module(module)
    with TestClient(module.app) as client:
        first = client.post("/ask", json={"question": "hello", "max_tokens": 8})
        assert first.status_code == 200
        assert first.text == client.post("/ask", json={"question": "hello", "max_tokens": 8}).text
        assert client.post("/ask", json={"question": "x", "temperature": -1}).status_code == 400
        assert client.get("/pages").json()["held"] == 0


@pytest.mark.slow
def test_example_plugins_work_as_wheels_named_by_a_profile(model: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "env")
    environment.install(copy_repository(tmp_path / "tokloom"))
    for kind in KINDS:
        source = tmp_path / kind
        shutil.copytree(EXAMPLES / "plugins" / kind, source)
        build: list[str | Path] = [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            tmp_path / "wheels",
            source,
        ]
        run(build)
    environment.install(*sorted((tmp_path / "wheels").glob("*.whl")))
    listed = run([environment.bin / "tokloom", "plugins"], cwd=tmp_path)
    assert all(name in listed for name in KINDS.values())
    assert "BROKEN" not in listed
    flags = [part for text in SETS for part in ("--set", text)]
    answers = {}
    for kind in ("", *KINDS):
        chosen = [f'{SECTIONS[kind].split(".")[-1]} = "{KINDS[kind]}"'] if kind else []
        table = "[kv]\n" if kind in ("allocator", "codec") else ""
        profile = tmp_path / "profile.toml"
        profile.write_text('schema = 1\nextends = "builtin:cpu"\n' + table + "\n".join(chosen) + "\n")
        command: list[str | Path] = [
            environment.bin / "tokloom",
            "generate",
            "--profile",
            profile,
            "--model",
            model,
            *flags,
        ]
        out = run([*command, "--max-tokens", "12", "--ignore-eos", "--json", "hello there"], cwd=tmp_path)
        answers[kind] = json.loads(out)
        if kind:
            assert answers[kind]["stats"]["plugins"][kind] == KINDS[kind]
    for kind in ("allocator", "scheduler", "attention"):
        assert answers[kind]["token_ids"] == answers[""]["token_ids"], kind
    assert len(answers["codec"]["token_ids"]) == 12
