"""The tier against a dictionary: any interleaving of stores, loads, evictions, cancels and damage."""

from typing import Literal

from connector_rig import SHAPES, Rig
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

CAPACITY = 700
GROUP = st.integers(0, 1)
NUMBER = st.integers(0, 5)
CHAIN = st.lists(st.tuples(GROUP, NUMBER), min_size=1, max_size=4, unique=True)


class Model:
    """Least recently used, written as a list: the last one was used last."""

    def __init__(self) -> None:
        self.order: list[tuple[int, int]] = []
        self.damaged: set[tuple[int, int]] = set()

    @staticmethod
    def size(block: tuple[int, int]) -> int:
        layers, nbytes = SHAPES[block[0]]
        return layers * nbytes

    def room(self) -> int:
        return CAPACITY - sum(map(self.size, self.order))

    def use(self, chain: list[tuple[int, int]]) -> None:
        for block in reversed(chain):
            if block in self.order:
                self.order.remove(block)
                self.order.append(block)

    def forget(self, block: tuple[int, int]) -> None:
        self.order.remove(block)
        self.damaged.discard(block)

    def store(self, chain: list[tuple[int, int]]) -> list[int]:
        """Indices that do not fit."""
        left = []
        for index, block in enumerate(chain):
            if block in self.order:
                continue
            strangers = [other for other in self.order if other not in chain]
            if self.room() + sum(map(self.size, strangers)) < self.size(block):
                left.append(index)
                continue
            while self.room() < self.size(block):
                self.forget(strangers.pop(0))
            self.order.append(block)
        self.use(chain)
        return left

    def load(self, chain: list[tuple[int, int]]) -> list[int]:
        """Indices that cannot be loaded."""
        left = []
        for index, block in enumerate(chain):
            if block not in self.order:
                left.append(index)
            elif block in self.damaged:
                self.forget(block)
                left.append(index)
        self.use(chain)
        return left


class TierMachine(RuleBasedStateMachine):
    policy: Literal["through", "back"] = "through"

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(capacity=str(CAPACITY), write_policy=self.policy)
        self.model = Model()
        self.copies: dict[tuple[int, int], object] = {}

    @rule(chain=CHAIN)
    def save(self, chain: list[tuple[int, int]]) -> None:
        blocks = [(group, number, page) for page, (group, number) in enumerate(chain)]
        for group, number, page in blocks:
            self.rig.fill(group, page, number)
        self.rig.pages.handed.clear()
        failed = self.model.store(chain)
        if self.policy == "through":
            (done,) = self.rig.wait(self.rig.store(*blocks))
            assert list(done.failed) == failed
            assert done.status == ("failed" if failed else "ok")
        else:
            self.rig.evict(*blocks)
        for group, number, page in blocks:
            self.rig.poison(group, page)
            if (group, page) in self.rig.pages.handed:
                self.copies[group, number] = self.rig.pages.handed[group, page]

    @rule(chain=CHAIN)
    def load(self, chain: list[tuple[int, int]]) -> None:
        blocks = [(group, number, page) for page, (group, number) in enumerate(chain)]
        failed = self.model.load(chain)
        (done,) = self.rig.wait(self.rig.load(*blocks))
        assert list(done.failed) == failed
        for index, (group, number, page) in enumerate(blocks):
            assert self.rig.is_poison(group, page) if index in failed else self.rig.holds(group, page, number)
            self.rig.poison(group, page)

    @precondition(lambda self: self.model.order)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.model.order))
        if block not in self.model.damaged:
            self.copies[block][0, 3] ^= 1  # type: ignore[index]
            self.model.damaged.add(block)

    @rule(chain=CHAIN)
    def cancel_at_once(self, chain: list[tuple[int, int]]) -> None:
        """A cancelled load leaves the tier as it is, except that damage may have been found."""
        job = self.rig.load(*[(group, number + 50, page) for page, (group, number) in enumerate(chain)])
        self.rig.tier.cancel(job)
        (done,) = self.rig.wait(job)
        assert done.status in ("cancelled", "failed")

    @invariant()
    def it_holds_what_the_model_holds(self) -> None:
        for group in (0, 1):
            assert self.rig.held(group, list(range(6))) == {n for g, n in self.model.order if g == group}
        stats = self.rig.tier.stats()
        assert stats["blocks"] == len(self.model.order)
        assert stats["bytes"] == CAPACITY - self.model.room()
        assert not self.rig.pages.offences

    def teardown(self) -> None:
        self.rig.tier.close()
        self.rig.poll()
        assert not self.rig.live


class BackMachine(TierMachine):
    policy = "back"


SETTINGS = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestWriteThrough = TierMachine.TestCase
TestWriteThrough.settings = SETTINGS
TestWriteBack = BackMachine.TestCase
TestWriteBack.settings = SETTINGS
