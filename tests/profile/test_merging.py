"""What wins over what, and how tables, arrays and sections of plugins merge."""

from pathlib import Path

import pytest
from profile_files import load, write

from tokloom.core.profile import ProfileProblems, load_profile


def test_each_layer_wins_over_the_one_before_it(tmp_path: Path) -> None:
    write(tmp_path, "schema = 1\n[engine]\nmax_sequences = 2\n", "base.toml")
    text = 'extends = "base.toml"\n'
    own = text + "[engine]\nmax_sequences = 3\n"
    variable = {"TOKLOOM__ENGINE__MAX_SEQUENCES": "4"}
    assert load(tmp_path, "").engine.max_sequences == 32
    assert load(tmp_path, text).engine.max_sequences == 2
    assert load(tmp_path, own).engine.max_sequences == 3
    assert load(tmp_path, own, environment=variable).engine.max_sequences == 4
    assert load(tmp_path, own, environment=variable, sets=["engine.max_sequences=5"]).engine.max_sequences == 5


def test_the_last_of_two_sets_wins(tmp_path: Path) -> None:
    assert load(tmp_path, "", sets=["engine.depth=0", "engine.depth=1"]).engine.depth == 1


def test_every_value_tells_where_it_came_from(tmp_path: Path) -> None:
    base = write(tmp_path, "schema = 1\n[engine]\nmax_sequences = 2\nmax_waiting = 9\ndepth = 1\n", "base.toml")
    profile = load(
        tmp_path,
        'extends = "base.toml"\n[engine]\nmax_waiting = 8\n',
        environment={"TOKLOOM__ENGINE__SEED": "7"},
        sets=["engine.depth=0"],
    )
    assert str(profile.place("engine.max_sequences")) == f"{base}:3:1"
    assert str(profile.place("engine.max_waiting")) == f"{tmp_path / 'p.toml'}:4:1"
    assert str(profile.place("engine.seed")) == "environment variable TOKLOOM__ENGINE__SEED"
    assert str(profile.place("engine.depth")) == "--set engine.depth=0"
    assert str(profile.place("engine.page_tokens")) == "default"
    assert str(profile.place("kv.tiers.0.plugin")) == "default"


def test_tables_merge_by_key(tmp_path: Path) -> None:
    write(tmp_path, 'schema = 1\n[kv.codec]\nplugin = "a"\noptions = { x = 1, y = { p = 1, q = 2 } }\n', "base.toml")
    profile = load(tmp_path, 'extends = "base.toml"\n[kv.codec.options]\ny = { q = 3 }\n')
    section = profile.sections["kv.codec"]
    assert section.plugin == "a"
    assert section.options.plain() == {"x": 1, "y": {"p": 1, "q": 3}}


def test_arrays_replace(tmp_path: Path) -> None:
    write(tmp_path, 'schema = 1\nobservers = ["a", "b"]\nkv.tiers = ["host", "disk"]\n', "base.toml")
    profile = load(tmp_path, 'extends = "base.toml"\nobservers = ["c"]\n')
    assert [section.plugin for section in profile.observers] == ["c"]
    assert [section.plugin for section in profile.tiers] == ["host", "disk"]
    assert load(tmp_path, 'extends = "base.toml"\nkv.tiers = []\n').tiers == ()


@pytest.mark.parametrize(
    "over",
    ['speculation = "b"', '[speculation]\nplugin = "b"', 'speculation.plugin = "b"', 'speculation = { plugin = "b" }'],
)
def test_changing_the_plugin_drops_inherited_options_and_nothing_else(tmp_path: Path, over: str) -> None:
    base = '[speculation]\nplugin = "a"\noptions = { x = 1 }\non_unsupported = "fallback"\n'
    write(tmp_path, f"schema = 1\n{base}", "base.toml")
    section = load(tmp_path, f'extends = "base.toml"\n{over}\n').sections["speculation"]
    assert (section.plugin, section.options.plain(), section.on_unsupported) == ("b", {}, "fallback")


def test_naming_the_same_plugin_keeps_inherited_options(tmp_path: Path) -> None:
    write(tmp_path, 'schema = 1\n[scheduler]\nplugin = "a"\noptions = { x = 1 }\n', "base.toml")
    section = load(tmp_path, 'extends = "base.toml"\nscheduler = "a"\n').sections["scheduler"]
    assert section.options.plain() == {"x": 1}


def test_an_override_that_changes_the_plugin_drops_its_options_too(tmp_path: Path) -> None:
    text = '[scheduler]\nplugin = "a"\noptions = { x = 1 }\n'
    assert load(tmp_path, text, sets=["scheduler.plugin=b"]).sections["scheduler"].options.plain() == {}
    assert load(tmp_path, text, sets=["scheduler=b"]).sections["scheduler"].options.plain() == {}
    kept = load(tmp_path, text, sets=["scheduler.plugin=b", "scheduler.options.y=2"])
    assert kept.sections["scheduler"].options.plain() == {"y": 2}


def test_the_short_form_is_the_table_with_that_plugin(tmp_path: Path) -> None:
    short = load(tmp_path, 'scheduler = "slo"\nobservers = ["o"]\n[kv]\ntiers = ["host"]\n')
    long = load(
        tmp_path,
        'observers = [{ plugin = "o" }]\n[scheduler]\nplugin = "slo"\n[[kv.tiers]]\nplugin = "host"\n',
    )
    for one, other in (
        (short.sections["scheduler"], long.sections["scheduler"]),
        (short.observers[0], long.observers[0]),
        (short.tiers[0], long.tiers[0]),
    ):
        assert (one.path, one.plugin, one.options.plain(), one.on_unsupported) == (
            other.path,
            other.plugin,
            other.options.plain(),
            other.on_unsupported,
        )


def test_options_can_be_added_to_an_inherited_short_form(tmp_path: Path) -> None:
    write(tmp_path, 'schema = 1\nscheduler = "a"\n', "base.toml")
    section = load(tmp_path, 'extends = "base.toml"\nscheduler.options.x = 1\n').sections["scheduler"]
    assert (section.plugin, section.options.plain()) == ("a", {"x": 1})
    by_set = load(tmp_path, 'scheduler = "a"\n', sets=["scheduler.options.x=1"]).sections["scheduler"]
    assert (by_set.plugin, by_set.options.plain()) == ("a", {"x": 1})


def test_off_removes_an_inherited_section(tmp_path: Path) -> None:
    write(tmp_path, 'schema = 1\n[speculation]\nplugin = "ngram"\n', "base.toml")
    text = 'extends = "base.toml"\n'
    assert "speculation" in load(tmp_path, text).sections
    assert "speculation" not in load(tmp_path, text + 'speculation = "off"\n').sections
    assert "speculation" not in load(tmp_path, text, sets=["speculation=off"]).sections
    assert load(tmp_path, 'observers = ["off", "a"]\n').observers[0].path == "observers.1"


def test_a_phase_of_its_own_takes_the_other_from_the_inherited_kernel(tmp_path: Path) -> None:
    write(tmp_path, 'schema = 1\n[attention]\nplugin = "a"\noptions = { x = 1 }\n', "base.toml")
    profile = load(tmp_path, 'extends = "base.toml"\n[attention.decode]\nplugin = "b"\n')
    assert "attention" not in profile.sections
    assert profile.sections["attention.decode"].plugin == "b"
    assert profile.sections["attention.prefill"].plugin == "a"
    assert profile.sections["attention.prefill"].options.plain() == {"x": 1}


def test_one_kernel_replaces_inherited_phases(tmp_path: Path) -> None:
    write(tmp_path, 'schema = 1\nattention = { decode = "a", prefill = "b" }\n', "base.toml")
    profile = load(tmp_path, 'extends = "base.toml"\nattention = "c"\n')
    assert [path for path in profile.sections if path.startswith("attention")] == ["attention"]


def test_overrides_reach_into_arrays_of_tables(tmp_path: Path) -> None:
    text = '[[kv.tiers]]\nplugin = "host"\noptions = { capacity = "1GiB" }\n[[kv.tiers]]\nplugin = "disk"\n'
    profile = load(
        tmp_path,
        text,
        sets=["kv.tiers.0.options.capacity=2GiB"],
        environment={"TOKLOOM__KV__TIERS__1__PLUGIN": "tape"},
    )
    assert profile.tiers[0].options.plain() == {"capacity": "2GiB"}
    assert profile.tiers[1].plugin == "tape"
    assert str(profile.place("kv.tiers.0.options.capacity")) == "--set kv.tiers.0.options.capacity=2GiB"


@pytest.mark.parametrize("step", ["3", "-1", "²", "x", "00", "00000000002", "9" * 5000])
def test_an_override_of_a_missing_item_is_an_error(tmp_path: Path, step: str) -> None:
    with pytest.raises(ProfileProblems, match=f"there is no item '{step[:80]}' of 2"):
        load(tmp_path, 'kv.tiers = ["a", "b"]\n', sets=[f"kv.tiers.{step}.plugin=x"])


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("7", 7),
        ("true", True),
        ("1.5", 1.5),
        ('"7"', "7"),
        ("[1, 2]", [1, 2]),
        ("{ a = 1 }", {"a": 1}),
        ("plain words", "plain words"),
        ("a=b", "a=b"),
        ("", ""),
        ("1\nother = 2", "1\nother = 2"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_an_override_is_a_toml_value_or_else_a_string(tmp_path: Path, written: str, value: object) -> None:
    text = 'scheduler = "a"\n'
    by_set = load(tmp_path, text, sets=[f"scheduler.options.x={written}"])
    by_variable = load(tmp_path, text, environment={"TOKLOOM__SCHEDULER__OPTIONS__X": written})
    assert by_set.sections["scheduler"].options.plain() == {"x": value}
    assert by_variable.sections["scheduler"].options.plain() == {"x": value}


@pytest.mark.parametrize("text", ["engine.depth", "=1", "engine..depth=1", ".=1", ""])
def test_a_set_without_key_or_value_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ProfileProblems, match=r"section\.key=value"):
        load(tmp_path, "", sets=[text])


def test_other_variables_are_not_read(tmp_path: Path) -> None:
    environment = {"TOKLOOM_ENGINE__DEPTH": "1", "XTOKLOOM__ENGINE__DEPTH": "1", "tokloom__engine__depth": "1"}
    assert load(tmp_path, "", environment=environment).engine.depth == 0


def test_the_environment_of_the_process_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKLOOM__ENGINE__DEPTH", "1")
    path = write(tmp_path, "schema = 1\n")
    assert load_profile(path).engine.depth == 1
    assert load_profile(path, environment={}).engine.depth == 0


def test_a_mapping_is_a_profile_like_a_file(tmp_path: Path) -> None:
    profile = load_profile({"schema": 1, "extends": "builtin:cpu", "engine": {"depth": 1}}, environment={})
    assert profile.engine.depth == 1
    assert profile.sections["kv.codec"].plugin == "dense"
    assert str(profile.place("engine.depth")) == "mapping"


def test_tables_named_x_are_ignored(tmp_path: Path) -> None:
    assert load(tmp_path, "x-notes = 3\n[x-mine]\nanything = [1, { a = 2 }]\n").engine.depth == 0
