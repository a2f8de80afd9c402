"""What is said of malformed profiles, and where the caret stands."""

from pathlib import Path

import pytest
from attrs import field, frozen
from profile_files import load, problems, write

from tokloom.core.profile import Problem, ProfileProblems, Secret, load_profile
from tokloom.sdk import ProfileError


@frozen
class Inner:
    name: str
    ports: tuple[int, ...] = ()


@frozen
class Serve:
    """A front end's table."""

    port: int = 8000
    host: str = "localhost"
    ratio: float = 0.5
    api_key: Secret | None = None
    keys: tuple[Secret, ...] = ()
    inner: tuple[Inner, ...] = ()
    labels: dict[str, int] = field(factory=dict)


def marked(problem: Problem) -> str:
    """The text above the carets of the rendered problem."""
    lines = problem.render().split("\n")
    above, carets = lines[3], lines[4]
    begin = carets.index("^")
    return above[begin : begin + carets.count("^")]


# text after `schema = 1`, part of the message, line, text above the caret, dotted key
MALFORMED = [
    ('[engine]\ndepth = "1"', "expected an integer, found string '1'", 3, '"1"', "engine.depth"),
    ("[engine]\ndepth = 1.0", "expected an integer, found float 1.0", 3, "1.0", "engine.depth"),
    ("[engine]\ndepth = true # no", "expected an integer, found boolean true", 3, "true", "engine.depth"),
    ("[engine]\ndepth = 7", "must be between 0 and 1, found 7", 3, "7", "engine.depth"),
    ("[engine]\ndetph = 1", "unknown key `detph`", 3, "detph", "engine.detph"),
    ('[engine]\n"depht" = 1', "unknown key `depht`", 3, '"depht"', "engine.depht"),
    ("engine.depth = []", "expected an integer, found array []", 2, "[]", "engine.depth"),
    ("engine . 'dpeth' = 1", "unknown key `dpeth`", 2, "'dpeth'", "engine.dpeth"),
    ("engine = { depth = 2020-01-01 }", "expected an integer, found date", 2, "2020-01-01", "engine.depth"),
    ("engine = { depth = 0, sede = 3 }", "unknown key `sede`", 2, "sede", "engine.sede"),
    ("engine = 3", "expected a table, found integer 3", 2, "3", "engine"),
    ("[[engine]]\ndepth = 1", "expected a table, found array", 2, "engine", "engine"),
    ('[engine]\nkv_memory = "2 Gibs"', "expected a size", 3, '"2 Gibs"', "engine.kv_memory"),
    ("[engine]\nkv_memory = 0", "above 0", 3, "0", "engine.kv_memory"),
    ("[engine]\nthreads = 0", 'a positive integer or "auto"', 3, "0", "engine.threads"),
    ('[engine]\nverification = "exact"', 'one of "match", "rejection"', 3, '"exact"', "engine.verification"),
    ("[engine]\ndevice = 0", "expected a string, found integer 0", 3, "0", "engine.device"),
    ("[modle]\npath = 'x'", "nobody claims the table `modle`", 2, "modle", "modle"),
    ("[a.b]\nc = 1", "nobody claims the table `a`", 2, "b", "a"),
    ("[scheduler]\npluign = 'a'\nplugin = 'a'", "unknown key `pluign`", 3, "pluign", "scheduler.pluign"),
    ("[scheduler]\nplugin = 'a'\neviction = 1", "unknown key `eviction`", 4, "eviction", "scheduler.eviction"),
    ("[scheduler]\noptions = {}", "`plugin` is missing", 2, "scheduler", "scheduler"),
    ("scheduler = 4", "expected a plugin's name or a table", 2, "4", "scheduler"),
    ("scheduler = { plugin = ['a'] }", "expected a name, found array", 2, "['a']", "scheduler"),
    ("scheduler = { plugin = 'a', options = 'b' }", "expected a table", 2, "'b'", "scheduler.options"),
    ("[kv.codec]\nplugin = 'a'\non_unsupported = 'warn'", '"error" or "fallback"', 4, "'warn'", "on_unsupported"),
    ("kv = 'paged'", "expected a table, found string 'paged'", 2, "'paged'", "kv"),
    ("[kv.allocatr]\nplugin = 'a'", "unknown key `allocatr`", 2, "allocatr", "kv.allocatr"),
    ("kv.tiers = 'host'", "expected an array, found string 'host'", 2, "'host'", "kv.tiers"),
    ("[[kv.tiers]]\nplugin = 'a'\n[[kv.tiers]]\nplugin = 5", "expected a name", 5, "5", "kv.tiers.1"),
    ("[[kv.tiers]]\nplugin = 'a'\n[[kv.tiers]]\nx = 5\nplugin = 'b'", "unknown key `x`", 5, "x", "kv.tiers.1.x"),
    ("observers = [\n  'a', # one\n  7,\n]", "expected a plugin's name", 4, "7", "observers.1"),
    ("observers = [\n  'a',\n  { plugn = 'b', plugin = 'c' },\n]", "unknown key `plugn`", 4, "plugn", "observers.1"),
    ("[attention.decode]\nplugin = 'a'", "attention.prefill is missing", 2, "decode", "attention"),
    ("[attention]\ndecode = 'a'\nprefill = 'a'\nverify = 'a'", "unknown key `verify`", 5, "verify", "attention.verify"),
    ("[engine]\n\tdepth =\t'a'", "expected an integer", 3, "'a'", "engine.depth"),
    ('[engine]\ndevice = """\na"""\ndepth = "b"', "expected an integer", 5, '"b"', "engine.depth"),
    ("serve.port = '1'", "expected an integer", 2, "'1'", "serve.port"),
    ("serve.ratio = 'a'", "expected a number", 2, "'a'", "serve.ratio"),
    ("serve.keys = { env = 'X' }", "expected an array, found table", 2, "{ env = 'X' }", "serve.keys"),
    ("serve.inner = [{ name = 'a' }, {\tname = 1 }]", "expected a string", 2, "1", "serve.inner.1.name"),
    ("serve.inner = [{}]", "missing key `name`", 2, "{", "serve.inner.0"),
    ("serve.inner = ['a']", "expected a table, found string 'a'", 2, "'a'", "serve.inner.0"),
    ("[[serve.inner]]\nname = 'a'\nports = [\n1,\n'2']", "expected an integer", 6, "'2'", "serve.inner.0.ports.1"),
    ("[serve.labels]\n'a b' = 1\n\"c.d\" = 'x'", "expected an integer", 4, "'x'", "serve.labels.c.d"),
    ("[engine]\ndepth = ", "invalid TOML", 3, "", ""),
    ("[engine\ndepth = 1", "invalid TOML", 2, "", ""),
    ("a = 1\na = 2", "invalid TOML", 3, "", ""),
    ("a = 'open", "invalid TOML", 3, "", ""),  # what `tomllib` says of a literal string: where the line has ended
]


@pytest.mark.parametrize("line_end", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize(("text", "message", "line", "caret", "key"), MALFORMED)
def test_a_malformed_profile_is_shown_where_it_is_wrong(
    tmp_path: Path, text: str, message: str, line: int, caret: str, key: str, line_end: str
) -> None:
    whole = f"schema = 1\n{text}\n".replace("\n", line_end)
    found = problems(tmp_path, whole, claims={"serve": Serve})
    assert len(found) == 1, found
    problem = found[0]
    assert message in problem.message
    assert problem.place.line == line
    assert problem.key.startswith(key) or problem.key.endswith(key)
    assert problem.place.text == whole.split(line_end)[line - 1]
    if key:
        assert marked(problem) == caret
        assert f"{tmp_path / 'p.toml'}:{line}:" in problem.render()


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("[engine]\nmax_sequence = 1", "max_sequences"),
        ("[enigne]", "engine"),
        ("[scheduler]\nplugin = 'a'\noption = {}", "options"),
        ("kv.codecs = 'a'", "codec"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_name(tmp_path: Path, wrong: str, right: str) -> None:
    (problem,) = problems(tmp_path, f"schema = 1\n{wrong}\n")
    assert problem.help == f"did you mean `{right}`?"


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    text = """
    [engine]
    depth = 9
    max_sequences = "many"
    max_waiting = 0
    page_tokes = 1
    [scheduler]
    [kv]
    codec = 1
    tiers = [1, 2]
    [unclaimed]
    [serve]
    port = "x"
    inner = [{ name = 1, nmae = 2 }, 3]
    """
    keys = [problem.key for problem in problems(tmp_path, text, claims={"serve": Serve})]
    expected = """
        engine.depth engine.max_sequences engine.max_waiting engine.page_tokes scheduler
        kv.codec kv.tiers.0 kv.tiers.1 unclaimed serve.port serve.inner.0.name serve.inner.0.nmae serve.inner.1
    """
    assert sorted(keys) == sorted(["", *expected.split()])  # one, of the missing schema, has no key


def test_problems_of_files_and_overrides_come_together(tmp_path: Path) -> None:
    with pytest.raises(ProfileProblems) as caught:
        load(tmp_path, "extends = 'none.toml'\n", sets=["nonsense", "kv.tiers.0=x=y"], environment={})
    assert "none.toml cannot be read" in str(caught.value)
    assert "section.key=value" in str(caught.value)


def test_a_problem_of_an_override_names_the_override(tmp_path: Path) -> None:
    variable = problems(tmp_path, "schema = 1\n", environment={"TOKLOOM__ENGINE__DEPTH": "x"})
    assert "--> environment variable TOKLOOM__ENGINE__DEPTH, in `engine.depth`" in variable[0].render()
    by_set = problems(tmp_path, "schema = 1\n[engine]\ndepth = 0\n", sets=["engine.depth=x"])
    assert "--> --set engine.depth=x, in `engine.depth`" in by_set[0].render()
    through_text = problems(tmp_path, "schema = 1\n[engine]\ndevice = 'cpu'\n", sets=["engine.device.index=0"])
    assert "--set engine.device.index=0" in through_text[0].render()


@pytest.mark.parametrize("schema", ["", "schema = 2", "schema = 1.0", "schema = true", "schema = '1'", "schema = [1]"])
def test_any_schema_but_the_known_one_is_refused(tmp_path: Path, schema: str) -> None:
    (problem,) = problems(tmp_path, f"{schema}\n")
    assert "schema" in problem.message


def test_extends_cannot_come_from_an_override(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "schema = 1\n", environment={"TOKLOOM__EXTENDS": "builtin:cpu"})
    assert "extends cannot be overridden" in problem.render()


@pytest.mark.parametrize("path", ["", "missing.toml", "nul\\u0000.toml", "x" * 5000, ".", "p.toml/x"])
def test_a_base_that_cannot_be_read_is_a_problem_of_the_line_that_names_it(tmp_path: Path, path: str) -> None:
    (problem,) = problems(tmp_path, f'schema = 1\nextends = "{path}"\n')
    assert (problem.place.line, problem.key) == (2, "extends")
    assert f'"{path}"'.startswith(marked(problem))
    assert len(marked(problem)) > min(len(path), 70)


def test_an_unknown_builtin_is_answered_with_the_nearest_one(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, 'schema = 1\nextends = "builtin:cpu-int"\n')
    assert problem.help == "did you mean builtin:cpu-int8?"
    assert problem.place.line == 2


def test_extends_is_relative_to_the_file_that_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    write(tmp_path, "schema = 1\n[engine]\ndepth = 1\n", "base.toml")
    write(tmp_path / "deep", 'schema = 1\nextends = "../base.toml"\n', "middle.toml")
    monkeypatch.chdir("/")
    assert load(tmp_path, 'extends = "deep/middle.toml"\n').engine.depth == 1


def test_a_cycle_shows_the_whole_chain(tmp_path: Path) -> None:
    write(tmp_path, 'schema = 1\nextends = "b.toml"\n', "a.toml")
    write(tmp_path, 'schema = 1\nextends = "c.toml"\n', "b.toml")
    write(tmp_path, 'schema = 1\nextends = "./a.toml"\n', "c.toml")
    with pytest.raises(ProfileProblems) as caught:
        load_profile(tmp_path / "a.toml", environment={})
    (problem,) = caught.value.problems
    a, b, c = (str(tmp_path / f"{name}.toml") for name in "abc")
    assert f"{a} -> {b} -> {c} -> {a}" in problem.message
    assert (problem.place.source, problem.place.line) == (c, 2)


def test_a_link_that_leads_to_itself_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "loop.toml").symlink_to(tmp_path / "loop.toml")
    with pytest.raises(ProfileError, match="cannot be read"):
        load_profile(tmp_path / "loop.toml", environment={})


def test_an_error_in_a_base_is_shown_in_the_base(tmp_path: Path) -> None:
    base = write(tmp_path, "schema = 1\n[engine]\ndepth = 'x'\n", "base.toml")
    (problem,) = problems(tmp_path, 'schema = 1\nextends = "base.toml"\n')
    assert problem.place.source == str(base)
    assert problem.place.line == 3


def test_a_file_that_is_not_text_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_bytes(b"schema = 1\n# \xff\n")
    with pytest.raises(ProfileError, match="not UTF-8 at byte 13"):
        load_profile(path, environment={})


@pytest.mark.parametrize(
    "text",
    [".".join("a" * 3000) + " = 1", "a = " + "[" * 3000 + "]" * 3000, "a = " + "[" * 90 + "]" * 90, "[[" * 2000],
    ids=["dotted", "arrays", "moderate", "headers"],
)
def test_nesting_without_end_is_a_problem_and_no_crash(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path, f"schema = 1\n{text}\n")


def test_overrides_and_mappings_nested_without_end_are_problems(tmp_path: Path) -> None:
    assert problems(tmp_path, "schema = 1\n", sets=[".".join("a" * 3000) + "=1"])
    assert problems(tmp_path, "schema = 1\n", sets=["a=" + "[" * 200 + "]" * 200])
    endless: dict[str, object] = {"schema": 1}
    endless["x-a"], endless["x-b"] = endless, endless
    with pytest.raises(ProfileError, match="nested"):
        load_profile(endless, environment={})


def test_secrets_written_in_a_profile_are_refused_and_never_shown(tmp_path: Path) -> None:
    texts = [
        "[serve]\napi_key = 'hush-hush'\n",
        "serve = { port = 'x', api_key = 'hush-hush', prot = 1 }\n",
        "[serve]\nkeys = [{ env = 'A' }, 'hush-hush']\n",
        "[serve]\napi_key = { env = 'A', value = 'hush-hush' }\n",
        "[serve]\napi_key = '''hush-hush\nhush-hush'''\n",
    ]
    for text in texts:
        with pytest.raises(ProfileProblems) as caught:
            load(tmp_path, text, claims={"serve": Serve})
        assert "secrets are never written in a profile" in str(caught.value)
        for shown in (str(caught.value), repr(caught.value), caught.value.subject, caught.value.remedy):
            assert "hush" not in shown
    for sets, environment in ((["serve.api_key=hush"], {}), ([], {"TOKLOOM__SERVE__API_KEY": "hush"})):
        with pytest.raises(ProfileProblems) as caught:
            load(tmp_path, "", sets=sets, environment=environment, claims={"serve": Serve})
        assert "hush" not in str(caught.value) + caught.value.subject


def test_a_secret_is_revealed_on_request_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "from-file\n", "key")
    text = f"[serve]\napi_key = {{ env = 'KEY_FOR_TEST' }}\nkeys = [{{ file = '{path}' }}]\n"
    serve = load(tmp_path, text, claims={"serve": Serve}).claims["serve"]
    monkeypatch.setenv("KEY_FOR_TEST", "from-variable")
    assert serve.api_key.reveal() == "from-variable"
    assert serve.keys[0].reveal() == "from-file"
    assert "from-variable" not in repr(serve) + str(serve)
    monkeypatch.delenv("KEY_FOR_TEST")
    with pytest.raises(ProfileError, match="KEY_FOR_TEST is not set"):
        serve.api_key.reveal()
    path.write_bytes(b"\xffhush")
    with pytest.raises(ProfileError) as caught:
        serve.keys[0].reveal()
    assert "hush" not in str(caught.value)


def test_a_front_end_owns_the_table_it_claims(tmp_path: Path) -> None:
    profile = load(tmp_path, "[serve]\nport = 1\n", claims={"serve": Serve})
    assert profile.claims["serve"] == Serve(port=1)
    assert load(tmp_path, "", claims={"serve": Serve}).claims["serve"] == Serve()
    with pytest.raises(ProfileProblems, match="nobody claims the table `serve`"):
        load(tmp_path, "[serve]\nport = 1\n")
    path = write(tmp_path, "schema = 1\n[serve]\nport = 'anything'\n")
    assert load_profile(path, environment={}, ignore=("serve",)).claims == {}
