"""What the log says, and that it says nothing unless it is asked."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from engine_world import World, compose, request
from tiny_chat import SETS, tiny_chat_model

from tokloom.sdk import RequestError
from tokloom.serve.cli.logs import _Console, _Json

COMMAND = [sys.executable, "-c", "from tokloom.serve.cli import main; main()"]


def test_events_carry_the_request_id(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tokloom.engine")
    world = World(compose(page=4, pages=14, sequences=4, batch=16))
    with pytest.raises(RequestError):
        world.core.add(request("bad", [10**6]))
    world.run(*(request(f"r{i}", [1 + i, 2, 3, 4, 5, 6], max_tokens=24, ignore_eos=True) for i in range(4)))
    said = {(record.getMessage(), vars(record).get("request_id")) for record in caplog.records}
    assert {("added", f"r{i}") for i in range(4)} <= said
    assert {("finished", f"r{i}") for i in range(4)} <= said
    assert ("rejected", "bad") in said
    assert any(event == "preempted" for event, _ in said)
    (last,) = [r for r in caplog.records if r.getMessage() == "finished" and vars(r)["request_id"] == "r0"]
    assert (vars(last)["reason"], vars(last)["output_tokens"]) == ("length", 24)


def test_lines_stay_lines_whatever_is_in_them() -> None:
    record = logging.makeLogRecord(
        {"name": "tokloom.x", "levelno": 20, "levelname": "INFO", "msg": "event", "request_id": 'a\nb" c=', "n": 3}
    )
    line = _Console().format(record)
    assert "\n" not in line
    assert line.endswith(r'INFO tokloom.x event request_id="a\nb\" c=" n=3')
    entry = json.loads(_Json().format(record))
    assert (entry["event"], entry["request_id"], entry["n"]) == ("event", 'a\nb" c=', 3)
    assert "\n" not in _Json().format(record)
    try:
        raise ValueError("boom")
    except ValueError:
        record.exc_info = sys.exc_info()
    assert "ValueError: boom" in json.loads(_Json().format(record))["traceback"]
    assert "ValueError: boom" in _Console().format(record)


def test_the_command_logs_what_it_is_told_to(tmp_path: Path) -> None:
    model = tiny_chat_model(tmp_path / "chat")
    flags = [part for text in SETS for part in ("--set", text)]
    generate = ["generate", "--model", str(model), "--max-tokens", "3", *flags, "hi"]

    def errors(*options: str) -> str:
        done = subprocess.run([*COMMAND, *options, *generate], capture_output=True, text=True, check=True)
        return done.stderr

    assert "finished" not in errors()
    entries = [json.loads(line) for line in errors("--log-level", "debug", "--log-format", "json").splitlines()]
    events = {entry["event"]: entry for entry in entries if entry["logger"] == "tokloom.engine"}
    assert events["added"]["request_id"] == events["finished"]["request_id"]
    assert " INFO tokloom.engine finished request_id=" in errors("--verbose")
