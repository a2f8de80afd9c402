"""The doubles drive the real engine: what they promise holds there, and what they break the engine survives."""

import random
from typing import Any

import attrs
import pytest
from doubles_rig import Engine, parity, request

from tokloom.conformance.doubles import oracle
from tokloom.conformance.doubles.harness import compose_doubles
from tokloom.conformance.doubles.oracle import SHAPES
from tokloom.core.profile import ProfileProblems
from tokloom.sdk import CapacityError, CompositionError, Request

SPECULATORS: list[Any] = [
    None,
    "oracle",
    {"plugin": "oracle", "options": {"mode": "trees", "seed": 3}},
    {"plugin": "oracle", "options": {"mode": "wrong"}},
    "featured",
    "on-device",
    {"plugin": "on-device", "options": {"mode": "trees", "seed": 4}},
]


def prompts(model: str, seed: int, count: int, longest: int = 24) -> list[list[int]]:
    """Prompts with shared beginnings."""
    rng = random.Random(seed)
    vocab = SHAPES[model].vocab
    shared = [rng.randrange(vocab) for _ in range(longest)]
    return [
        shared[: rng.randrange(longest - 4)] + [rng.randrange(vocab) for _ in range(rng.randint(1, 4))]
        for _ in range(count)
    ]


def check(engine: Engine, model: str, seed: int, count: int = 5, tokens: int = 10) -> None:
    """Run requests together and compare with the oracle."""
    given = prompts(model, seed, count)
    engine.run(*(request(f"{seed}-{i}", prompt, tokens) for i, prompt in enumerate(given)))
    for i, prompt in enumerate(given):
        said = engine.said[f"{seed}-{i}", 0]
        assert said == oracle.expected_tokens(prompt, tokens, model), (seed, i, engine.faults)


def faults_of_speculator(engine: Engine) -> list[str]:
    part = engine.composition.speculator
    return part.plugin.faults if part is not None else []  # type: ignore[attr-defined]


@pytest.mark.parametrize("model", SHAPES)
@pytest.mark.parametrize("speculator", SPECULATORS, ids=str)
def test_every_model_says_the_same_with_every_speculator(model: str, speculator: Any) -> None:
    engine = Engine(compose_doubles(model=model, speculator=speculator, pages=60))
    check(engine, model, 1)
    check(engine, model, 1 + 1)
    assert engine.faults == {}
    assert faults_of_speculator(engine) == []
    if speculator is not None:
        plugin = engine.plugin("speculator")
        assert plugin.begun == plugin.ended > 0
        assert plugin.proposed > 0
        assert plugin.ingested > 0


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("model", ["tagged", "tagged-window", "tagged-wide"])
def test_device_speculators_get_features_and_their_own_pages(model: str, depth: int) -> None:
    engine = Engine(compose_doubles(model=model, speculator="featured-on-device", depth=depth, lazy=True, pages=60))
    check(engine, model, 3, tokens=14)
    check(engine, model, 4, tokens=14)
    assert engine.plugin("speculator").checked > 0
    assert faults_of_speculator(engine) == []


@pytest.mark.parametrize("speculator", ["featured", "featured-on-device"])
def test_draft_kv_of_children_follows_their_own_first_token(speculator: str) -> None:
    engine = Engine(compose_doubles(speculator=speculator, pages=60))
    prompt = [(i * 7 + 1) % 11 for i in range(21)]
    engine.run(request("n", prompt, 12, n=3, temperature=1.0, seed=2))
    assert len({engine.said["n", child][0] for child in range(3)}) == 3
    assert faults_of_speculator(engine) == []


def test_pages_that_children_publish_hold_draft_kv_of_their_own_tokens() -> None:
    engine = Engine(compose_doubles(speculator="featured", pages=60, max_draft_tokens=1))
    prompt = [(i * 7 + 1) % 11 for i in range(21)]
    engine.plugin("speculator")._check = lambda *_: None
    engine.run(request("n", prompt, 11, n=3, temperature=1.0, seed=2))
    del engine.plugin("speculator")._check
    before = engine.core.state.hit_tokens
    for child in range(3):
        engine.run(request(f"after {child}", [*prompt, *engine.said["n", child]], 6))
    assert engine.core.state.hit_tokens - before >= 3 * 28
    assert faults_of_speculator(engine) == []


def test_pages_published_by_a_last_step_hold_draft_kv() -> None:
    engine = Engine(compose_doubles(speculator="featured", pages=60))
    prompt = [(i * 7 + 1) % 11 for i in range(21)]
    engine.run(request("a", prompt, 12))
    engine.run(request("b", [*prompt, *engine.said["a", 0]], 6))
    assert engine.core.state.hit_tokens == 32, "all that was computed is found again"
    assert faults_of_speculator(engine) == []


@pytest.mark.parametrize("speculator", [s for s in SPECULATORS if s and "device" in str(s)], ids=str)
def test_device_speculators_work_with_a_step_in_flight(speculator: Any) -> None:
    engine = Engine(compose_doubles(speculator=speculator, depth=1, lazy=True, pages=60))
    check(engine, "tagged", 3, tokens=20)
    check(engine, "tagged", 4, tokens=20)
    engine.run(request("n", [1, 2, 3, 4, 5], 12, n=3, temperature=1.0, seed=2))
    assert engine.faults == {}
    assert faults_of_speculator(engine) == []
    assert engine.plugin("speculator").proposed > 0


GARBAGE = ["ids", "negative", "parents", "cycle", "many", "twins", "count", "type", "raise", "ingest", "begin", ""]


@pytest.mark.parametrize("where", ["garbage", "garbage-on-device"])
@pytest.mark.parametrize("mode", GARBAGE)
def test_garbage_drafts_change_no_token(where: str, mode: str) -> None:
    for depth in (0, 1):
        garbage = {"plugin": where, "options": {"mode": mode, "seed": depth}}
        engine = Engine(compose_doubles(speculator=garbage, depth=depth, lazy=True))
        check(engine, "tagged", 14)
        check(engine, "tagged", 15)
        idle = mode in ("ingest", "begin") or (where == "garbage" and depth == 1)
        assert engine.plugin("speculator").proposed > 0 or idle


@pytest.mark.parametrize("where", ["garbage", "garbage-on-device"])
@pytest.mark.parametrize("mode", [mode for mode in GARBAGE if mode != "many"])
def test_garbage_drafts_are_faults(where: str, mode: str) -> None:
    engine = Engine(compose_doubles(speculator={"plugin": where, "options": {"mode": mode}}))
    check(engine, "tagged", 14)
    assert f"speculator.{where}" in engine.faults


@pytest.mark.parametrize("allocator", ["brute", "paged"])
@pytest.mark.parametrize("model", ["tagged", "tagged-window", "tagged-wide"])
@pytest.mark.parametrize(
    "codec",
    [
        "tagdense",
        {"plugin": "sealing", "options": {"residual": 2}},
        {"plugin": "sealing-apart", "options": {"residual": 0}},
        {"plugin": "sealing-apart", "options": {"residual": 3}},
    ],
    ids=str,
)
def test_every_codec_and_allocator_says_the_same(allocator: str, model: str, codec: Any) -> None:
    for depth, speculator in ((0, {"plugin": "oracle", "options": {"mode": "trees", "seed": 2}}), (1, None)):
        engine = Engine(
            compose_doubles(
                model=model, codec=codec, allocator=allocator, pages=26, depth=depth, lazy=True, speculator=speculator
            )
        )
        check(engine, model, 5, count=6, tokens=12)
        assert engine.faults == {}
        if codec != "tagdense":
            assert engine.plugin("codec").seals > 0


@pytest.mark.parametrize("model", ["tagged", "tagged-wide"])
@pytest.mark.parametrize("codec", ["scaled", "rotated"])
@pytest.mark.parametrize("attention", ["torch", {"plugin": "tags", "options": {"positions": False}}], ids=str)
def test_transformed_pages_say_the_same(model: str, codec: str, attention: Any) -> None:
    engine = Engine(compose_doubles(model=model, codec=codec, attention=attention))
    check(engine, model, 6)
    assert engine.plugin("codec").transforms == len(SHAPES[model].windows)


def test_the_brute_allocator_survives_preemption_forks_and_aborts() -> None:
    copies = preempted = 0
    for seed in range(4):
        rng = random.Random(seed)
        engine = Engine(compose_doubles(allocator="brute", pages=16, model="tagged-window", depth=seed % 2, lazy=True))
        given = prompts("tagged-window", seed, 7)
        items = [request(str(i), p, 14, n=1 + i % 3, temperature=float(i % 2), seed=i) for i, p in enumerate(given)]
        for item in items:
            engine.core.add(item)
        doomed = [str(i) for i in range(7) if rng.random() < 0.3]
        while engine.core.busy:
            if doomed and rng.random() < 0.2:
                engine.core.abort(doomed.pop())
            engine.step()
        for i, prompt in enumerate(given):
            if i % 2 == 0 and i % 3 == 0 and engine.ended[str(i), 0] == "length":
                assert engine.said[str(i), 0] == oracle.expected_tokens(prompt, 14, "tagged-window")
        wide = Engine(compose_doubles(pages=300, model="tagged-window"))
        wide.run(*items)
        for key, reason in engine.ended.items():
            assert reason in ("length", "abort")
            assert engine.said[key] == wide.said[key][: len(engine.said[key])]
            assert reason == "abort" or len(engine.said[key]) == 14
        engine.run()
        copies += engine.core.state.allocator.stats().copies
        preempted += engine.core.state.preempted
    assert copies > 0
    assert preempted > 0


def test_a_small_brute_pool_refuses_what_never_fits() -> None:
    engine = Engine(compose_doubles(allocator="brute", pages=6))
    engine.run(request("big", [1] * 20, 30), request("small", [2] * 5, 4))
    assert isinstance(engine.errors["big", 0], CapacityError)
    assert engine.said["small", 0] == oracle.expected_tokens([2] * 5, 4)


@pytest.mark.parametrize("depth", [0, 1])
def test_the_plain_kernel_decodes_and_prefills_apart(depth: int) -> None:
    engine = Engine(compose_doubles(attention="tags-plain", depth=depth, max_batch_tokens=9))
    check(engine, "tagged", 7)


def test_the_plain_kernel_is_refused_where_it_would_need_more() -> None:
    for section in ({"speculator": "oracle"}, {"codec": "sealing"}, {"speculator": "featured-on-device", "depth": 1}):
        with pytest.raises((CompositionError, ProfileProblems), match="tags-plain"):
            compose_doubles(attention="tags-plain", **section)


@pytest.mark.parametrize("model", ["tagged", "tagged-window", "tagged-wide"])
def test_recorded_decode_steps_are_checked_too(model: str) -> None:
    engine = Engine(compose_doubles(model=model, graphs="on"))
    check(engine, model, 8)
    assert engine.core.runner.graphs.replays > 0
    assert engine.composition.decode.plugin.replans > 0  # type: ignore[attr-defined]


MODES = ["", "pending", "failing", "boasting", "short", "sick", "lying", "nonsense", "raising"]


def recalled(engine: Engine, seed: int) -> None:
    """Long prompts that fall out of a small pool and are asked again."""
    rng = random.Random(seed)
    given = [[rng.randrange(11) for _ in range(30)] for _ in range(4)]
    for turn in range(3):
        items = [request(f"{turn}-{i}", prompt, 4) for i, prompt in enumerate(given)]
        engine.run(*items)
        for i, prompt in enumerate(given):
            assert engine.said[f"{turn}-{i}", 0] == oracle.expected_tokens(prompt, 4), (turn, i, engine.faults)
    plugin = engine.composition.connectors[0].plugin
    engine.core.close()
    assert plugin.started == plugin.ended or "raising" in str(engine.faults)  # type: ignore[attr-defined]


@pytest.mark.parametrize("mode", MODES)
def test_a_tier_in_any_mode_changes_no_token(mode: str) -> None:
    for depth in (0, 1):
        tier = {"plugin": "slow", "options": {"mode": mode, "seed": depth}}
        engine = Engine(compose_doubles(connectors=[tier], pages=14, max_sequences=1, depth=depth, lazy=True))
        recalled(engine, depth)
        plugin = engine.composition.connectors[0].plugin
        loaded, failed = plugin.loaded, plugin.failed  # type: ignore[attr-defined]
        assert (loaded > 0) == (mode in ("", "pending", "failing", "short", "lying", "boasting")), (loaded, failed)
        assert (failed > 0) == (mode in ("failing", "boasting", "short")), (loaded, failed)
        assert ("connector.slow" in engine.faults) == (mode in ("lying", "nonsense", "raising")), engine.faults


@pytest.mark.parametrize("name", ["threaded", "layered"])
def test_other_tiers_change_no_token(name: str) -> None:
    engine = Engine(compose_doubles(connectors=[name], pages=14, max_sequences=1))
    recalled(engine, 5)
    assert engine.composition.connectors[0].plugin.loaded > 0  # type: ignore[attr-defined]
    assert engine.faults == {}


@pytest.mark.parametrize("residual", [0, 2])
@pytest.mark.parametrize("allocator", ["paged", "brute"])
def test_boasting_tiers_load_garbage_into_sealed_pages_that_is_never_used(residual: int, allocator: str) -> None:
    engine = Engine(
        compose_doubles(
            codec={"plugin": "sealing-apart", "options": {"residual": residual}},
            connectors=[{"plugin": "slow", "options": {"mode": "boasting"}}],
            allocator=allocator,
            pages=20,
        )
    )
    check(engine, "tagged", 9)
    assert engine.composition.connectors[0].plugin.failed > 0  # type: ignore[attr-defined]


def test_a_refused_request_says_when_to_retry_and_others_go_on() -> None:
    engine = Engine(compose_doubles(scheduler="refusing"))
    engine.run(request("a", [1, 2, 3], 4), request("b", [1, 2, 3], 4, tenant="banned"))
    error = engine.errors["b", 0]
    assert isinstance(error, CapacityError)
    assert "this tenant is banned" in str(error)
    assert "2.5" in str(error)
    assert engine.said["a", 0] == oracle.expected_tokens([1, 2, 3], 4)
    assert engine.plugin("scheduler").refused


@pytest.mark.parametrize("mode", ["raise", "nonsense"])
def test_every_decision_of_a_broken_policy_is_a_fault(mode: str) -> None:
    broken = {"plugin": "broken", "options": {"mode": mode}}
    tier = {"plugin": "slow", "options": {"mode": "pending"}}
    engine = Engine(
        compose_doubles(scheduler=broken, speculator="oracle", pages=18, connectors=[tier], max_batch_tokens=10)
    )
    check(engine, "tagged", 10, count=6)
    check(engine, "tagged", 11, count=6)
    if mode == "nonsense":
        observed = engine.core.state.faults.count("scheduler.broken")
        assert observed > engine.plugin("scheduler").asked > 100


@pytest.mark.parametrize("seed", range(6))
def test_chaos_is_valid_and_changes_no_token(seed: int) -> None:
    chaos = {"plugin": "chaos", "options": {"seed": seed}}
    engine = Engine(compose_doubles(scheduler=chaos, speculator="featured", pages=22, max_batch_tokens=11))
    check(engine, "tagged", seed, count=7)
    assert engine.faults == {}


def stepwise(batch: int, *, pages: int = 200, together: bool = True) -> dict[tuple[str, int], list[int]]:
    given = prompts("tagged", 12, 5)
    items: list[Request] = [request(str(i), prompt, 6) for i, prompt in enumerate(given)]
    engine = Engine(compose_doubles(codec="stepwise", max_batch_tokens=batch, pages=pages))
    if together:
        engine.run(*items)
    for item in [] if together else items:
        engine.run(item)
    again = [attrs.evolve(item, request_id=f"{item.request_id} again") for item in items]
    engine.run(*again)
    assert engine.core.state.hit_tokens > 0
    for item in items:
        assert engine.said[f"{item.request_id} again", 0] == engine.said[item.request_id, 0]
    return engine.said


def test_a_stepwise_codec_says_the_same_at_any_budget_and_with_hits() -> None:
    wanted = stepwise(32)
    assert wanted["0", 0] != oracle.expected_tokens(prompts("tagged", 12, 5)[0], 6), "its bytes are not exact"
    assert stepwise(6) == stepwise(64) == wanted
    assert stepwise(32, together=False) == wanted


def test_a_grammar_is_rolled_back_as_often_as_drafts_are_not_taken() -> None:
    engine = Engine(compose_doubles(speculator={"plugin": "oracle", "options": {"mode": "trees"}}))
    engine.run(*(request(str(i), [i, 2, 3], 30, grammar=parity("8")) for i in range(4)))
    grammar = engine.composition.grammars["parity"]
    assert grammar.started >= 4  # type: ignore[attr-defined]
    assert grammar.undone > 0  # type: ignore[attr-defined]
    assert grammar.advanced - grammar.undone == 4 * 8  # type: ignore[attr-defined]
    for said in engine.said.values():
        assert [token % 2 for token in said] == [0, 1] * 4


def test_processors_see_every_drafted_row() -> None:
    said = {}
    for speculator in (None, "oracle", {"plugin": "oracle", "options": {"mode": "trees"}}):
        engine = Engine(compose_doubles(speculator=speculator))
        engine.run(*(request(str(i), [i, 2, 3], 20, processors=("shift",)) for i in range(3)))
        said[str(speculator)] = dict(engine.said)
        assert engine.composition.processors["shift"].rows >= 60  # type: ignore[attr-defined]
    assert len({str(tokens) for tokens in said.values()}) == 1
    assert said["None"]["0", 0] != oracle.expected_tokens([0, 2, 3], 20)


def test_the_null_parts_make_steps_without_numbers() -> None:
    engine = Engine(
        compose_doubles(
            model="null", attention="null", codec="null", logits=(), page_tokens=16, max_model_tokens=4096, pages=300
        )
    )
    engine.run(*(request(str(i), [i % 64] * (i + 3), 40) for i in range(5)))
    assert all(len(said) == 40 for said in engine.said.values())


def test_salts_are_kept_apart_and_equal_ones_shared() -> None:
    engine = Engine(compose_doubles())
    prompt = prompts("tagged", 3, 1)[0] * 2
    for name, salt in (("a", "x"), ("b", "y"), ("c", "x")):
        before = engine.core.state.hit_tokens
        engine.run(request(name, prompt, 3, salt=salt))
        assert (engine.core.state.hit_tokens > before) == (name == "c")
        assert engine.said[name, 0] == oracle.expected_tokens(prompt, 3)
