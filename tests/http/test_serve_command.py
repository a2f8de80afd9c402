"""`tokloom serve` as a process: options, the ready line, signals and exit codes."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
from click.testing import CliRunner
from served import CHAT, HI, eventually
from tiny_chat import SETS

from tokloom.api.profiles import Profile, profile_schema, read_profile
from tokloom.core.profile.types import AutoByteSize, ByteSize, Secret
from tokloom.sdk import ProfileError, TokloomError
from tokloom.sdk.errors import exit_code
from tokloom.serve.cli.main import cli
from tokloom.serve.http.config import ServeSection, is_switch, option_names

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from tokloom.serve.cli import main; main()"]
FLAGS = [part for text in SETS for part in ("--set", text)]


def serve(*arguments: str) -> list[str]:
    return [*COMMAND, "serve", *FLAGS, "--port", "0", *arguments]


class Running:
    """A server process that is ready.

    Attributes:
        said: what it wrote to standard error until it was ready.
    """

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.said = ""
        assert process.stderr is not None
        while "serving" not in self.said:
            line = process.stderr.readline()
            assert line, self.said
            self.said += line
        found = re.search(r"serving (.+) at (\S+)", self.said)
        assert found is not None
        self.name, self.url = found[1], found[2]
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)

    def end(self) -> tuple[int, str]:
        """Exit code and the rest of standard error."""
        _, errors = self.process.communicate(timeout=120)
        return self.process.returncode, errors


@contextmanager
def running(*arguments: str, **environment: str) -> Iterator[Running]:
    process = subprocess.Popen(
        serve(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        yield Running(process)
    finally:
        process.kill()
        process.communicate()


def failing(*arguments: str) -> str:
    """What the command says when it does not start, in this process."""
    done = CliRunner().invoke(cli, ["serve", *FLAGS, "--port", "0", *arguments], standalone_mode=False)
    assert isinstance(done.exception, TokloomError), done
    assert exit_code(done.exception) == 2
    assert done.stdout == ""
    return str(done.exception)


def test_a_server_says_where_it_is_answers_and_ends_at_a_signal(model: Path) -> None:
    with running("--model", str(model), "--api-key-env", "KEYS", KEYS="one two") as server:
        assert server.said.index("listening at") < server.said.index("serving")
        assert server.name == model.name
        assert server.http.get("/v1/models").status_code == 401
        server.http.headers["authorization"] = "Bearer two"
        assert server.http.get("/v1/models").json()["data"][0]["id"] == model.name
        assert server.http.get("/ready").status_code == 200
        with server.http.stream(
            "POST", CHAT, json={**HI, "stream": True, "max_tokens": 40, "ignore_eos": True}
        ) as live:
            lines = live.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        code, errors = server.end()
        assert code == 0, errors
        assert "shutting down" in errors
        assert "Traceback" not in errors
        assert "one" not in server.said.split()


@pytest.mark.parametrize(("arguments", "status"), [((), 200), (("--no-playground",), 404), (("--playground",), 200)])
def test_the_playground_is_switched_by_an_option(
    model: Path, tmp_path: Path, arguments: tuple[str, ...], status: int
) -> None:
    profile = tmp_path / "my.toml"
    switch = "true" if "--no-playground" in arguments else "false"
    if arguments:  # options win
        profile.write_text(f'schema = 1\nextends = "builtin:cpu"\n[serve]\nplayground = {switch}\n')
        arguments += ("--profile", str(profile))
    with running("--model", str(model), *arguments) as server:
        assert server.http.get("/").status_code == status


def test_grpc_is_served_beside_http(model: Path) -> None:
    grpc = pytest.importorskip("grpc")
    health_pb2, stubs = (
        pytest.importorskip("grpc_health.v1.health_pb2"),
        pytest.importorskip("grpc_health.v1.health_pb2_grpc"),
    )
    with running("--model", str(model), "--grpc-port", "0") as server:
        port = re.search(r"gRPC at \S+:(\d+)", server.said)
        assert port is not None, server.said
        with grpc.insecure_channel(f"127.0.0.1:{port[1]}") as channel:
            answer = stubs.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        server.process.send_signal(signal.SIGTERM)
        code, errors = server.end()
        assert code == 0, errors
        assert "Traceback" not in errors


def test_a_second_signal_ends_it_at_once(model: Path) -> None:
    arguments = ["--model", str(model), "--drain-seconds", "600", "--set", "engine.max_model_tokens=auto"]
    with running(*arguments) as server:
        body = {**HI, "stream": True, "max_tokens": 200, "ignore_eos": True, "n": 64}
        with server.http.stream("POST", CHAT, json=body) as live:
            lines = live.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            eventually(lambda: server.http.get("/ready").status_code == 503)
            server.process.send_signal(signal.SIGTERM)
            assert server.end()[0] == 128 + signal.SIGTERM


def test_options_beat_the_profile(model: Path, tmp_path: Path) -> None:
    profile = tmp_path / "my.toml"
    text = 'schema = 1\nextends = "builtin:cpu"\n[serve]\nserved_model_name = ["a"]\nroot_path = "/x"\nport = 1\n'
    profile.write_text(text)
    names = ["--served-model-name", "b", "--served-model-name", "c"]
    with running("--profile", str(profile), "--model", str(model), *names) as server:
        assert server.url.endswith("/x")
        assert [item["id"] for item in server.http.get("/v1/models").json()["data"]] == ["b", "c"]


def test_a_lock_that_differs_keeps_it_from_starting(model: Path, tmp_path: Path) -> None:
    made = [*COMMAND, "compose", "builtin:serve", "--model", str(model), *FLAGS, "--lock"]
    lock = tmp_path / "lock.toml"
    lock.write_text(subprocess.run(made, capture_output=True, text=True, check=True).stdout)
    with running("--model", str(model), "--locked", str(lock)):
        pass
    errors = failing("--model", str(model), "--locked", str(lock), "--set", "engine.max_sequences=3")
    assert "engine.max_sequences was 4 and is 3" in errors


WRONG = {
    "port": (["--port", "70000"], "must be between 0 and 65535"),
    "no port": (["--port", "x"], "expected an integer"),
    "no key": (["--api-key-env", "TOKLOOM_NOT_SET"], "TOKLOOM_NOT_SET is not set"),
    "host": (["--host", "256.1.1.1"], "cannot listen"),
    "size": (["--max-body-bytes", "lots"], "expected a size"),
    "half of TLS": (["--tls-cert", "x.pem"], "belong together"),
    "no certificate": (["--tls-cert", "x.pem", "--tls-key", "y.pem"], "cannot be used"),
    "prefix": (["--root-path", "x/"], "must begin with /"),
    "no model": (["--model", "/nowhere"], "/nowhere"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_options_give_one_paragraph_and_code_two(model: Path, case: str) -> None:
    arguments, words = WRONG[case]
    assert words in failing("--model", str(model), *arguments)


# -- the section -------------------------------------------------------------------------------------------------------


def read(text: str, tmp_path: Path) -> Profile:
    path = tmp_path / "my.toml"
    path.write_text('schema = 1\nextends = "builtin:cpu"\n' + text)
    return read_profile(path, claims={"serve": ServeSection})


def test_the_section_is_read_strictly(tmp_path: Path) -> None:
    text = '[serve]\nport = 9\nmax_body_bytes = "1MiB"\napi_key = { env = "KEY" }\ncors_origins = ["*"]\n'
    section: ServeSection = read(text, tmp_path).claims["serve"]
    assert section == ServeSection(
        port=9, max_body_bytes=ByteSize(1 << 20), api_key=Secret(env="KEY"), cors_origins=("*",)
    )
    assert read("", tmp_path).claims["serve"] == ServeSection()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("prot = 9", "did you mean `port`"),
        ("port = '9'", "expected an integer"),
        ("drain_seconds = -1", "must be between"),
        ("served_model_name = ['a', 'a']", "must differ"),
        ("tls_cert = 'x'", "belong together"),
    ],
)
def test_what_is_wrong_in_the_section_points_at_its_line(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(ProfileError) as caught:
        read(f"[serve]\nhost = '::'\n{line}\n", tmp_path)
    assert words in str(caught.value)
    assert "my.toml:" in str(caught.value)


def test_a_key_in_the_profile_itself_is_refused_and_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ProfileError) as caught:
        read('[serve]\napi_key = "sk-secret"\n', tmp_path)
    assert "never written in a profile" in str(caught.value)
    assert "sk-secret" not in str(caught.value)


def test_every_key_is_an_option_and_in_the_docs_and_the_schema() -> None:
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    schema: dict[str, Any] = profile_schema(None, {"serve": ServeSection})["properties"]["serve"]
    for item in attrs.fields(ServeSection):
        option = option_names().get(item.name, "--api-key-env`, `--api-key-file")
        cell = f" {_default(item)} " if _default(item) else " "
        if is_switch(item):
            option = f"{option}`, `--no-{option.removeprefix('--')}"
        row = f"| `{item.name}` | `{option}` |{cell}| {item.metadata['help']} |"
        assert row in page, row
        assert schema["properties"][item.name]["description"] == item.metadata["help"]


def _default(item: "attrs.Attribute[Any]") -> str:
    value: Any = item.default
    if item.type in (ByteSize, AutoByteSize):
        return f"{value >> 20}MiB"
    if is_switch(item):
        return str(value).lower()
    return "" if value in ("", (), None) else f"{value:g}" if item.type is float else str(value)
