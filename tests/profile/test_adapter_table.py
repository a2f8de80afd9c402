"""`[adapters]`: names and paths, checked where they stand."""

from pathlib import Path

import pytest
from profile_files import load, problems


def test_names_and_paths_are_read_with_their_places(tmp_path: Path) -> None:
    profile = load(tmp_path, '[adapters]\nred = "r"\n"v1.2:b" = "b"\n', sets=["adapters.green=g"])
    found = {section.name: (section.path, section.place.line) for section in profile.adapters}
    assert found == {"red": ("r", 3), "v1.2:b": ("b", 4), "green": ("g", 0)}
    assert load(tmp_path, "").adapters == ()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("red = 3", "expected a path, found integer 3"),
        ('red = ""', "expected a path, found string ''"),
        ('red = ["a"]', "expected a path, found array"),
        ('red = { path = "a" }', "expected a path, found table"),
        ('"" = "a"', "'' cannot name an adapter"),
        ('"a b" = "a"', "'a b' cannot name an adapter"),
        ('".a" = "a"', "'.a' cannot name an adapter"),
        (f'{"a" * 129} = "a"', "cannot name an adapter"),
    ],
)
def test_what_is_wrong_is_shown_at_its_line(tmp_path: Path, line: str, message: str) -> None:
    (problem,) = problems(tmp_path, f"schema = 1\n[adapters]\nfine = 'x'\n{line}\n")
    assert message in problem.message
    assert problem.place.line == 4


def test_it_is_a_table(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "schema = 1\nadapters = ['a']\n")
    assert (problem.key, problem.place.line) == ("adapters", 2)
    assert "expected a table" in problem.message
