"""Adapters in a composition: refused where the family takes none, explained with their memory, locked by digest."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from compose_parts import Composed, changed, compose

from tokloom.core.compose import check_lock, make_lock
from tokloom.core.profile import ProfileProblems


def composed(folder: Path, *, content: str = "red", **sections: Any) -> Composed:
    (folder / "r").write_text(content)
    return compose(adapters={"red": str(folder / "r"), "rouge": str(folder / "r")}, **sections)


def test_explain_shows_rank_targets_and_memory(tmp_path: Path) -> None:
    made = composed(tmp_path)
    digest = hashlib.sha256(b"red").hexdigest()[:12]
    for name in ("red", "rouge"):
        assert f"  adapter {name:10} 8 B: rank 3, tag, digest {digest}" in made.text.split("\n")
    assert "adapter" not in compose().text


def test_the_lock_holds_digests(tmp_path: Path) -> None:
    old = composed(tmp_path)
    text = make_lock(old.composer, old.composition)
    assert check_lock(text, old.composer, old.composition, "lock") == []
    new = composed(tmp_path, content="blue")
    (first, second) = check_lock(text, new.composer, new.composition, "lock")
    assert first.startswith("adapter.red.digest was '")
    assert second.startswith("adapter.rouge.digest was '")
    assert "adapter is gone" in check_lock(text, *_bare(), "lock")


def _bare() -> tuple[Any, Any]:
    made = compose()
    return made.composer, made.composition


def test_graphs_are_given_up_where_adapters_run(tmp_path: Path) -> None:
    made = composed(tmp_path, engine__graphs="on")
    assert "graphs are not used for steps in which a sequence uses an adapter" in made.text


def test_a_family_without_the_capability_is_refused_at_each_line(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("red")
    with pytest.raises(ProfileProblems) as caught:
        compose(
            changed("model", "tagged", called="bare", adapters=False),
            model={"path": "tagged", "plugin": "bare"},
            adapters={"a": str(tmp_path / "r"), "b": str(tmp_path / "r")},
        )
    assert [problem.key for problem in caught.value.problems] == ["adapters.a", "adapters.b"]
    assert "model.bare takes no adapters" in caught.value.problems[0].message
