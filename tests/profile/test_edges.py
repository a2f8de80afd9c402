"""What a profile must not get away with, and what must never escape as another error."""

import contextlib
import enum
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
from attrs import Attribute, field, frozen, validators
from hypothesis import given, settings
from hypothesis import strategies as st

from tokloom.core.profile import Profile, ProfileProblems, Secret, load_profile
from tokloom.sdk import ProfileError

BOTH = '[attention.decode]\nplugin = "a"\noptions = { x = 1 }\n[attention.prefill]\nplugin = "b"\n'


class Colour(enum.Enum):
    RED = "red"


def _below_high(options: "Front", _: "Attribute[int]", value: int) -> None:
    if value > options.high:
        raise ValueError(f"must not be above high, which is {options.high}")


@frozen
class Inner:
    rate: float = 1.0
    names: tuple[str, ...] = ()


def _upper(text: str) -> str:
    return text.upper()


@frozen
class Front:
    low: int = field(default=0, validator=[validators.ge(0), _below_high])
    high: int = field(default=9, validator=validators.le(9))
    key: Secret | None = None
    inner: Inner = Inner()
    many: tuple[Inner, ...] = ()
    pair: tuple[int, str] = (0, "")
    table: dict[str, int] = field(factory=dict)
    mode: Literal["fast", "exact"] | int = "fast"
    colour: Colour = Colour.RED
    shouted: str = field(default="", converter=_upper)


def load(source: Any, **options: Any) -> Profile:
    return load_profile(source, environment=options.pop("environment", {}), **options)


def write(folder: Path, text: str, name: str = "p.toml") -> Path:
    path = folder / name
    path.write_bytes(f"schema = 1\n{text}".encode())
    return path


def front(folder: Path, text: str, **options: Any) -> Front:
    return load(write(folder, f"[front]\n{text}"), claims={"front": Front}, **options).claims["front"]  # type: ignore[no-any-return]


def refused(source: Any, **options: Any) -> ProfileProblems:
    with pytest.raises(ProfileProblems) as caught:
        load(source, **options)
    return caught.value


# -- options -----------------------------------------------------------------------------------------------------------


def test_options_of_every_shape_are_read(tmp_path: Path) -> None:
    text = 'low = 3\nkey = { env = "K" }\ninner = { rate = 2, names = ["a"] }\nmany = [{}, { rate = 0.5 }]\n'
    text += 'pair = [1, "b"]\ntable = { a = 1 }\nmode = 4\ncolour = "red"\nshouted = "abc"\n'
    got = front(tmp_path, text)
    assert got.inner == Inner(2.0, ("a",))
    assert isinstance(got.inner.rate, float)
    assert got.many == (Inner(), Inner(0.5))
    assert (got.pair, got.table, got.mode, got.colour, got.shouted) == ((1, "b"), {"a": 1}, 4, Colour.RED, "ABC")


WRONG: dict[str, tuple[str, str, str]] = {
    "text is no array": ('inner = { names = "abc" }', '"abc"', "expected an array, found string 'abc'"),
    "a table is no array": ("inner = { names = { a = 1 } }", "{ a = 1 }", "expected an array"),
    "an array is no table": ("table = [1]", "[1]", "expected a table"),
    "an item's type": ('inner = { names = ["a", 2] }', "2", "expected a string, found integer 2"),
    "a key in an item": ("many = [{}, { rte = 1 }]", "rte", "unknown key `rte`"),
    "the length of a pair": ("pair = [1]", "[1]", "expected 2 items, found 1"),
    "a value in a table": ('table = { a = 1, b = "c" }', '"c"', "expected an integer"),
    "a choice or a type": ('mode = "fats"', '"fats"', 'expected one of "fast", "exact", found string'),
    "true is no integer": ("low = true", "true", "expected an integer, found boolean true"),
    "one is not 1.0": ("low = 1.0", "1.0", "expected an integer, found float"),
    "text of digits": ('low = "3"', '"3"', "expected an integer, found string '3'"),
    "a number for text": ("shouted = 3", "3", "expected a string, found integer 3"),
    "a bound": ("high = 10", "10", "must be <= 9: 10"),
    "two fields that disagree": ("low = 8\nhigh = 7", "8", "must not be above high, which is 7"),
    "an enumeration": ('colour = "blue"', '"blue"', "blue"),
    "a date": ("low = 1979-05-27", "1979-05-27", "expected an integer, found date"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_option_is_marked_itself(tmp_path: Path, case: str) -> None:
    text, marked, message = WRONG[case]
    with pytest.raises(ProfileProblems) as caught:
        front(tmp_path, text)
    (problem,) = caught.value.problems
    shown = problem.render()
    assert message in shown, shown
    place = problem.place
    column, width = (place.key_column, place.key_width) if problem.at_key else (place.column, place.width)
    assert place.text[column - 1 : column - 1 + width] == marked, shown


def test_one_mistake_does_not_hide_another(tmp_path: Path) -> None:
    text = 'low = -1\nhigh = 10\nbogus = 1\ninner = { rate = "x", nmes = 1 }\nmany = [{ rate = 1 }, 3]\n'
    with pytest.raises(ProfileProblems) as caught:
        front(tmp_path, text)
    keys = sorted(problem.key for problem in caught.value.problems)
    assert keys == ["front.bogus", "front.high", "front.inner.nmes", "front.inner.rate", "front.low", "front.many.1"]


# -- sections ----------------------------------------------------------------------------------------------------------


def test_a_fallback_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    text = '[scheduler]\nplugin = "a"\non_unsupported = "fallback"\n'
    assert "nothing can be left out here" in str(refused(write(tmp_path, text)))
    load(write(tmp_path, '[speculation]\nplugin = "a"\non_unsupported = "fallback"\n'))


def test_attention_for_both_phases_replaces_a_base_with_two(tmp_path: Path) -> None:
    write(tmp_path, BOTH, "base.toml")
    for text in ('attention = "c"\n', '[attention]\nplugin = "c"\n'):
        profile = load(write(tmp_path, 'extends = "base.toml"\n' + text))
        assert {path: section.plugin for path, section in profile.sections.items()} == {"attention": "c"}
    for override in ("attention=c", "attention.plugin=c"):
        profile = load(tmp_path / "base.toml", sets=[override])
        assert {path: section.plugin for path, section in profile.sections.items()} == {"attention": "c"}


def test_two_phases_replace_a_base_with_one_and_one_phase_leaves_the_other(tmp_path: Path) -> None:
    write(tmp_path, '[attention]\nplugin = "c"\noptions = { y = 1 }\n', "base.toml")
    both = load(write(tmp_path, 'extends = "base.toml"\n' + BOTH)).sections
    assert (both["attention.decode"].plugin, both["attention.prefill"].plugin) == ("a", "b")
    one = load(write(tmp_path, 'extends = "base.toml"\nattention.decode = "d"\n')).sections
    assert (one["attention.decode"].plugin, one["attention.prefill"].plugin) == ("d", "c")
    assert one["attention.prefill"].options.plain() == {"y": 1}


def attention(source: Any, **options: Any) -> dict[str, str]:
    """Which kernel each section of attention names."""
    return {path: section.plugin for path, section in load(source, **options).sections.items()}


def test_two_phases_replace_one_kernel_however_either_is_written(tmp_path: Path) -> None:
    both = {"attention.decode": "a", "attention.prefill": "b"}
    for base in ('attention = "c"\n', '[attention]\nplugin = "c"\noptions = { y = 1 }\n'):
        path = write(tmp_path, base, "base.toml")
        assert attention(write(tmp_path, 'extends = "base.toml"\n' + BOTH)) == both
        assert attention(path, sets=["attention.decode=a", "attention.prefill.plugin=b"]) == both
        environment = {"TOKLOOM__ATTENTION__PREFILL": "b"}
        assert attention(path, environment=environment, sets=["attention.decode=a"]) == both
        assert attention(path, sets=["attention={ decode = 'a', prefill = 'b' }"]) == both


def test_one_kernel_with_a_phase_of_its_own_replaces_both_phases(tmp_path: Path) -> None:
    write(tmp_path, BOTH, "base.toml")
    path = write(tmp_path, 'extends = "base.toml"\n[attention]\nplugin = "c"\ndecode = "d"\n')
    assert attention(path) == {"attention.decode": "d", "attention.prefill": "c"}
    assert attention(path, sets=["attention.prefill=e"]) == {"attention.decode": "d", "attention.prefill": "e"}
    assert attention(path, sets=["attention=e"]) == {"attention": "e"}


def test_options_of_a_phase_can_be_overridden_alone(tmp_path: Path) -> None:
    sections = load(write(tmp_path, BOTH), sets=["attention.decode.options.x=2"]).sections
    assert sections["attention.decode"].options.plain() == {"x": 2}
    assert sections["attention.prefill"].options.plain() == {}


def test_attention_beside_both_phases_would_mean_nothing(tmp_path: Path) -> None:
    text = '[attention]\nplugin = "z"\n' + BOTH
    assert "`plugin` beside both phases has no effect" in str(refused(write(tmp_path, text)))
    text = str(refused(write(tmp_path, BOTH), sets=["attention.options.x=1"]))
    assert "`options` beside both phases has no effect" in text


# -- overrides ---------------------------------------------------------------------------------------------------------


def test_the_index_after_the_last_appends() -> None:
    profile = load({"schema": 1}, sets=["kv.tiers.0.plugin=a", "kv.tiers.1=b", "kv.tiers.1.options.x=2"])
    assert [(tier.plugin, tier.options.plain()) for tier in profile.tiers] == [("a", {}), ("b", {"x": 2})]


@pytest.mark.parametrize("override", ["engine", "=1", "engine..depth=1", "extends=builtin:cpu", "a." * 40 + "b=1"])
def test_an_override_that_means_nothing_is_refused(override: str) -> None:
    refused({"schema": 1}, sets=[override])


# -- rendering ---------------------------------------------------------------------------------------------------------


def test_carets_stand_below_tabs_and_wide_characters(tmp_path: Path) -> None:
    shown = str(refused(write(tmp_path, '[engine]\n\tdepth =\t"x"\n')))
    assert '3 | \tdepth =\t"x"\n  | \t       \t^^^' in shown
    shown = str(refused(write(tmp_path, 'x-a = { "漢字" = 1 }\n"字" = 1\n')))
    assert '3 | "字" = 1\n  | ^^^^' in shown
    shown = str(refused(write(tmp_path, 'engine = { "漢字" = 0, depth = "é́" }\n')))
    before = len("engine = { ") + len('"----"') + len(" = 0, depth = ")
    assert f"\n  | {' ' * before}^^^ in `engine.depth`" in shown, "the accent takes no column of its own"


def test_a_long_line_is_shown_around_its_mistake(tmp_path: Path) -> None:
    filler = ", ".join(f"k{index} = 0" for index in range(200))
    shown = str(refused(write(tmp_path, f"engine = {{ depth = 0, bogus = 1, x = {{ {filler} }} }}\n")))
    line, carets = next((a, b) for a, b in pairwise(shown.split("\n")) if "^" in b)
    assert len(line) < 200
    assert line[carets.index("^") : carets.rindex("^") + 1] == "bogus"
    late = str(refused(write(tmp_path, f"engine = {{ y = {{ {filler} }}, depth = true }}\n")))
    pairs = [(a, b) for a, b in pairwise(late.split("\n")) if "^" in b]
    assert any(a[b.index("^") : b.rindex("^") + 1] == "true" for a, b in pairs), late


def test_carets_end_where_a_long_line_is_cut(tmp_path: Path) -> None:
    shown = str(refused(write(tmp_path, f'engine.depth = "{"x" * 500}" # {"y" * 500}\n'))).split("\n")
    line, carets = next((a, b) for a, b in pairwise(shown) if "^" in b)
    assert line.endswith("x...")
    assert len(carets.partition(" in ")[0]) == len(line) - 3
    assert carets.index("^") == line.index('"')


def test_a_byte_order_mark_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_bytes(b"\xef\xbb\xbfschema = 1\n")
    assert "byte order mark" in str(refused(path))


# -- nothing else escapes ----------------------------------------------------------------------------------------------

HOSTILE = ["[" * 5000, "[" * 450 + "]" * 450, "9" * 5000, '"\\ud800"', "{a." + "b." * 400 + "c=1}", "\0", "\ud800"]


@pytest.mark.parametrize("value", HOSTILE, ids=[f"hostile{index}" for index in range(len(HOSTILE))])
def test_hostile_values_are_text_or_refused(tmp_path: Path, value: str) -> None:
    with contextlib.suppress(ProfileError):
        load({"schema": 1}, sets=[f"engine.depth={value}"])
    with contextlib.suppress(ProfileError):
        load({"schema": 1}, environment={"TOKLOOM__ENGINE__DEPTH": value})
    with contextlib.suppress(ProfileError):
        path = tmp_path / "p.toml"
        path.write_bytes(f"schema = 1\nengine.depth = {value}\n".encode("utf-8", "surrogatepass"))
        load(path)


@pytest.mark.parametrize("name", ["a\0b", "\udc80", "", "/", "builtin:", "builtin:../cpu", "builtin:\0"])
def test_names_that_are_no_files_are_refused(name: str, tmp_path: Path) -> None:
    assert "\0" not in str(refused(name))
    refused({"schema": 1, "extends": name or "\0"})


PIECES = ["schema = 1\n", "extends = ", '"builtin:cpu"', "[engine]\n", "[[kv.tiers]]\n", "[kv]\n", "depth", "plugin"]
PIECES += [" = ", '"a"', "{", "}", "[", "]", ",", "\n", "#", "'''", '"""', "options", "\t", "1", "true", "attention."]
PIECES += ["[attention.decode]\n", "on_unsupported = ", '"fallback"', "\r\n", "observers = ", "0", "漢"]
TOML_TEXT = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=25).map("".join)


@settings(max_examples=300, deadline=None)
@given(text=TOML_TEXT, override=TOML_TEXT, value=TOML_TEXT)
def test_random_text_only_ever_gives_profile_errors(
    tmp_path_factory: pytest.TempPathFactory, text: str, override: str, value: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "random.toml"
    path.write_bytes(text.encode("utf-8", "replace"))
    with contextlib.suppress(ProfileError):
        load(path, claims={"front": Front})
    with contextlib.suppress(ProfileError):
        load({"schema": 1}, sets=[f"{override}={value}", f"engine.depth={value}", f"kv.tiers.0.{override}={value}"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(
    values=st.dictionaries(
        st.sampled_from(["engine", "model", "kv", "attention", "scheduler", "observers", "logits", "front", "extends"]),
        JSON | st.dictionaries(st.sampled_from(["plugin", "options", "decode", "prefill", "tiers", "depth"]), JSON),
    )
)
def test_random_mappings_only_ever_give_profile_errors(values: dict[str, Any]) -> None:
    with contextlib.suppress(ProfileError):
        load({"schema": 1, **values}, claims={"front": Front})
