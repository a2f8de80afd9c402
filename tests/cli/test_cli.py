"""The command line as a person meets it: real processes over a tiny model."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
from tiny_chat import SETS

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from tokloom.serve.cli import main; main()"]
FLAGS = [part for text in SETS for part in ("--set", text)]


def run(*arguments: str, stdin: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
        check=False,
    )


def fine(*arguments: str, stdin: str = "") -> str:
    done = run(*arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def generate(model: Path, *arguments: str, stdin: str = "") -> str:
    return fine("generate", "--model", str(model), *FLAGS, "--max-tokens", "8", *arguments, stdin=stdin)


def test_json_has_exactly_the_promised_keys(model: Path) -> None:
    answer = json.loads(generate(model, "--json", "--ignore-eos", "hello"))
    assert list(answer) == ["text", "token_ids", "prompt_token_ids", "finish_reason", "usage", "stats"]
    assert len(answer["token_ids"]) == 8
    assert answer["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == len(answer["prompt_token_ids"])
    assert answer["stats"]["plugins"]["allocator"] == "paged"
    assert answer["stats"]["ttft_s"] > 0


def test_streaming_and_not_streaming_print_the_same(model: Path) -> None:
    assert generate(model, "hello") == generate(model, "--no-stream", "hello") == generate(model, "-", stdin="hello")


def test_a_seed_makes_random_answers_repeat(model: Path) -> None:
    first, second = (generate(model, "--temperature", "1", "--seed", "4", "x") for _ in range(2))
    assert first == second


def test_a_report_goes_to_standard_error(model: Path) -> None:
    done = run("generate", "--model", str(model), *FLAGS, "--max-tokens", "4", "--ignore-eos", "--report", "x")
    assert "TTFT" in done.stderr
    assert "attention torch" in done.stderr
    assert "TTFT" not in done.stdout


def test_a_prompt_file_is_answered_in_order(model: Path, tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [{"prompt": f"p{i}", "max_tokens": 1 + i % 5, "ignore_eos": True} for i in range(23)]
    lines.append({"messages": [{"role": "user", "content": "hi"}], "temperature": 1.0, "seed": 3})
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines))
    answers = [json.loads(line) for line in generate(model, "--prompt-file", str(file)).splitlines()]
    assert [len(answer["token_ids"]) for answer in answers[:-1]] == [1 + i % 5 for i in range(23)]
    single = json.loads(generate(model, "--json", "--ignore-eos", "--max-tokens", "5", "p4"))
    assert answers[4]["token_ids"] == single["token_ids"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not JSON"),
        ("[1]", "no JSON object"),
        ("{}", "either prompt or messages"),
        ('{"prompt": "a", "messages": []}', "either prompt or messages"),
        ('{"prompt": "a", "temprature": 1}', "temprature"),
        ('{"messages": [{"role": "user"}]}', "message 0"),
        ('{"prompt": "a", "n": 2}', "n must be 1"),
        ('{"prompt": "a", "logit_bias": {"x": 1}}', "wrong type"),
    ],
)
def test_a_wrong_line_is_refused_before_anything_runs(model: Path, tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "fine"}\n' + line + "\n")
    done = run("generate", "--model", str(model), *FLAGS, "--prompt-file", str(file))
    assert done.returncode == 2
    assert done.stdout == ""
    assert words in done.stderr
    assert f"{file}:2" in done.stderr


def test_a_line_that_fails_while_running_keeps_its_place(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt": "b", "temperature": -1}\n{"prompt": "c"}\n')
    done = run("generate", "--model", str(model), *FLAGS, "--max-tokens", "2", "--prompt-file", str(file))
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert ["error" in answer for answer in answers] == [False, True, False]
    assert done.returncode == 2


def test_chat_keeps_the_conversation(model: Path) -> None:
    text = fine("chat", "--model", str(model), *FLAGS, "--max-tokens", "4", stdin="hello\nagain\n")
    assert len(text.splitlines()) >= 2


def test_compose_explains_locks_and_checks(model: Path, tmp_path: Path) -> None:
    options = ["builtin:cpu-int8", "--model", str(model), *FLAGS]
    text = fine("compose", *options, "--explain")
    for word in ("kv.codec", "int8", "negotiated", "given up", "bytes/token", "sequences of the longest length"):
        assert word in text
    lock = tmp_path / "lock.toml"
    lock.write_text(fine("compose", *options, "--lock"))
    fine("compose", *options, "--check-lock", str(lock))
    done = run("compose", *options, "--set", "kv.codec=dense", "--check-lock", str(lock))
    assert done.returncode == 2
    assert "kv.codec" in done.stderr


def test_looking_at_profiles_and_plugins(tmp_path: Path) -> None:
    assert "scheduler   fcfs" in fine("plugins")
    assert json.loads(fine("plugins", "--json"))[0]["problem"] == ""
    assert json.loads(fine("profile", "schema"))["title"] == "Tokloom profile"
    assert 'kv.codec.plugin = "int8"' in fine("profile", "show", "builtin:cpu-int8") or "kv.codec" in fine(
        "profile", "show", "builtin:cpu-int8"
    )
    file = tmp_path / "p.toml"
    file.write_text("schema = 1\n")
    assert "current" in fine("profile", "migrate", str(file))
    assert "plugins:" in fine("doctor")


WRONG: dict[str, tuple[list[str], str]] = {
    "no command": (["nothing"], "No such command"),
    "no such option": (["generate", "--modle", "x"], "No such option"),
    "no model": (["generate", "hi"], "no model is named"),
    "model is not there": (["generate", "--model", "/nothing", "hi"], "/nothing"),
    "model is a name": (["generate", "--model", "org/name", "hi"], "nothing is downloaded"),
    "no such profile": (["generate", "--profile", "builtin:cup", "hi"], "builtin:cpu"),
    "profile is not there": (["generate", "--profile", "gone.toml", "hi"], "gone.toml"),
    "set without value": (["generate", "--set", "engine.depth", "hi"], "section.key=value"),
    "set of nothing": (["generate", "--set", "engine.dpeth=1", "hi"], "did you mean `depth`"),
    "set of a wrong type": (["generate", "--set", "engine.depth=x", "hi"], "expected an integer"),
    "unknown plugin": (["compose", "--model", "MODEL", "--set", "scheduler=fcsf"], "Did you mean fcfs"),
    "unknown option": (["compose", "--model", "MODEL", "--set", "kv.allocator.options.evict=1"], "unknown key `evict`"),
    "wrong option": (["compose", "--model", "MODEL", "--set", "kv.allocator.options.eviction=fifo"], "eviction"),
    "too little memory": (["compose", "--model", "MODEL", "--set", "engine.kv_memory=100"], "kv_memory"),
    "too long a context": (["compose", "--model", "MODEL", "--set", "engine.max_model_tokens=100000"], "context is"),
    "unknown device": (["compose", "--model", "MODEL", "--set", "engine.device=tpu9"], "device"),
    "no such dtype": (["compose", "--model", "MODEL", "--set", "model.dtype=int3"], "int3"),
    "lock is no lock": (["compose", "--model", "MODEL", "--check-lock", "LOCK"], "lock"),
    "negative temperature": (["generate", "--model", "MODEL", "--temperature", "-1", "hi"], "temperature"),
    "top_p": (["generate", "--model", "MODEL", "--top-p", "2", "hi"], "top_p"),
    "empty stop": (["generate", "--model", "MODEL", "--stop", "", "hi"], "stop string"),
    "both inputs": (["generate", "--model", "MODEL", "--prompt-file", "LOCK", "hi"], "not both"),
    "prompt too long": (["generate", "--model", "MODEL", "x" * 400], "at most"),
    "bad environment": (["profile", "show", "builtin:cpu"], "TOKLOOM__ENGINE__DEPTH"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_gives_one_paragraph_and_code_two(model: Path, tmp_path: Path, case: str) -> None:
    arguments, words = WRONG[case]
    lock = tmp_path / "lock.toml"
    lock.write_text("x = 1\n")
    filled = [{"MODEL": str(model), "LOCK": str(lock)}.get(argument, argument) for argument in arguments]
    environment = {"TOKLOOM__ENGINE__DEPTH": "deep"} if case == "bad environment" else {}
    done = run(*filled, *(FLAGS if "MODEL" in arguments and "--set" not in arguments else []), **environment)
    assert done.returncode == 2, done
    assert words in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_damaged_model_is_named(model: Path, tmp_path: Path, name: str) -> None:
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / name).write_bytes(b"{damaged")
    done = run("generate", "--model", str(tmp_path), *FLAGS, "hi")
    assert done.returncode == 2
    assert name in done.stderr
    assert "Traceback" not in done.stderr


def test_an_interrupt_ends_quickly_and_quietly(model: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "chat", "--model", str(model), *FLAGS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write("hello\n")
    process.stdin.flush()
    assert process.stdout is not None
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert time.monotonic() - begin < 10


def test_a_closed_pipe_is_quiet(model: Path) -> None:
    command = " ".join([sys.executable, "-c", "'from tokloom.serve.cli import main; main()'", "profile", "schema"])
    done = subprocess.run(f"{command} | head -c 10", shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_help_needs_no_torch() -> None:
    code = "import sys\nsys.modules['torch'] = None\nfrom tokloom.serve.cli.main import cli\ncli(['--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "generate" in done.stdout


def test_every_option_is_documented() -> None:
    from tokloom.serve.cli.main import COMMANDS, cli

    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert f"## {name}" in page
        assert command is not None
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                long = [option for option in parameter.opts if option.startswith("--")]
                assert any(f"`{option}" in page or f" {option}" in page for option in long), (name, long)
