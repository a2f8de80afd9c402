"""Code in the pages works: Python compiles and, where marked, runs; profiles load; commands and targets exist."""

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
from markdown_pages import ROOT, Block, blocks, name_of, pages, parse

from tokloom.core.profile import load_profile

PYTHON = blocks("python")
SHELL = blocks("", "sh", "bash", "shell", "console")


def place(block: Block) -> str:
    return block.place


def test_there_are_examples_to_check() -> None:
    assert any(block.info == "python run" for block in PYTHON)


def test_every_block_is_in_a_language_that_something_checks_or_that_nothing_needs_to() -> None:
    known = {"", "python", "toml", "json", "text", "sh", "bash", "shell", "console"}
    every = [block for page in pages() for block in parse(name_of(page), page.read_text(encoding="utf-8"))[0]]
    strange = [f"{block.place}: {block.info}" for block in every if block.info.split(" ")[0] not in known]
    assert not strange, strange


@pytest.mark.parametrize("block", PYTHON, ids=place)
def test_python_compiles(block: Block) -> None:
    compile(block.text, block.place, "exec")


@pytest.mark.parametrize("block", [b for b in PYTHON if "run" in b.info.split(" ")], ids=place)
def test_python_that_is_marked_runs(block: Block, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(block.text, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".src"), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", str(script)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300,
    )  # fmt: skip
    assert ended.returncode == 0, f"{block.place}\n{ended.stdout}{ended.stderr}"


def test_json_parses() -> None:
    for block in blocks("json"):
        json.loads(block.text)


@pytest.mark.parametrize("block", blocks("toml"), ids=place)
def test_toml_parses_and_profiles_load(block: Block) -> None:
    table = tomllib.loads(block.text)
    if "schema" in table and "x-" not in block.info:
        load_profile(table, environment={})


COMMANDS = [
    pytest.param(line.removeprefix("$ ").partition(" #")[0].strip(), id=f"{block.page}:{block.line + number}")
    for block in SHELL
    for number, line in enumerate(re.sub(r"\\\n", " ", block.text).splitlines(), 1)
    if re.match(r"(\$ )?(tokloom|make)\b", line)
]


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_and_their_options_exist(line: str) -> None:
    words = shlex.split(line)
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        targets = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
        assert all(re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE) for target in targets)
        return
    main = pytest.importorskip("tokloom.serve.cli.main", reason="there is no command line yet")
    words = words[1 : next((i for i, word in enumerate(words) if word in ("|", ">", "<", "&", "&&")), None)]
    command: click.Command = main.cli
    while words and isinstance(command, click.Group):
        option = words.pop(0)
        if option.startswith("-"):
            assert option in known_options(command), f"{command.name} has no option {option}"
            continue
        found = command.get_command(click.Context(command), option)
        assert found is not None, f"{command.name} has no command {option}"
        command = found
    for word in words:
        if word.startswith("-") and word != "-":
            assert word.partition("=")[0] in known_options(command), f"{command.name} has no option {word}"


def known_options(command: click.Command) -> set[str]:
    parameters = command.get_params(click.Context(command))
    return {name for parameter in parameters for name in [*parameter.opts, *parameter.secondary_opts]}


def python_of(page: str) -> list[str]:
    return [block.text for block in PYTHON if block.place.startswith(f"{page}:") and block.info == "python"]


@pytest.mark.slow
@pytest.mark.model
def test_the_readme_answers(smollm2: Path, tmp_path: Path) -> None:
    """Its first program, in a folder that looks like a checkout after `make demo`."""
    (tmp_path / ".models").mkdir()
    (tmp_path / ".models" / "SmolLM2-135M-Instruct.gguf").symlink_to(smollm2)
    (tmp_path / "program.py").write_text(python_of("README.md")[0], encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".src")}
    ended = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout.split()) > 3
    assert not ended.stderr


@pytest.mark.slow
@pytest.mark.model
def test_the_programs_on_embedding_answer(smollm2: Path) -> None:
    asynchronous, synchronous, *_ = python_of("docs/embedding.md")
    names: dict[str, Any] = {}
    exec(compile(asynchronous, "asynchronous", "exec"), names)
    exec(compile(synchronous, "synchronous", "exec"), names)
    assert len(asyncio.run(names["main"](str(smollm2))).split()) > 3
    answers = names["answer"](str(smollm2), ["Name a river.", "Name a colour."])
    assert len(answers) == 2
    assert all(answers)
