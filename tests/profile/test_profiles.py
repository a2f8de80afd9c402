"""Profiles: where values come from, how they merge, and how problems are shown."""

import contextlib
import random
import string
from pathlib import Path
from typing import Any

import attrs
import pytest
from attrs import frozen

from tokloom.core.profile import EngineSection, Profile, ProfileProblems, Secret, load_profile, profile_schema
from tokloom.sdk import ProfileError


def write(folder: Path, text: str, name: str = "p.toml") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def load(path: Any, **options: Any) -> Profile:
    return load_profile(path, environment=options.pop("environment", {}), **options)


def problems(path: Any, **options: Any) -> str:
    with pytest.raises(ProfileProblems) as caught:
        load(path, **options)
    return str(caught.value)


def test_later_sources_win_and_places_say_which(tmp_path: Path) -> None:
    write(tmp_path, "schema = 1\n[engine]\ndepth = 0\nmax_sequences = 3\nmax_waiting = 4\nseed = 5\n", "base.toml")
    path = write(
        tmp_path, 'schema = 1\nextends = "base.toml"\n[engine]\nmax_sequences = 4\nmax_waiting = 6\nseed = 6\n'
    )
    environment = {"TOKLOOM__ENGINE__MAX_WAITING": "7", "TOKLOOM__ENGINE__SEED": "7", "OTHER": "x"}
    profile = load(path, environment=environment, sets=["engine.seed=8"])
    engine = profile.engine
    assert (engine.depth, engine.max_sequences, engine.max_waiting, engine.seed) == (0, 4, 7, 8)
    assert engine.max_draft_tokens == 4
    assert str(profile.place("engine.depth")).endswith("base.toml:3:1")
    assert str(profile.place("engine.max_sequences")) == f"{path}:4:1"
    assert str(profile.place("engine.max_waiting")) == "environment variable TOKLOOM__ENGINE__MAX_WAITING"
    assert str(profile.place("engine.seed")) == "--set engine.seed=8"
    assert str(profile.place("engine.max_draft_tokens")) == "default"


def test_another_plugin_drops_inherited_options_and_the_same_one_keeps_them(tmp_path: Path) -> None:
    base = 'schema = 1\n[kv.codec]\nplugin = "a"\noptions = { bits = 4, group = 8 }\n[scheduler]\nplugin = "s"\n'
    write(tmp_path, base, "base.toml")
    head = 'schema = 1\nextends = "base.toml"\n'
    other = load(write(tmp_path, head + '[kv]\ncodec = "b"\n'))
    assert other.sections["kv.codec"].options.plain() == {}
    same = load(write(tmp_path, head + '[kv.codec]\nplugin = "a"\noptions = { bits = 2 }\n'))
    assert same.sections["kv.codec"].options.plain() == {"bits": 2, "group": 8}
    off = load(write(tmp_path, head + 'scheduler = "off"\n'))
    assert "scheduler" not in off.sections


def test_arrays_are_replaced_and_set_reaches_into_them(tmp_path: Path) -> None:
    path = write(tmp_path, 'schema = 1\n[[kv.tiers]]\nplugin = "a"\n[[kv.tiers]]\nplugin = "b"\noptions = { c = 1 }\n')
    profile = load(path, sets=["kv.tiers.1.options.c=9"])
    assert [tier.plugin for tier in profile.tiers] == ["a", "b"]
    assert profile.tiers[1].options.plain() == {"c": 9}
    assert "no item '7'" in problems(path, sets=["kv.tiers.7.plugin=x"])


def test_extends_that_goes_round_shows_the_chain(tmp_path: Path) -> None:
    write(tmp_path, 'schema = 1\nextends = "b.toml"\n', "a.toml")
    write(tmp_path, 'schema = 1\nextends = "a.toml"\n', "b.toml")
    text = problems(tmp_path / "a.toml")
    assert "goes round" in text
    assert text.count("a.toml") >= 2


def test_a_missing_base_points_at_the_line_that_names_it(tmp_path: Path) -> None:
    path = write(tmp_path, 'schema = 1\nextends = "gone.toml"\n')
    text = problems(path)
    assert f"{path}:2:" in text
    assert "gone.toml" in text


def test_shipped_profiles_load_and_unknown_ones_suggest() -> None:
    for name in ("cpu", "cpu-int8", "cpu-latency", "serve"):
        assert load(f"builtin:{name}").sections["attention.prefill"].plugin == "torch"
    assert "did you mean builtin:cpu-int8?" in problems("builtin:cpu-int")


# text, line, column of the caret, width of the caret, words of message and help
MALFORMED: dict[str, tuple[str, int, int, int, list[str]]] = {
    "unknown key": ("[engine]\nmax_batch_tokns = 5", 3, 1, 15, ["unknown key", "did you mean `max_batch_tokens`"]),
    "wrong type": ('[engine]\ndepth = "one"', 3, 9, 5, ["expected an integer", "string 'one'"]),
    "boolean for integer": ("[engine]\ndepth = true", 3, 9, 4, ["expected an integer", "boolean true"]),
    "float for integer": ("[engine]\ndepth = 1.0", 3, 9, 3, ["expected an integer", "float 1.0"]),
    "integer for string": ("[model]\npath = 3", 3, 8, 1, ["expected a string"]),
    "out of range": ("[engine]\ndepth = 7", 3, 9, 1, ["between 0 and 1", "7"]),
    "choice": ('[engine]\nverification = "yes"', 3, 16, 5, ['"match"', '"rejection"']),
    "size": ('[engine]\nkv_memory = "lots"', 3, 13, 6, ["512MiB"]),
    "auto": ('[engine]\nthreads = "many"', 3, 11, 6, ['positive integer or "auto"']),
    "unclaimed table": ("[bogus]\nx = 1", 2, 2, 5, ["nobody claims", "x-"]),
    "misspelt table": ("[enigne]\nx = 1", 2, 2, 6, ["did you mean `engine`"]),
    "section key": ('[scheduler]\nplugin = "a"\nopts = 1', 4, 1, 4, ["unknown key", "`options`"]),
    "no plugin": ("[weights]\noptions = { a = 1 }", 2, 2, 7, ["`plugin` is missing"]),
    "plugin type": ("[weights]\nplugin = 3", 3, 10, 1, ["expected a name"]),
    "section type": ("weights = 5", 2, 11, 1, ["plugin's name or a table"]),
    "on_unsupported": ('[weights]\nplugin = "a"\non_unsupported = "maybe"', 4, 18, 7, ["fallback"]),
    "inline table": ('[kv]\ncodec = { plugin = "a", bits = 3 }', 3, 25, 4, ["unknown key `bits`"]),
    "dotted key": ("engine.depth = 9", 2, 16, 1, ["between 0 and 1"]),
    "quoted key": ('[engine]\n"depth" = 9', 3, 11, 1, ["between 0 and 1"]),
    "tiers type": ("[kv]\ntiers = 3", 3, 9, 1, ["expected an array"]),
    "tier item": ('[[kv.tiers]]\nplugin = "a"\n[[kv.tiers]]\nplugin = 4', 5, 10, 1, ["expected a name"]),
    "multi-line array": ('observers = [\n  "a",\n  7,\n]', 4, 3, 1, ["plugin's name or a table"]),
    "kv key": ('[kv]\nalocator = "a"', 3, 1, 8, ["did you mean `allocator`"]),
    "one phase": ('[attention.decode]\nplugin = "a"', 2, 12, 6, ["attention.prefill is missing"]),
    "after CRLF": ("# a\r\n[engine]\r\ndepth = 5", 4, 9, 1, ["between 0 and 1"]),
    "after multi-line text": ('x-note = """\na\nb"""\n[engine]\ndepth = 5', 6, 9, 1, ["between 0 and 1"]),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_problem_points_at_its_place(tmp_path: Path, case: str) -> None:
    text, line, column, width, words = MALFORMED[case]
    path = write(tmp_path, f"schema = 1\n{text}\n")
    with pytest.raises(ProfileProblems) as caught:
        load(path)
    (problem,) = caught.value.problems
    shown = problem.render()
    assert f"{path}:{line}:{column}\n" in shown, shown
    caret = next(row for row in shown.split("\n") if "^" in row)
    assert caret.count("^") == width, shown
    assert caret.index("^") - len(f"{line}") - 3 == column - 1, shown
    for word in words:
        assert word in shown, shown


@pytest.mark.parametrize(
    ("text", "line"), [("a = [1,\n", 2), ("[engine\n", 1), ("x = \n", 1), ("a = 1\na = 2\n", 2), ('s = "open\n', 1)]
)
def test_invalid_toml_points_at_its_place(tmp_path: Path, text: str, line: int) -> None:
    shown = problems(write(tmp_path, text))
    assert "invalid TOML" in shown
    assert f"p.toml:{line}:" in shown


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    text = 'schema = 2\n[engine]\ndepth = "a"\nbogus = 1\n[kv]\ncodec = 3\n[nothing]\n'
    with pytest.raises(ProfileProblems) as caught:
        load(write(tmp_path, text))
    assert len(caught.value.problems) == 5


def test_a_missing_schema_says_how_to_begin(tmp_path: Path) -> None:
    assert "begin the profile with schema = 1" in problems(write(tmp_path, "[engine]\n"))
    assert "migrate" in problems(write(tmp_path, "schema = 9\n"))


def test_own_tables_are_ignored_and_front_ends_claim_theirs(tmp_path: Path) -> None:
    @frozen
    class Serve:
        port: int = 8000
        api_key: Secret | None = None

    text = 'schema = 1\n[x-mine]\na = 1\n[serve]\nport = 9\napi_key = { env = "KEY" }\n'
    path = write(tmp_path, text)
    assert "nobody claims" in problems(path)
    profile = load(path, claims={"serve": Serve})
    assert profile.claims["serve"].port == 9
    assert load(path, ignore=("serve",)).claims == {}


def test_secrets_are_references_that_are_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = Secret(env="TL_SECRET")
    with pytest.raises(ProfileError, match="TL_SECRET is not set"):
        secret.reveal()
    monkeypatch.setenv("TL_SECRET", "hunter2")
    assert secret.reveal() == "hunter2"
    assert "hunter2" not in repr(secret)
    file = tmp_path / "secret"
    file.write_text("s3\n")
    assert Secret(file=str(file)).reveal() == "s3"
    with pytest.raises(ProfileError, match="cannot be read"):
        Secret(file=str(tmp_path / "gone")).reveal()


@pytest.mark.parametrize("seed", range(8))
def test_garbage_is_refused_and_nothing_else_happens(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    pieces = [
        "schema = 1\n",
        "[engine]\n",
        "[[kv.tiers]]\n",
        "depth = ",
        '"',
        "{",
        "}",
        "[",
        "]",
        ",",
        "=",
        ".",
        "\n",
        "#",
    ]
    for _ in range(150):
        if rng.random() < 0.3:
            data = bytes(rng.randrange(256) for _ in range(rng.randrange(80)))
        else:
            words = [rng.choice([*pieces, rng.choice(string.printable)]) for _ in range(rng.randrange(30))]
            data = "".join(words).encode()
        path = tmp_path / "p.toml"
        path.write_bytes(data)
        with contextlib.suppress(ProfileError):
            load(path)


def test_the_schema_describes_every_key() -> None:
    schema = profile_schema()
    keys = {field.name for field in attrs.fields(EngineSection)}
    assert set(schema["properties"]["engine"]["properties"]) == keys
    assert schema["properties"]["engine"]["properties"]["kv_memory"]["default"] == "auto"
    assert schema["required"] == ["schema"]
