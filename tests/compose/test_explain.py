"""What `compose --explain` prints: every plugin, every constraint with its author, what was given up, the budget."""

import re
from typing import Any

from attrs import field, frozen
from compose_parts import codec, compose, kernel, layer, model, offer

from tokloom.core.profile import Secret
from tokloom.sdk import ObserverCaps


def lines(text: str, heading: str) -> list[str]:
    """The indented lines below a heading."""
    body = text.split(f"\n{heading}\n", 1)[1]
    found = []
    for row in body.split("\n"):
        if not row.startswith(" "):
            break
        found.append(row.strip())
    return found


def test_every_plugin_is_listed_with_its_place_and_origin() -> None:
    made = compose(
        speculation="garbage",
        kv__tiers=["slow", "layered"],
        observers=["recorder"],
        logits=["shift", "parity"],
        attention={"decode": "tags", "prefill": "writer"},
    )
    rows = [row for row in lines(made.text, "plugins") if "contract" in row]
    listed = {row.split()[0]: row.split()[1] for row in rows}
    assert listed == {
        "model": "tagged",
        "kv.codec": "tagdense",
        "attention.decode": "tags",
        "attention.prefill": "writer",
        "speculation": "garbage",
        "kv.tiers.0": "slow",
        "kv.tiers.1": "layered",
        "kv.allocator": "brute",
        "weights": "none",
        "ops": "none",
        "scheduler": "plain",
        "observers.0": "recorder",
        "logits.0": "shift",
        "logits.1": "parity",
    }
    assert all(row.endswith("(local 0, contract 0.1)") for row in rows)


def test_options_are_listed_with_where_they_were_written() -> None:
    written = {"plugin": "garbage", "options": {"mode": "chain"}}
    made = compose(speculation=written, sets=["speculation.options.seed=7"])
    rows = lines(made.text, "plugins")
    assert "seed = 7  [--set speculation.options.seed=7]" in rows
    assert "mode = chain  [mapping]" in rows
    assert "residual = 0  [default]" in rows


def test_secrets_are_not_shown(monkeypatch: Any) -> None:
    @frozen
    class Keyed:
        key: Secret = field(default=Secret(env="TL_A"))
        keys: tuple[Secret, ...] = ()

    monkeypatch.setenv("TL_A", "hunter2")
    made = compose(
        offer("observer", "keyed", ObserverCaps(), lambda options, context: object(), Keyed),
        observers=[{"plugin": "keyed", "options": {"keys": [{"env": "TL_A"}, {"file": "/run/x"}]}}],
    )
    assert "key = <secret from environment>" in made.text
    assert "keys = (<secret from environment>, <secret from file>)" in made.text
    assert "hunter2" not in made.text


def test_every_negotiated_value_has_an_author() -> None:
    made = compose(engine__max_sequences=40, sets=["engine.page_tokens=8"], engine__depth=1)
    rows = lines(made.text, "negotiated")
    for wanted in (
        r"device +cpu, 1 threads +mapping",
        r"dtype +float64 +the checkpoint's own",
        r"max_model_tokens +120 +mapping",
        r"max_sequences +32 +limited by engine.max_batch_tokens: one row each",
        r"page_tokens +8 +--set engine.page_tokens=8",
        r"KV format +tagdense-8x1x2\+2 +codec.tagdense's choice, accepted by attention.tags",
        r"writer +the codec's append +capability writes",
        r"depth +1 +mapping",
        r"graphs +off +default",
    ):
        assert any(re.fullmatch(wanted, row) for row in rows), (wanted, rows)


def test_what_the_core_chose_says_so() -> None:
    spec = model([layer(0)], max_tokens=100)
    sections = {"model__path": "inline", "kv__codec": "c", "attention": "k"}
    made = compose(spec, codec("c"), kernel("k"), engine={"device": "cpu", "kv_memory": "1MiB"}, **sections)
    assert made.row("page_tokens") == "32 | auto; accepted by the kernels"
    assert made.row("max_model_tokens") == "100 | model context 100"
    assert made.row("depth") == "0 | default"
    longer = compose(model([layer(0)], max_tokens=10**6), codec("c"), kernel("k"), engine={"device": "cpu"}, **sections)
    assert longer.row("max_model_tokens") == "8192 | auto: the core's limit; model context 1000000"


def test_the_memory_lines_add_up() -> None:
    made = compose(model__path="tagged-window", engine__kv_memory=60_000)
    rows = lines(made.text, "memory")
    assert rows[0].startswith("weights")
    groups = [row for row in rows if row.startswith("KV group")]
    assert "model, 2 layers: tagdense-4x1x2+2, 64 bytes/token" in groups[0]
    assert "model, 2 layers, window 5: tagdense-4x1x2+2, 64 bytes/token" in groups[1]
    per_token = [int(re.search(r"(\d+) bytes/token", row)[1]) for row in groups]  # type: ignore[index]
    (whole,) = [row for row in rows if row.startswith("KV in all")]
    assert f"{sum(per_token)} bytes/token" in whole
    explanation = made.composer.explanation
    assert explanation.kv_bytes == sum(group.nbytes for group in explanation.groups) <= 60_000
    assert (
        rows[-1].split(maxsplit=1)[1]
        == f"{explanation.tokens} tokens, {explanation.sequences} sequences of the longest length"
    )


def test_nothing_given_up_is_said_too() -> None:
    assert lines(compose().text, "given up") == ["nothing"]


def test_equal_compositions_are_explained_alike() -> None:
    sections: dict[str, Any] = {"speculation": "featured", "kv__tiers": ["slow"], "logits": ["shift"]}
    assert compose(**sections).text == compose(**sections).text


def test_the_namespace_tells_apart_what_stores_other_bytes() -> None:
    def namespace(
        *layers: Any, fingerprint: str = "f", digest: str = "d", dtype: str = "float32", **more: Any
    ) -> bytes:
        spec = model(layers or [layer(0)], digest=digest, dtype=dtype)
        parts = (spec, codec("c", fingerprint=fingerprint), kernel("k", features=frozenset({"window"})))
        sections = {"model__path": "inline", "kv__codec": "c", "attention": "k", **more}
        return compose(*parts, **sections).composition.layout.namespace

    base = namespace()
    assert namespace() == base
    assert namespace(engine__max_batch_tokens=16, engine__kv_memory="2MiB", scheduler="chaos") == base
    others = [
        namespace(fingerprint="g"),
        namespace(digest="e"),
        namespace(dtype="float16"),
        namespace(layer(0, window=4)),
        namespace(layer(0, soft_cap=None, head=16)),
        namespace(layer(0), layer(1)),
        namespace(engine__page_tokens=8),
    ]
    assert len({base, *others}) == len(others) + 1
