"""How many pages there are: against sums done by hand, and against counting page by page for random layouts."""

import random
from typing import Any

import pytest
from attrs import evolve
from compose_parts import codec, compose, kernel, layer, model, plain_format, refusal, speculator, tokens

from tokloom.core.compose.memory import Budget, plan_memory
from tokloom.core.composition import EngineSettings
from tokloom.core.engine import EngineCore
from tokloom.core.profile import ProfileProblems
from tokloom.sdk import CapacityError, CompositionError, DraftLayer, FormatPair, KVFormat, KVGroup, LayerSpec, SpecNeeds

INLINE = {"model__path": "inline", "kv__codec": "c", "attention": "k"}
WINDOWS = kernel("k", features=frozenset({"window", "segments"}))


def by_hand(**changes: Any) -> Any:
    """3 layers of 2 kv heads with 8 float32: a token takes 3 * 2 * 2 * 8 * 4 = 384 bytes, a page of 4 tokens 1536."""
    layers = [layer(number, kv_heads=2) for number in range(3)]
    return compose(model(layers, weight_bytes=5_000_000), codec("c"), WINDOWS, **{**INLINE, **changes})


def test_pages_fill_the_memory_that_the_profile_gives() -> None:
    made = by_hand(engine__kv_memory=100_000)
    assert made.composition.layout.main_pages == (65,)  # 100 000 / 1536 = 65.1
    (group,) = made.composer.explanation.groups
    assert (group.bytes_per_token, group.pages, group.open_pages, group.nbytes) == (384, 65, 0, 65 * 1536)
    explanation = made.composer.explanation
    assert (explanation.weight_bytes, explanation.kv_bytes) == (5_000_000, 99_840)
    assert explanation.tokens == 65 * 4
    assert explanation.sequences == 2  # of 120 tokens


def test_a_budget_of_exactly_n_pages_holds_n_pages() -> None:
    assert by_hand(engine__kv_memory=1536 * 40).composition.layout.main_pages == (40,)
    assert by_hand(engine__kv_memory=1536 * 40 - 1).composition.layout.main_pages == (39,)


def test_no_more_is_taken_than_all_sequences_can_use() -> None:
    made = by_hand(engine__kv_memory="1GiB")  # 6 sequences of 120 tokens and a page each
    assert made.composition.layout.main_pages == (6 * (120 + 4) // 4,)
    drafts = by_hand(engine__kv_memory="1GiB", speculation="garbage", engine__max_draft_tokens=8)
    assert drafts.composition.layout.main_pages == (6 * (120 + 8 + 4) // 4,)


def test_auto_is_half_of_what_weights_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = (layer(0, kv_heads=2),)
    groups = (KVGroup(0, "model", (0,), plain_format(layers[0], 4)),)  # 512 bytes a page
    budget = plan_memory(groups, SETTINGS, 0, 1_000_000, 900_000)
    assert budget.main_pages == (50_000 // 512,)
    with pytest.raises(CompositionError) as caught:
        plan_memory(groups, SETTINGS, 0, 1_000_000, 999_900)
    for number in ("50 bytes", "weights of 999900", "of 1000000", "need 1024"):
        assert number in caught.value.message
    with pytest.raises(CompositionError, match="0 bytes"):
        plan_memory(groups, SETTINGS, 0, 1_000_000, 2_000_000)


def test_too_little_memory_is_refused_with_both_numbers_where_it_is_written() -> None:
    small = model([layer(0, kv_heads=2)])
    error = refusal(small, codec("c"), WINDOWS, kind=ProfileProblems, engine__kv_memory=1023, **INLINE)
    (problem,) = error.problems  # type: ignore[attr-defined]
    assert problem.message == "1023 bytes hold 4 tokens of KV; pools for 8 tokens need 1024"
    assert problem.key == "engine.kv_memory"
    assert "Raise engine.kv_memory" in problem.help
    assert compose(small, codec("c"), WINDOWS, engine__kv_memory=1024, **INLINE).composition.layout.main_pages == (2,)


def test_window_groups_need_no_more_than_their_windows() -> None:
    layers = [layer(0, kv_heads=2), layer(1, kv_heads=2, window=9), layer(2, kv_heads=2, window=9)]
    made = compose(model(layers), codec("c"), WINDOWS, engine__kv_memory="1MiB", **INLINE)
    # full: 6 sequences of 124 tokens; windows: 8 older keys and 32 rows of a step, in at most 11 pages
    assert made.composition.layout.main_pages == (6 * 124 // 4, 6 * 11)
    tight = compose(model(layers), codec("c"), WINDOWS, engine__kv_memory=20 * (512 + 1024), **INLINE)
    assert tight.composition.layout.main_pages == (20, 20)
    assert [group.window for group in tight.composer.explanation.groups] == [None, 9]
    assert [group.nbytes for group in tight.composer.explanation.groups] == [20 * 512, 20 * 1024]


def test_open_pages_hold_residuals_and_a_step() -> None:
    def formats(spec: LayerSpec, page: int) -> list[FormatPair]:
        packed = KVFormat.pack("packed", page, [("bits", "uint8", (page, 16))])
        return [FormatPair(packed, plain_format(spec, page, "open"))]

    sealing = codec("c", formats, residual=6, seals=True)
    made = compose(model([layer(0, kv_heads=2)]), sealing, WINDOWS, engine__kv_memory="1MiB", **INLINE)
    # 6 sequences with a residual of 2 pages, a page that fills and a partial one; 8 pages of a step
    assert made.composition.layout.main_pages == (186,)
    assert made.composition.layout.open_pages == (6 * 4 + 8,)
    (group,) = made.composer.explanation.groups
    assert group.nbytes == 186 * 64 + 32 * 512
    assert "+ open open-float32-4x2x8, 32 pages" in made.text
    small = compose(model([layer(0, kv_heads=2)]), sealing, WINDOWS, engine__kv_memory=10_000, **INLINE)
    main, opened = small.composition.layout.main_pages[0], small.composition.layout.open_pages[0]
    assert main * 64 + opened * 512 <= 10_000
    assert opened == main + 2 <= 32, "few tokens need few open pages"


def test_draft_kv_is_part_of_the_budget() -> None:
    draft = layer(0, kv_heads=1)
    needs = SpecNeeds(layers=(DraftLayer(spec=draft, format=plain_format(draft, 4)),))  # 256 bytes a page
    layers = model([layer(number, kv_heads=2) for number in range(3)])
    made = compose(
        layers, codec("c"), WINDOWS, speculator("s", needs), speculation="s", engine__kv_memory=1792 * 30, **INLINE
    )
    assert made.composition.layout.main_pages == (30, 30)
    assert [group.owner for group in made.composer.explanation.groups] == ["model", "speculator"]
    assert "speculator, 1 layers" in made.text


# -- random layouts ----------------------------------------------------------------------------------------------------

SETTINGS = EngineSettings(
    max_batch_tokens=32,
    max_sequences=6,
    max_waiting=9,
    max_model_tokens=120,
    max_draft_tokens=4,
    page_tokens=4,
    depth=0,
    threads=1,
)


def a_format(rng: random.Random, name: str, page: int) -> KVFormat:
    return KVFormat.pack(name, page, [("x", "uint8", (page, rng.randint(1, 40)))])


def a_layout(rng: random.Random, page: int) -> tuple[KVGroup, ...]:
    groups = []
    for number in range(rng.randint(1, 4)):
        opened = a_format(rng, "open", page) if rng.random() < 0.3 else None
        layers = tuple(range(rng.randint(1, 5)))
        window = rng.choice([None, rng.randint(1, 60)])
        residual = rng.randint(0, 20) if opened else 0
        groups.append(KVGroup(number, "model", layers, a_format(rng, "main", page), opened, window, 0, residual))
    return tuple(groups)


def pages_touched(first: int, count: int, page: int) -> int:
    """Pages that hold positions `first .. first + count - 1`, counted."""
    return len({position // page for position in range(first, first + count)})


def enough(group: KVGroup, settings: EngineSettings, tokens: int) -> int:
    """Main pages with which the group never is the one that is short of room: `tokens` in all, or all windows."""
    page = group.page_tokens
    every = pages_touched(0, tokens, page)
    if group.window is None:
        return every
    seen = group.window - 1 + settings.max_batch_tokens
    return min(every, settings.max_sequences * max(pages_touched(first, seen, page) for first in range(page)))


def total(groups: tuple[KVGroup, ...], budget: Budget) -> int:
    sums = 0
    for group, main, opened in zip(groups, budget.main_pages, budget.open_pages, strict=True):
        sums += len(group.layers) * main * group.main.page_bytes
        sums += len(group.layers) * opened * (group.open.page_bytes if group.open is not None else 0)
    return sums


def planned(groups: tuple[KVGroup, ...], settings: EngineSettings, wanted: int) -> Budget | str:
    """The budget, or why there is none."""
    try:
        return plan_memory(groups, settings, wanted, 0, 0)
    except CompositionError as error:
        return error.message


@pytest.mark.parametrize("seed", range(60))
def test_random_layouts_get_all_that_fits_and_no_byte_more(seed: int) -> None:
    rng = random.Random(seed)
    page = rng.randint(1, 20)
    settings = evolve(
        SETTINGS,
        page_tokens=page,
        max_batch_tokens=rng.randint(1, 80),
        max_sequences=rng.randint(1, 9),
        max_model_tokens=rng.randint(2, 300),
        max_draft_tokens=rng.randint(0, 8),
    )
    groups = a_layout(rng, page)
    most = settings.max_sequences * (settings.max_model_tokens + settings.max_draft_tokens + page)
    wanted = rng.randint(1, 200_000)
    budget = planned(groups, settings, wanted)
    if isinstance(budget, str):  # it says what is asked for, what that holds, what must be held, and what that needs
        limit, held, least, needed = (int(word) for word in budget.replace(";", "").split() if word.isdigit())
        assert limit == wanted < needed
        assert held < least
        enough_bytes = planned(groups, settings, needed)
        assert isinstance(enough_bytes, Budget)
        assert enough_bytes.tokens >= least
        assert isinstance(planned(groups, settings, needed - 1), str)
        return
    assert total(groups, budget) == sum(row.nbytes for row in budget.groups) <= wanted
    for group, main, opened, row in zip(groups, budget.main_pages, budget.open_pages, budget.groups, strict=True):
        assert enough(group, settings, budget.tokens) <= main <= pages_touched(0, budget.tokens, page)
        assert (row.pages, row.open_pages, row.layers) == (main, opened, len(group.layers))
        assert (opened > 0) == (group.open is not None)
        if group.open is not None:
            lone = pages_touched(0, min(settings.max_batch_tokens + group.residual_tokens, budget.tokens), page)
            assert opened >= lone, "a step of one sequence"
    if budget.tokens < most:
        more = plan_memory(groups, settings, wanted * 2, 0, 0)
        grown = [main + (group.window is None) for group, main in zip(groups, budget.main_pages, strict=True)]
        if all(group.window is None and group.open is None for group in groups):
            one_more = sum(
                len(group.layers) * pages * group.main.page_bytes for group, pages in zip(groups, grown, strict=True)
            )
            assert one_more > wanted, "another page of each group fits"
        assert more.tokens >= budget.tokens


def test_as_many_tokens_fit_as_explain_says() -> None:
    made = compose(engine__kv_memory=64 * 4 * 10, engine__max_model_tokens=60)
    assert made.composer.explanation.tokens == 40
    engine = EngineCore(made.composition)
    assert len(tokens(engine, (1, 2), 38)) == 38
    with pytest.raises(CapacityError, match="may need 11 pages and the pool has 10"):
        tokens(engine, [1] * 41, 2)
    engine.close()
