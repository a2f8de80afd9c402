"""The command line as a person meets it, over a tiny model; as a process where signals and pipes matter."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
from attrs import frozen
from click.testing import CliRunner
from tiny_chat import SETS, tiny_chat_model
from tiny_models import edit_json

from tokloom.core.compose import Composer
from tokloom.serve.cli import main
from tokloom.serve.cli.inspect import compose

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from tokloom.serve.cli import main; main()"]
#: steps long enough to be interrupted; processes started in the background inherit that SIGINT is ignored
INTERRUPTIBLE = """
import signal, time
import tokloom.core.engine as engine
signal.signal(signal.SIGINT, signal.default_int_handler)
step = engine.EngineCore.step
engine.EngineCore.step = lambda core: (time.sleep(0.05), step(core))[1]
from tokloom.core.compose import Composer
from tokloom.serve.cli import main
from tokloom.serve.cli.inspect import compose
main()
"""
FLAGS = [part for text in SETS for part in ("--set", text)]


@frozen
class Done:
    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str, stdin: str | bytes = "", **environment: str) -> Done:
    """The entry point in this process, with streams, arguments and environment of its own."""
    with CliRunner().isolation(input=stdin, env=environment) as streams, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tokloom", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    out, err = (stream.getvalue().decode() for stream in streams[:2])
    assert isinstance(ended.value.code, int)
    return Done(ended.value.code, out, err)


def process(*arguments: str) -> list[str]:
    return [*COMMAND, *arguments]


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


def test_what_the_model_recommends_is_taken_where_nothing_is_said(tmp_path: Path) -> None:
    model = tiny_chat_model(tmp_path)
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "x"}\n{"prompt": "x", "max_tokens": 3}\n')
    flags = ["--model", str(model), *FLAGS, "--ignore-eos"]
    greedy = json.loads(fine("generate", *flags, "--json", "--max-tokens", "5", "x"))["token_ids"]
    edit_json(tmp_path / "generation_config.json", max_new_tokens=5, do_sample=True, temperature=3.0)
    warm = json.loads(fine("generate", *flags, "--json", "x"))["token_ids"]
    assert len(warm) == 5
    assert warm != greedy
    assert json.loads(fine("generate", *flags, "--json", "--temperature", "0", "x"))["token_ids"] == greedy
    lines = fine("generate", *flags, "--prompt-file", str(file)).splitlines()
    assert [len(json.loads(line)["token_ids"]) for line in lines] == [5, 3]


def test_a_seed_makes_random_answers_repeat(model: Path) -> None:
    first, second = (generate(model, "--temperature", "1", "--seed", "4", "x") for _ in range(2))
    assert first == second


def test_a_report_goes_to_standard_error(model: Path) -> None:
    done = run("generate", "--model", str(model), *FLAGS, "--max-tokens", "4", "--ignore-eos", "--report", "x")
    assert "TTFT" in done.stderr
    assert "attention cpu, torch" in done.stderr
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
        ('{"prompt": "a", "logit_bias": {"x": 1}}', "no token id"),
        ('{"prompt": "a", "logit_bias": 3}', "logit_bias"),
        ('{"prompt": ""}', "prompt is empty"),
        ('{"prompt": null}', "neither prompt"),
        ('{"prompt": 3}', "prompt is int"),
        ('{"prompt": "\\ud800"}', "half of a character"),
        ('{"messages": "hello"}', "messages is 'hello'"),
        ('{"messages": []}', "messages is empty"),
        ('{"messages": [3]}', "message 0 is int"),
        ('{"prompt": "a", "stop": 3}', "stop is 3"),
        ('{"prompt": "a", "stop": [3]}', "stop string 3"),
        ('{"prompt": "a", "raw": "yes"}', "raw is 'yes'"),
        ('{"prompt": "a", "temperature": -1}', "temperature is -1"),
        ('{"prompt": "a", "priority": "high"}', "priority is 'high'"),
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


def test_a_file_that_is_not_text_is_refused_with_its_line(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(b'{"prompt": "a"}\n{"prompt": "\xff"}\n')
    done = run("generate", "--model", str(model), *FLAGS, "--prompt-file", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{file}:2: is not UTF-8 at byte 12" in done.stderr


def test_lines_end_at_newlines_only(model: Path, tmp_path: Path) -> None:
    """JSON text may hold U+2028 and U+0085 as they are; a file may have a byte order mark and empty lines."""
    file = tmp_path / "prompts.jsonl"
    file.write_bytes('\ufeff{"prompt": "a\u2028b\u0085c", "raw": true}\r\n\n{"prompt": "d"}'.encode())
    answers = [json.loads(line) for line in generate(model, "--prompt-file", str(file)).splitlines()]
    assert len(answers) == 2
    assert len(answers[0]["prompt_token_ids"]) == len("a\u2028b\u0085c".encode())


def test_a_stop_string_of_a_line_is_one_string(model: Path, tmp_path: Path) -> None:
    sampling = {"max_tokens": 30, "ignore_eos": True, "logit_bias": dict.fromkeys(map(str, range(65, 90)), 30.0)}
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"prompt": "go", **sampling}))
    whole = json.loads(generate(model, "--prompt-file", str(file)))["text"]
    stop = whole[10:13]
    file.write_text(json.dumps({"prompt": "go", "stop": stop, **sampling}))
    assert json.loads(generate(model, "--prompt-file", str(file)))["text"] == whole[: whole.index(stop)]


def test_a_file_longer_than_the_queue_runs_whole(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a", "max_tokens": 2, "ignore_eos": true}\n' * 12)
    lines = generate(model, "--set", "engine.max_waiting=1", "--prompt-file", str(file)).splitlines()
    assert ["error" in json.loads(line) for line in lines] == [False] * 12


def test_an_empty_file_gives_nothing(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n \n")
    assert generate(model, "--prompt-file", str(file)) == ""


@pytest.mark.parametrize(("data", "words"), [(b"\xff", "not UTF-8 at byte 0"), (b"", "prompt is empty")])
def test_standard_input_that_is_no_prompt_is_refused(model: Path, data: bytes, words: str) -> None:
    done = run("generate", "--model", str(model), *FLAGS, stdin=data)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_a_report_names_times_and_plugins(model: Path) -> None:
    done = run("generate", "--model", str(model), *FLAGS, "--ignore-eos", "--max-tokens", "5", "--report", "hi")
    assert done.returncode == 0
    for word in ("TTFT", "TPOT", "tokens/s", "5 tokens", "attention cpu, torch", "allocator paged", "scheduler fcfs"):
        assert word in done.stderr


def test_debug_shows_where_an_error_comes_from(model: Path) -> None:
    done = run("--debug", "generate", "--model", str(model), *FLAGS, "--top-p", "2", "hi")
    assert done.returncode == 2
    assert "Traceback" in done.stderr


def test_a_line_that_fails_while_running_keeps_its_place(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("a", "too long" * 100, "c")))
    done = run("generate", "--model", str(model), *FLAGS, "--max-tokens", "2", "--prompt-file", str(file))
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert ["error" in answer for answer in answers] == [False, True, False]
    assert done.returncode == 2


def test_chat_keeps_the_conversation(model: Path) -> None:
    text = fine("chat", "--model", str(model), *FLAGS, "--max-tokens", "4", stdin="hello\nagain\n")
    assert len(text.splitlines()) >= 2


def test_a_message_that_is_refused_is_forgotten(model: Path) -> None:
    flags = ["--model", str(model), *FLAGS, "--ignore-eos", "--max-tokens", "4"]
    done = run("chat", *flags, stdin="hello\n" + "x" * 500 + "\nagain\n")
    assert "at most" in done.stderr
    assert done.returncode == 2
    assert done.stdout == run("chat", *flags, stdin="hello\nagain\n").stdout


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
    told = fine("doctor")
    assert "plugins:" in told
    assert "compiled modules:" in told


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


@pytest.mark.parametrize("command", ["generate", "file", "chat"])
def test_an_interrupt_ends_quickly_and_quietly(model: Path, tmp_path: Path, command: str) -> None:
    flags = ["--model", str(model), *FLAGS, "--ignore-eos", "--max-tokens", "200"]
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n' * 3000)
    arguments = {
        "generate": ["generate", *flags, "--temperature", "1", "hello"],
        "file": ["generate", *flags, "--prompt-file", str(file)],
        "chat": ["chat", *flags],
    }[command]
    running = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert running.stdin is not None
    assert running.stdout is not None
    running.stdin.write(b"hello\n")
    running.stdin.flush()
    assert running.stdout.read(1)
    running.send_signal(signal.SIGINT)
    begin = time.monotonic()
    _, errors = running.communicate(timeout=30)
    assert running.returncode == 130
    assert errors.split() == [b"interrupted"]
    assert time.monotonic() - begin < 10


def test_on_a_terminal_an_interrupt_stops_the_answer_and_the_conversation_goes_on(model: Path) -> None:
    near, far = pty.openpty()
    flags = ["--model", str(model), *FLAGS, "--ignore-eos", "--max-tokens", "100"]
    running = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, "chat", *flags],
        stdin=far,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert running.stdout is not None
    os.write(near, b"first\n")
    assert running.stdout.read(3)
    running.send_signal(signal.SIGINT)
    os.write(near, b"second\n\n")
    rest, _ = running.communicate(timeout=60)
    os.close(near)
    os.close(far)
    assert running.returncode == 0
    assert len(rest.rstrip(b"\n")) > 100, "the second answer is whole"


def test_a_closed_pipe_is_quiet_and_ends_the_answer(model: Path) -> None:
    arguments = ["generate", "--model", str(model), *FLAGS, "--ignore-eos", "--max-tokens", "200", "hello"]
    running = subprocess.Popen(process(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stdout.read(1)
    running.stdout.close()
    assert running.stderr is not None
    assert running.stderr.read() == b""
    assert running.wait(30) != 0


def test_a_terminal_without_the_characters_gets_stand_ins(model: Path) -> None:
    arguments = ["generate", "--model", str(model), *FLAGS, "--ignore-eos", "--max-tokens", "100", "hello"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(process(*arguments), capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert b"?" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], "generate"),
        (["generate", "--help"], "--prompt-file"),
        (["chat", "--help"], "--system"),
        (["compose", "--help"], "--explain"),
        (["bench", "--help"], "seams"),
        (["profile", "show", "builtin:cpu"], "schema = 1"),
        (["plugins"], "scheduler"),
    ],
)
def test_what_runs_no_model_needs_no_torch(arguments: list[str], words: str) -> None:
    code = "import sys\nsys.modules['torch'] = None\nfrom tokloom.serve.cli import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout


def test_a_wrong_file_is_refused_without_torch(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("{")
    code = "import sys\nsys.modules['torch'] = None\nfrom tokloom.serve.cli import main\nmain()"
    arguments = ["generate", "--prompt-file", str(file)]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "not JSON" in done.stderr


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


def test_looking_at_a_profile_closes_what_it_made(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Composer] = []
    original = Composer.close

    def close(composer: Composer) -> None:
        closed.append(composer)
        original(composer)

    monkeypatch.setattr(Composer, "close", close)
    done = CliRunner().invoke(
        compose, ["builtin:cpu", "--model", str(model), *FLAGS, "--explain"], standalone_mode=False
    )
    assert done.exception is None
    assert len(closed) == 1
