"""AdaptiveK in simulation: a machine with a cost per row, and drafts of a given quality."""

import itertools
import random
from collections.abc import Callable

import pytest
from attrs import frozen

from tokloom.core.sampling import AdaptiveK, ControllerOptions


@frozen
class World:
    """`cost(rows)` seconds of a step; `accept` chance that the next draft stands; `offer` that there is a draft."""

    cost: Callable[[float], float]
    accept: float
    offer: float = 1.0

    def rate(self, k: int, batch: int) -> float:
        tokens = 1 + self.offer * sum(self.accept**j for j in range(1, k + 1))
        return tokens / self.cost(batch * (1 + self.offer * k))

    def best(self, batch: int, max_k: int) -> int:
        return max(range(max_k + 1), key=lambda k: self.rate(k, batch))


def simulate(
    controller: AdaptiveK, world: World, batch: int, max_k: int, steps: int, seed: int, noise: float = 0.05
) -> list[int]:
    chance = random.Random(seed)
    chosen: list[int] = []
    for _ in range(steps):
        k = controller.choose(batch, max_k)
        assert 0 <= k <= max_k
        chosen.append(k)
        drafted = [k if chance.random() < world.offer else 0 for _ in range(batch)]
        accepted = []
        for d in drafted:
            stands = 0
            while stands < d and chance.random() < world.accept:
                stands += 1
            accepted.append(stands)
        rows = batch + sum(drafted)
        seconds = world.cost(rows) * chance.uniform(1 - noise, 1 + noise)
        controller.observe(rows, batch, seconds, drafted, accepted)
    return chosen


def memory_bound(rows: float) -> float:
    """Rows are nearly free up to 32, then cost in full."""
    return 0.01 + 0.0001 * rows + 0.0005 * max(rows - 32, 0)


def compute_bound(rows: float) -> float:
    return 0.001 + 0.003 * rows


WORLDS = [
    ("good drafts, cheap rows", World(memory_bound, 0.8), 1, 8),
    ("bad drafts, cheap rows", World(memory_bound, 0.05), 1, 8),
    ("good drafts, dear rows", World(compute_bound, 0.8), 1, 8),
    ("bad drafts, dear rows", World(compute_bound, 0.2), 4, 8),
    ("good drafts, full batch", World(memory_bound, 0.7), 64, 8),
    ("rare drafts", World(memory_bound, 0.7, offer=0.2), 4, 4),
    ("half-good drafts, batch of 8", World(memory_bound, 0.5), 8, 8),
]


@pytest.mark.parametrize(("world", "batch", "max_k"), [w[1:] for w in WORLDS], ids=[w[0] for w in WORLDS])
@pytest.mark.parametrize("seed", range(3))
def test_it_settles_where_the_rate_is_within_a_few_percent_of_the_best(
    world: World, batch: int, max_k: int, seed: int
) -> None:
    chosen = simulate(AdaptiveK(), world, batch, max_k, 1500, seed)[-600:]
    best = world.rate(world.best(batch, max_k), batch)
    achieved = sum(world.rate(k, batch) for k in chosen) / len(chosen)
    assert achieved > 0.9 * best, f"seed {seed}: {achieved / best:.3f} of the best, K = {sorted(set(chosen))}"


def test_it_follows_a_change_of_acceptance_both_ways() -> None:
    controller = AdaptiveK()
    bad, cheap = World(compute_bound, 0.1), World(memory_bound, 0.95)
    assert sum(simulate(controller, cheap, 1, 6, 400, 1)[-100:]) / 100 > 4
    after = simulate(controller, bad, 1, 6, 1200, 2)[-200:]
    assert sum(k == 0 for k in after) > 180
    again = simulate(controller, cheap, 1, 6, 4000, 3)[-200:]
    assert sum(again) / 200 > 3


def test_it_comes_down_when_the_batch_fills_and_returns_when_it_empties() -> None:
    controller, world = AdaptiveK(), World(memory_bound, 0.7)
    alone = simulate(controller, world, 1, 6, 600, 1)[-100:]
    crowd = simulate(controller, world, 128, 6, 600, 2)[-100:]
    later = simulate(controller, world, 1, 6, 600, 3)[-100:]
    assert sum(crowd) / 100 < 1 < 3 < min(sum(alone), sum(later)) / 100


def test_it_does_not_flap_between_equal_choices() -> None:
    # With a flat rate (acceptance balances cost) noise alone must not move K often.
    world = World(lambda rows: 0.01 * (1 + 0.5 * (rows - 1)), 0.5)
    chosen = simulate(AdaptiveK(ControllerOptions(probe_every=0)), world, 1, 4, 2000, 4, noise=0.1)[500:]
    assert sum(a != b for a, b in itertools.pairwise(chosen)) < 30


def test_equal_histories_give_equal_choices() -> None:
    world = World(memory_bound, 0.6)
    assert simulate(AdaptiveK(), world, 4, 8, 500, 9) == simulate(AdaptiveK(), world, 4, 8, 500, 9)


def test_nothing_to_choose_and_useless_observations() -> None:
    controller = AdaptiveK()
    assert controller.choose(0, 4) == 0
    assert controller.choose(3, 0) == 0
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        controller.observe(4, 2, seconds, [1, 1], [1, 0])
    controller.observe(0, 0, 1.0, [], [])
    assert controller.choose(2, 4) == 4


def test_one_stall_does_not_spoil_what_was_learned() -> None:
    controller, world = AdaptiveK(), World(memory_bound, 0.8)
    simulate(controller, world, 1, 6, 300, 1)
    before = controller.rate(6, 1)
    controller.observe(7, 1, 60.0, [6], [6])
    assert controller.rate(6, 1) > 0.75 * before
    controller.observe(5, 1, 60.0, [4], [4])  # a size that was never seen before and will not be soon
    simulate(controller, world, 1, 6, 1500, 2)
    assert controller.rate(4, 1) == pytest.approx(world.rate(4, 1), rel=0.2)


def test_options_are_checked() -> None:
    for wrong in ({"smoothing": 0.0}, {"smoothing": 1.1}, {"margin": -1.0}, {"dwell": 0}, {"prior": 2.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ControllerOptions(**wrong)
