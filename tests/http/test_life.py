"""A server from its socket to its end, and what it demands of connections."""

import asyncio
import json
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_core import ByteTokenizer, spell
from served import CHAT, HI, Served, endless, events, eventually, fake_core, raw_post, serving, serving_core

from tokloom.api import AsyncEngine
from tokloom.sdk import CheckpointError, ProfileError
from tokloom.serve.http.config import ServeSection
from tokloom.serve.http.lifecycle import Server

LONG = {**HI, "max_tokens": 10**8}


def read_all(connection: socket.socket) -> bytes:
    """Until the server closes."""
    answer = b""
    while piece := connection.recv(65536):
        answer += piece
    return answer


def read_until(connection: socket.socket, end: bytes) -> None:
    answer = b""
    while not answer.endswith(end):
        piece = connection.recv(65536)
        assert piece, answer
        answer += piece


def code_of(answer: bytes) -> str:
    code: str = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"]
    return code


# -- loading and ending ------------------------------------------------------------------------------------------------


def test_while_the_model_loads_the_server_lives_but_is_not_ready() -> None:
    go_on = asyncio.Event()

    async def load() -> AsyncEngine:
        await go_on.wait()
        return AsyncEngine(fake_core(spell("hello")), ByteTokenizer())  # type: ignore[arg-type]

    with serving(load, wait=False) as served:
        assert served.http.get("/health").status_code == 200
        ready = served.http.get("/ready")
        assert (ready.status_code, ready.json()) == (503, {"status": "loading"})
        assert ready.headers["retry-after"]
        refused = served.post(CHAT, HI)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "loading")
        assert refused.headers["retry-after"]
        assert [item["id"] for item in served.http.get("/v1/models").json()["data"]] == ["tiny", "alias"]
        assert served.http.get("/metrics").status_code == 404
        served._loop.call_soon_threadsafe(go_on.set)
        eventually(lambda: served.http.get("/ready").status_code == 200)
        assert served.post(CHAT, HI).json()["choices"][0]["message"]["content"] == "hello"


def test_a_model_that_cannot_be_loaded_ends_the_server_with_the_reason() -> None:
    async def load() -> AsyncEngine:
        raise CheckpointError("is truncated", subject="model.gguf")

    with serving(load) as served:
        assert served.over.wait(60)
        assert isinstance(served.failure, CheckpointError)
        with pytest.raises(httpx.TransportError):
            served.http.get("/health")


def test_a_stop_while_loading_ends_the_server() -> None:
    async def load() -> AsyncEngine:
        await asyncio.Event().wait()
        raise AssertionError

    with serving(load, wait=False) as served:
        assert served.http.get("/health").status_code == 200
        served.stop()
        assert served.over.wait(60)
        assert served.failure is None


def test_draining_lets_live_requests_end_and_tells_others_to_go_elsewhere() -> None:
    core = fake_core(spell("abc" * 10))
    with serving_core(core, drain_seconds=600.0) as served:
        with served.connect() as connection:
            core.gate.clear()
            connection.sendall(raw_post(CHAT, json.dumps({**HI, "max_tokens": 100, "stream": True}).encode()))
            eventually(lambda: bool(core.known))
            served.stop()
            eventually(lambda: served.http.get("/ready").status_code == 503)
            assert served.http.get("/ready").json() == {"status": "draining"}
            assert served.http.get("/health").status_code == 200
            refused = served.post(CHAT, HI)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
            assert refused.headers["retry-after"]
            core.gate.set()
            answer = read_all(connection)
        assert answer.count(b'"content":"a"') == 10
        assert b"data: [DONE]" in answer
        assert served.over.wait(60)
        assert served.failure is None
    assert core.closed == 1


@pytest.mark.parametrize("stream", [False, True])
def test_draining_has_an_end_that_clients_are_told(stream: bool) -> None:
    core = fake_core(endless)
    with serving_core(core, drain_seconds=0.05) as served:
        if stream:
            with served.http.stream("POST", CHAT, json={**LONG, "stream": True}) as response:
                pieces = response.iter_text()
                text = next(pieces)
                served.stop()
                found = events(text + "".join(pieces))
            assert found[-1]["error"]["code"] == "shutting_down"
            assert "[DONE]" not in found
        else:
            with served.connect() as connection:
                connection.sendall(raw_post(CHAT, json.dumps(LONG).encode()))
                eventually(lambda: bool(core.held))
                served.stop()
                answer = read_all(connection)
            assert answer.startswith(b"HTTP/1.1 503")
            assert code_of(answer) == "shutting_down"
        assert served.over.wait(60)
        assert served.failure is None


def test_two_servers_and_engines_share_nothing() -> None:
    with serving_core(fake_core(spell("left"))) as left, serving_core(fake_core(spell("right"))) as right:
        for served, text in ((left, "left"), (right, "right"), (left, "left")):
            assert served.post(CHAT, HI).json()["choices"][0]["message"]["content"] == text


def test_an_address_that_is_taken_is_said_before_anything_loads() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ProfileError, match="in use"):
        Server(ServeSection(port=taken.getsockname()[1]), ("m",))


# -- who may call ------------------------------------------------------------------------------------------------------


def test_keys_are_demanded_of_all_but_probes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tokloom.api.profiles import Secret

    file = tmp_path / "keys"
    file.write_text("old-key\nnew-key\n")
    with serving_core(fake_core(spell("in")), api_key=Secret(file=str(file))) as served:
        for path in ("/v1/models", "/metrics", "/openapi.json", "/version", "/nowhere"):
            response = served.http.get(path)
            assert response.status_code == 401
            assert response.headers["www-authenticate"].startswith("Bearer")
            assert response.json()["error"]["code"] == "invalid_api_key"
        for value in (
            "Bearer",
            "Bearer x",
            "Bearer old-key x",
            "Basic old-key",
            "old-key",
            "Bearer OLD-KEY",
            "Bearer ä",
        ):
            headers = [("authorization", value.encode("latin-1"))]
            assert served.http.get("/v1/models", headers=headers).status_code == 401, value  # type: ignore[arg-type]
        twice = [("authorization", "Bearer old-key"), ("authorization", "Bearer x")]
        assert served.http.get("/v1/models", headers=twice).status_code == 401
        assert served.post(CHAT, HI).status_code == 401
        for key in ("old-key", "new-key"):
            assert served.post(CHAT, HI, authorization=f"Bearer {key}").status_code == 200
            assert served.post(CHAT, HI, authorization=f"bearer  {key}").status_code == 200
        assert served.http.get("/health").status_code == 200
        assert served.http.get("/ready").status_code == 200


@pytest.mark.parametrize("content", ["", " \n", "schlüssel"])
def test_keys_that_nobody_could_send_are_refused_at_start(tmp_path: Path, content: str) -> None:
    from tokloom.api.profiles import Secret

    (tmp_path / "keys").write_text(content)
    with pytest.raises(ProfileError, match=r"serve\.api_key") as caught:
        Server(ServeSection(port=0, api_key=Secret(file=str(tmp_path / "keys"))), ("m",))
    assert "schl" not in str(caught.value)


def test_request_ids_are_taken_if_they_are_sane() -> None:
    with serving_core(fake_core(spell("a"))) as served:
        assert served.post(CHAT, HI, x_request_id="mine-42").headers["x-request-id"] == "mine-42"
        assert served.http.get("/nowhere", headers={"x-request-id": "a b"}).headers["x-request-id"] == "a b"
        seen = set()
        for bad in (b"", b"x" * 129, b"\xe4", b"a\tb"):
            response = served.http.get("/health", headers=[(b"x-request-id", bad)])
            assert response.headers["x-request-id"] != bad.decode("latin-1")
            seen.add(response.headers["x-request-id"])
        assert len(seen) == 4


def test_equal_request_ids_at_the_same_time_are_two_requests() -> None:
    core = fake_core(endless)
    with serving_core(core) as served, served.connect() as one, served.connect() as two:
        for connection in (one, two):
            body = json.dumps({**LONG, "stream": True}).encode()
            connection.sendall(raw_post(CHAT, body, "x-request-id: same\r\n"))
        eventually(lambda: len(core.held) == 2)


def test_pages_of_other_origins_may_call_if_they_are_named() -> None:
    origin = {"origin": "https://app.example"}
    asks = {**origin, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    with serving_core(fake_core(spell("a")), cors_origins=("https://app.example",)) as served:
        allowed = served.http.options(CHAT, headers=asks)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://app.example"
        assert served.post(CHAT, {}, **origin).headers["access-control-allow-origin"] == "https://app.example"
        other = served.http.get("/health", headers={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers
    with serving_core(fake_core(spell("a"))) as served:
        assert "access-control-allow-origin" not in served.http.get("/health", headers=origin).headers


@pytest.mark.parametrize("prefix", ["", "/llm"])
def test_a_prefix_is_taken_off_whether_the_proxy_left_it_or_not(prefix: str) -> None:
    with serving_core(fake_core(spell("a")), root_path="/llm") as served:
        assert served.url.endswith("/llm")
        with httpx.Client(base_url=served.url.removesuffix("/llm"), trust_env=False) as http:
            assert http.get(f"{prefix}/v1/models").status_code == 200
            assert http.get(f"{prefix}/openapi.json").json()["servers"] == [{"url": "/llm"}]
            assert http.get("/llmx/health").status_code == 404


def test_https(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(made, check=True, capture_output=True)
    with serving_core(fake_core(spell("safe")), tls_cert=str(cert), tls_key=str(key)) as served:
        assert served.url.startswith("https://")
        context = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(base_url=served.url, verify=context, trust_env=False) as http:
            assert http.post(CHAT, json=HI).json()["choices"][0]["message"]["content"] == "safe"
    with pytest.raises(ProfileError, match="tls_cert"):
        Server(ServeSection(port=0, tls_cert=str(key), tls_key=str(cert)), ("m",))


# -- connections -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nhost: x\r\n"])
def test_headers_that_do_not_come_end_the_connection(data: bytes) -> None:
    with serving_core(fake_core(spell("a")), header_seconds=0.2) as served:
        with served.connect() as connection:
            connection.sendall(data)
            answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 408")
        assert code_of(answer) == "header_timeout"
        assert served.http.get("/health").status_code == 200


def test_headers_that_drip_do_not_reset_the_clock() -> None:
    with serving_core(fake_core(spell("a")), header_seconds=0.3) as served, served.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        connection.settimeout(0.05)
        answer = b""
        for _ in range(600):
            try:
                answer = connection.recv(65536)
                break
            except TimeoutError:
                connection.sendall(b"x: y\r\n")
        assert answer.startswith(b"HTTP/1.1 408")


def test_a_second_request_of_a_connection_has_its_own_clock() -> None:
    with serving_core(fake_core(spell("a")), header_seconds=0.2) as served, served.connect() as connection:
        get = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
        connection.sendall(get)
        read_until(connection, b'{"status":"ok"}')
        time.sleep(0.5)  # idling between requests is not waiting for headers
        connection.sendall(get[:10])
        assert read_all(connection).startswith(b"HTTP/1.1 408")


def test_a_body_that_does_not_come_ends_the_request() -> None:
    with serving_core(fake_core(spell("a")), body_seconds=0.2) as served, served.connect() as connection:
        connection.sendall(raw_post(CHAT, b"x" * 100)[:-50])
        answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 408")
        assert code_of(answer) == "body_timeout"


def test_a_request_that_takes_long_to_answer_is_not_timed_out() -> None:
    core = fake_core(spell("late"))
    core.gate.clear()
    with (
        serving_core(core, header_seconds=0.1, body_seconds=0.1, write_seconds=0.1) as served,
        served.connect() as connection,
    ):
        connection.sendall(raw_post(CHAT, json.dumps(HI).encode(), "connection: close\r\n"))
        eventually(lambda: bool(core.known))
        time.sleep(0.4)  # longer than each of the limits
        core.gate.set()
        assert b"late" in read_all(connection)


@pytest.mark.parametrize("line", [b"x: " + b"y" * 1000 + b"\r\n", b"y" * 1000])
def test_headers_without_end_are_cut_off(line: bytes) -> None:
    with serving_core(fake_core(spell("a"))) as served, served.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        answer = b""
        try:
            for _ in range(2000):
                connection.sendall(line)
            answer = read_all(connection)
        except ConnectionError:  # cut while it was sending
            pass
        assert answer == b"" or answer[9:12] in (b"431", b"400")
        assert served.http.get("/health").status_code == 200


def test_connections_beyond_the_limit_are_told_so() -> None:
    with serving_core(fake_core(spell("a")), max_connections=3) as served:
        held = [served.connect() for _ in range(3)]
        eventually(lambda: len(served.server._uvicorn.server_state.connections) == 3)
        with served.connect() as one_more:
            answer = read_all(one_more)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after" in answer
        assert code_of(answer) == "too_many_connections"
        for connection in held:
            connection.close()
        eventually(lambda: _healthy(served))


def _healthy(served: Served) -> bool:
    response: Any = served.http.get("/health")
    return bool(response.status_code == 200)


def test_pipelined_requests_are_answered_in_order() -> None:
    with serving_core(fake_core(spell("a"))) as served, served.connect() as connection:
        get = b"GET /%s HTTP/1.1\r\nhost: x\r\n%s\r\n"
        connection.sendall(
            get % (b"health", b"") + get % (b"nowhere", b"") + get % (b"ready", b"connection: close\r\n")
        )
        answer = read_all(connection)
    statuses = [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"404", b"200"]
