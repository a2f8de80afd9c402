"""Locks: equal for equal compositions; every kind of difference is named."""

import tomllib
from collections.abc import Callable
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import attrs
import pytest
from attrs import field, frozen
from compose_parts import AnyOffer, Composed, codec, compose, kernel, layer, model, offer, profile, raising

from tokloom.conformance.doubles import offers
from tokloom.core.catalog import Catalog
from tokloom.core.compose import Composer, check_lock, make_lock
from tokloom.core.profile import Secret, load_profile
from tokloom.sdk import ConnectorCaps, ContractVersion, ObserverCaps, ProfileError

Extra = tuple[AnyOffer, ...]


@frozen
class Options:
    size: int = 3
    note: str = ""
    key: Secret = field(default=Secret(env="TL_A"))


def watcher(**changes: Any) -> AnyOffer:
    return attrs.evolve(
        offer("observer", "watch", ObserverCaps(), lambda options, context: object(), Options), **changes
    )


def parts(**spec: Any) -> Extra:
    chosen = {"layers": [layer(0), layer(1, window=8)], "digest": "d", **spec}
    return (
        model(chosen.pop("layers"), **chosen),
        codec("c"),
        kernel("k", features=frozenset({"window", "segments"})),
        watcher(),
    )


BASE: dict[str, Any] = {"model__path": "inline", "kv__codec": "c", "attention": "k", "observers": ["watch"]}


def base(*extra: AnyOffer, **sections: Any) -> Composed:
    return compose(*(extra or parts()), **{**BASE, **sections})


def lock(made: Composed) -> str:
    return make_lock(made.composer, made.composition)


def differences(old: Composed, new: Composed) -> list[str]:
    return check_lock(lock(old), new.composer, new.composition, "lock.toml")


def test_two_locks_of_the_same_are_equal_and_agree() -> None:
    assert lock(base()) == lock(base())
    assert differences(base(), base()) == []


def test_a_lock_holds_what_the_composition_is_made_of() -> None:
    held = tomllib.loads(lock(base()))
    assert held["model"] == {"name": "inline", "digest": "d", "dtype": "float32", "chat_template": ""}
    assert held["engine"]["max_batch_tokens"] == 32
    assert held["engine"]["kv_memory"] == 1 << 20
    assert held["engine"]["graphs"] == "auto"
    assert held["group"]["1"]["window"] == 8
    assert held["group"]["1"]["layers"] == [1]
    assert held["plugin"]["observers.0"]["option"]["size"] == "3"
    assert held["plugin"]["kv.codec"]["contract"] == "0.1"
    assert held["distribution"]["local"] == {"version": "0", "hash": "local"}
    assert len(held["namespace"]["digest"]) == 64


def other_contract() -> Extra:
    *rest, _ = parts()
    return (*rest, watcher(contract=ContractVersion(0, 0)))


#: what is different -> (what to compose now, texts that must be among the differences)
CHANGES: dict[str, tuple[Callable[[], Composed], list[str]]] = {
    "model name": (lambda: base(*parts(name="other")), ["model.name was 'inline' and is 'other'"]),
    "model digest": (
        lambda: base(*parts(digest="e")),
        ["model.digest was 'd' and is 'e'", "namespace.digest was "],
    ),
    "dtype": (lambda: base(*parts(dtype="float16")), ["model.dtype was 'float32' and is 'float16'"]),
    "page size": (
        lambda: base(engine__page_tokens=8),
        ["engine.page_tokens was 4 and is 8", "group.0.page_tokens was 4 and is 8", "group.0.format was 'kv-float32-4"],
    ),
    "window": (
        lambda: base(*parts(layers=[layer(0), layer(1, window=9)])),
        ["group.1.window was 8 and is 9", "namespace.digest"],
    ),
    "layers": (
        lambda: base(*parts(layers=[layer(0), layer(1, window=8), layer(2)])),
        ["group.0.layers was [0] and is [0, 2]"],
    ),
    "groups": (lambda: base(*parts(layers=[layer(0), layer(1)])), ["group.1 is gone", "group.0.layers"]),
    "lookahead": (
        lambda: base(*parts(layers=[layer(0), layer(1, window=8, key_lookahead=1)])),
        ["group.1.key_lookahead was 0 and is 1"],
    ),
    "engine": (lambda: base(engine__max_batch_tokens=16), ["engine.max_batch_tokens was 32 and is 16"]),
    "memory": (lambda: base(engine__kv_memory="2MiB"), ["engine.kv_memory was 1048576 and is 2097152"]),
    "depth": (lambda: base(engine__depth=1), ["engine.depth was 0 and is 1"]),
    "auto": (
        lambda: base(sets=["engine.max_model_tokens=auto"]),
        ["engine.max_model_tokens was 120 and is 'auto'"],
    ),
    "plugin": (
        lambda: base(scheduler="chaos"),
        ["plugin.scheduler.name was 'plain' and is 'chaos'", "plugin.scheduler.option is new"],
    ),
    "option": (
        lambda: base(observers=[{"plugin": "watch", "options": {"size": 4}}]),
        ["plugin.observers.0.option.size was '3' and is '4'"],
    ),
    "contract": (lambda: base(*other_contract()), ["plugin.observers.0.contract was '0.1' and is '0.0'"]),
    "more plugins": (lambda: base(kv__tiers=["slow"]), ["plugin.kv.tiers.0 is new"]),
    "fewer plugins": (lambda: base(observers=[]), ["plugin.observers.0 is gone"]),
    "speculation": (lambda: base(speculation="garbage"), ["plugin.speculation is new"]),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_difference_is_named(case: str) -> None:
    make, wanted = CHANGES[case]
    found = differences(base(), make())
    for text in wanted:
        assert any(row.startswith(text) for row in found), found
    assert all(" was " in row or row.endswith((" is new", " is gone")) for row in found)


def test_nothing_but_the_difference_is_named() -> None:
    assert differences(base(), base(engine__depth=1)) == ["engine.depth was 0 and is 1"]
    assert differences(base(), base(scheduler="refusing")) == [
        "plugin.scheduler.name was 'plain' and is 'refusing'",
    ]


def test_a_plugin_that_was_left_out_is_a_difference() -> None:
    section = [{"plugin": "t", "on_unsupported": "fallback"}]
    there = offer("connector", "t", ConnectorCaps(), lambda options, context: object())
    broken = raising("connector", "t", ConnectorCaps(), ImportError("gone"))
    assert differences(base(*parts(), there, kv__tiers=section), base(*parts(), broken, kv__tiers=section)) == [
        "plugin.kv.tiers.0 is gone"
    ]


def test_where_a_value_was_written_makes_no_difference() -> None:
    assert differences(base(engine__depth=1), base(sets=["engine.depth=1"])) == []


def test_a_secret_is_locked_by_reference_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TL_A", "hunter2")
    assert "hunter2" not in lock(base())


@pytest.mark.parametrize(
    "text", ["plain", 'quote " and \\ backslash', "new\nline\ttab", "\x7f\x00\x1b", "漢字 😀", "'''"]
)
def test_any_text_survives_in_a_lock(text: str) -> None:
    made = base(*parts(name=text), observers=[{"plugin": "watch", "options": {"note": text}}])
    held = tomllib.loads(lock(made))
    assert held["model"]["name"] == text
    assert held["plugin"]["observers.0"]["option"]["note"] == text
    assert differences(made, made) == []


@pytest.mark.parametrize("text", ["not toml at all [", "", "lock = 2\n", "x = 1\n", 'lock = "1"\n'])
def test_what_is_no_lock_is_refused(text: str) -> None:
    made = base()
    with pytest.raises(ProfileError) as caught:
        check_lock(text, made.composer, made.composition, "some.toml")
    assert caught.value.subject == "some.toml"
    assert caught.value.remedy


# -- distributions -----------------------------------------------------------------------------------------------------

PLUGIN = """
from tokloom.sdk import ObserverCaps, Offer, hookimpl

@hookimpl
def tokloom_observer():
    return [Offer(kind="observer", name="packed", contract="0.1", capabilities=ObserverCaps(),
                  factory=lambda options, context: object())]
"""


def install(site: Path, version: str, digest: str) -> None:
    """A distribution `lock-dist` as an installer leaves it."""
    for old in site.glob("lock_dist-*"):
        for file in old.iterdir():
            file.unlink()
        old.rmdir()
    (site / "lock_dist.py").write_text(PLUGIN)
    info = site / f"lock_dist-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: lock-dist\nVersion: {version}\n")
    (info / "RECORD").write_text(f"lock_dist.py,sha256={digest},9\n")
    (info / "entry_points.txt").write_text("[tokloom.plugins]\nobserver.packed = lock_dist\n")


def test_versions_and_contents_of_distributions_are_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))

    def made() -> Composed:
        catalog = Catalog(path=[str(tmp_path)], extra=offers())
        composer = Composer(profile({"observers": ["packed"]}), catalog)
        return Composed(composer, composer.compose())

    install(tmp_path, "1.0", "aaa")
    first = made()
    held = tomllib.loads(lock(first))
    assert held["distribution"]["lock-dist"]["version"] == "1.0"
    text = lock(first)
    install(tmp_path, "1.1", "aaa")
    now = made()
    assert "distribution.lock-dist.version was '1.0' and is '1.1'" in check_lock(
        text, now.composer, now.composition, "l"
    )
    install(tmp_path, "1.0", "bbb")
    now = made()
    (row,) = check_lock(text, now.composer, now.composition, "l")
    assert row.startswith("distribution.lock-dist.hash was ")
    assert [d.version for d in Distribution.discover(name="lock-dist")] == ["1.0"]


def test_a_lock_of_a_profile_file_survives_another_place(tmp_path: Path) -> None:
    text = """
schema = 1
attention = "tags"
scheduler = "plain"
weights = "none"
ops = "none"
[model]
path = "tagged"
[engine]
device = "cpu"
kv_memory = "1MiB"
[kv]
allocator = "brute"
codec = "tagdense"
"""
    locks = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        path = tmp_path / name / f"{name}.toml"
        path.write_text(text)
        composer = Composer(load_profile(path, environment={}), Catalog(path=[], extra=offers()))
        locks.append(make_lock(composer, composer.compose()))
    assert locks[0] == locks[1]
