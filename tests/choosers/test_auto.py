"""Auto: the trials and the choice, equal on all ranks; nothing is lost."""

from dataclasses import dataclass, field

import pytest

from thinwire.channel import Channel
from thinwire.choosers import Auto, choose
from thinwire.choosers.auto import AutoMemory
from thinwire.codecs import Split
from thinwire.collectives import (
    BF16,
    CollectiveMemory,
    Dense,
    Grade,
    GTopK,
    SparDL,
    UnionReduce,
)
from thinwire.cost import Link
from thinwire.errors import ConfigError
from thinwire.layout import Layout

SIZE = 4000
SLOW, FAST = Link(1e-4, 12.5e6), Link(1e-3)
DENSE, WHOLE, SPARSE = 0, 1, 2
QUICK = Auto(0.01, rounds=1, visit=2, recheck=5)
# Visits of two, the last candidate first.
TRIAL = [SPARSE, SPARSE, WHOLE, WHOLE, DENSE, DENSE]


class Pretend:
    """Two ranks, of which this one does not wait for the other."""

    rank, size = 0, 2

    def all_reduce_(self, *parts):
        return None


@dataclass
class Story:
    """An auto whose steps take given seconds, and what it did."""

    auto: Auto
    memory: AutoMemory = None
    numbers: list[int] = field(default_factory=list)

    def __post_init__(self):
        self.memory = self.memory or self.auto.init(Layout.flat(8))

    def go(self, steps, seconds):
        for _ in range(steps):
            choice = choose(self.auto, self.memory, 8, 0)
            number = self.auto.ways.index(choice.collective)
            self.numbers.append(number)
            taken = seconds[number]
            taken = taken(len(self.numbers)) if callable(taken) else taken
            choice.finish(taken, Channel(Pretend()))
        return self

    @property
    def choice(self):
        return self.auto.choice(self.memory)


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ([0.100, 0.050, 0.020], SPARSE),
        ([0.100, 0.050, 0.080], WHOLE),
        ([0.010, 0.050, 0.020], DENSE),
        # About as fast is not worth leaving dense for.
        ([0.1015, 0.2, 0.1], DENSE),
        ([0.1025, 0.2, 0.1], SPARSE),
        ([0.00109, 0.2, 0.001], DENSE),
        ([0.0, 0.0, 0.0], DENSE),
    ],
)
def test_the_fastest_is_chosen(seconds, chosen):
    story = Story(Auto()).go(3 * 8 + 5, seconds)
    assert story.choice == chosen
    assert set(story.numbers[-5:]) == {chosen}


def test_every_way_gets_its_visits():
    numbers = Story(Auto()).go(25, [0.010, 0.012, 0.014]).numbers
    visits = [SPARSE] * 4 + [WHOLE] * 4 + [DENSE] * 4
    assert numbers == [*visits, *visits, DENSE]


def test_the_first_of_a_visit_does_not_count():
    compiling = lambda step: 9.0 if step == 1 else 0.01  # noqa: E731
    assert Story(Auto()).go(24, [0.05, 0.04, compiling]).choice == SPARSE
    # Nor does an accident of what is usually fast.
    late = lambda step: 0.4 if step % 4 == 1 else 0.01  # noqa: E731
    assert Story(Auto()).go(24, [late, 0.04, 0.02]).choice == DENSE


def test_what_takes_ten_times_as_long_is_tried_once():
    story = Story(Auto()).go(7, [15.0, 7.5, 0.2])
    assert story.numbers == [SPARSE] * 4 + [WHOLE, DENSE, SPARSE]
    assert story.choice == SPARSE


def test_what_takes_twice_as_long_is_not_visited_to_the_end():
    story = Story(Auto()).go(9, [1.0, 0.9, 0.2])
    assert story.numbers == [SPARSE] * 4 + [WHOLE] * 2 + [DENSE] * 2 + [SPARSE]
    # Where it is the last candidate that is slow, nothing is spared on it.
    story = Story(Auto()).go(4, [0.1, 0.2, 5.0])
    assert story.numbers == [SPARSE] * 4


def test_it_looks_again_and_changes_its_mind():
    story = Story(QUICK).go(6, [0.10, 0.05, 0.02])
    wait = story.memory.left
    assert story.choice == SPARSE
    # The trial cost 0.08 + 0.03 seconds more than the choice would have, at least.
    assert wait >= 0.11 / 0.02 / 0.005
    story.go(wait, [0.10, 0.05, 0.02])
    assert set(story.numbers[6:]) == {SPARSE}
    story.go(6, [0.01, 0.05, 0.02])
    assert story.numbers[-6:] == TRIAL
    assert story.choice == DENSE


def test_it_waits_longer_after_every_confirmation():
    story, waits = Story(QUICK), []
    for _ in range(9):
        story.go(6, [0.010, 0.010, 0.010])
        waits.append(story.memory.left)
        story.go(waits[-1], [0.010, 0.010, 0.010])
    assert waits == [5, 10, 20, 40, 80, 160, 320, 320, 320]


def test_looking_again_stays_within_its_budget():
    for seconds in ([15.0, 7.5, 0.2], [0.010, 0.014, 0.019], [0.3, 0.2, 0.18]):
        story = Story(Auto()).go(30, seconds)
        best = min(seconds)
        story.go(story.memory.left, seconds)
        before = len(story.numbers)
        while story.memory.left == 0:
            story.go(1, seconds)
        extra = sum(seconds[n] - best for n in story.numbers[before:])
        wait = story.memory.left
        assert story.choice == seconds.index(best)
        assert wait >= 1000
        assert extra <= 0.01 * best * wait


def test_a_resumed_run_keeps_its_choice_and_its_place():
    seconds = [0.012, 0.011, 0.008]
    straight = Story(QUICK).go(40, seconds)
    for at in range(40):
        memory = QUICK.init(Layout.flat(8))
        memory.load_dict(Story(QUICK).go(at, seconds).memory.to_dict())
        resumed = Story(QUICK, memory).go(40 - at, seconds)
        assert resumed.numbers == straight.numbers[at:]
        assert resumed.memory == straight.memory


@pytest.mark.parametrize(
    "saved",
    [
        {"union": 7, "offered": 3},
        {"ways": 1, "choice": 2, "left": 9},
        {"choice": 2, "left": 9},
        {"ways": QUICK.signature, "choice": 3, "left": 9},
        {"ways": QUICK.signature, "choice": -1, "left": 9},
    ],
    ids=str,
)
def test_a_dict_of_another_collective_is_ignored(saved):
    memory = QUICK.init(Layout.flat(8))
    memory.load_dict(saved)
    story = Story(QUICK, memory).go(6, [0.1, 0.05, 0.02])
    assert story.numbers == TRIAL
    assert story.choice == SPARSE


def test_another_density_starts_all_over():
    story = Story(QUICK).go(8, [0.1, 0.05, 0.02])
    assert story.choice == SPARSE
    sparser = Story(QUICK.with_density(0.001), story.memory)
    assert sparser.choice is None
    assert sparser.go(6, [0.1, 0.05, 0.06]).numbers == TRIAL
    assert sparser.choice == WHOLE


def test_it_promises_what_every_way_keeps():
    assert Auto().grade is Grade.ROUNDING
    assert Auto().coded
    assert not Auto(candidates=(BF16(), UnionReduce())).coded
    assert Auto().cost(1000, 4, Split()) == Dense().cost(1000, 4, None)
    assert Auto(0.3).candidates == (BF16(), SparDL(0.3))
    assert Auto(0.3).with_density(0.1) == Auto(0.1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"density": 0.0}, "density is 0"),
        ({"rounds": 0}, "rounds is 0"),
        ({"visit": 1}, "visit is 1"),
        ({"visit": 2.5}, "visit is 2.5"),
        ({"recheck": 0}, "recheck is 0"),
        ({"candidates": ()}, "candidates is empty"),
        ({"candidates": (Auto(),)}, "cannot try itself"),
    ],
)
def test_what_makes_no_sense_is_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        Auto(**options)


def test_candidates_must_fit_the_ranks():
    auto = Auto(candidates=(SparDL(teams=3), GTopK()))
    auto.check(6)
    with pytest.raises(ConfigError, match="does not divide 4"):
        auto.check(4)


def test_the_memory_of_another_collective_is_refused():
    with pytest.raises(ConfigError, match="memory of another collective"):
        choose(Auto(), CollectiveMemory(), 8, 0)
