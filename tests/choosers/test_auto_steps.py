"""Auto in whole reductions on simulated ranks."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from tests.choosers.test_auto import (
    DENSE,
    FAST,
    QUICK,
    SIZE,
    SLOW,
    SPARSE,
    TRIAL,
    WHOLE,
    Pretend,
)
from tests.laws.cases import integers
from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.choosers import Auto, BySize, Warmup, choose
from thinwire.codecs import Split
from thinwire.collectives import (
    MinBytes,
    SparDL,
)
from thinwire.feedback import Forget, Momentum
from thinwire.groups import simulate
from thinwire.layout import Layout
from thinwire.reducers import Pipeline
from thinwire.sparse import SparseVector


@dataclass
class Diary:
    """The ways one rank ran, and which steps were plain; the means, and the state."""

    numbers: list[int] = field(default_factory=list)
    plain: list[bool] = field(default_factory=list)
    means: list[Tensor] = field(default_factory=list)
    state: object = None


def train(pipeline, ranks, steps, *, link, states=None, clock=None, size=SIZE):
    """Steps as a pass with a single unit makes them, on simulated ranks."""

    def body(group):
        group = group if clock is None else clock(group)
        state = states[group.rank] if states else pipeline.init(Layout.flat(size))
        diary = Diary(state=state)
        for _ in range(steps):
            grad = [integers(group.rank, state.step, size)]
            diary.plain.append(pipeline.plain(state))
            diary.numbers.append(pipeline.collective.number(state.collective_memory))
            call = pipeline.reduce_plainly_ if diary.plain[-1] else pipeline.reduce_
            mean = call(grad, group, state)
            sparse = isinstance(mean, SparseVector)
            diary.means.append(mean.to_dense() if sparse else mean.clone())
            assert torch.equal(diary.means[-1], grad[0])
        return diary

    return simulate(ranks, body, link=link)


PIPELINE = Pipeline(QUICK, Split())


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(("link", "chosen"), [(SLOW, SPARSE), (FAST, DENSE)])
def test_the_link_decides_and_ranks_agree(ranks, link, chosen):
    diaries = train(PIPELINE, ranks, 10, link=link)
    assert diaries[0].numbers == [*TRIAL, *[chosen] * 4]
    # The first dense step also delivers the residual; the second one is plain.
    assert diaries[0].plain[:6] == [False] * 5 + [True]
    assert all(d.numbers == diaries[0].numbers for d in diaries)
    assert all(d.plain == diaries[0].plain for d in diaries)
    assert diaries[0].plain[-1] == (chosen == DENSE)
    memories = [d.state.collective_memory for d in diaries]
    assert all(each == memories[0] for each in memories)


def test_a_link_that_changes_is_noticed():
    diaries = train(PIPELINE, 3, 8, link=SLOW)
    states = [diary.state for diary in diaries]
    left = states[0].collective_memory.left
    for state in states:
        state.collective_memory.left = 2  # of the many steps until then
    assert left > 2
    for link, chosen in ((FAST, DENSE), (SLOW, SPARSE)):
        # Among three, dense takes 4 rounds, and the others 6 with their guard.
        diaries = train(PIPELINE, 3, 20, link=link, states=states)
        assert {diary.numbers[-1] for diary in diaries} == {chosen}
        for state in states:
            state.collective_memory.left = 2


class Skewed:
    """A group whose clock has an error of its own on every rank."""

    def __init__(self, group):
        self.group, self.rank, self.size = group, group.rank, group.size

    def __getattr__(self, name):
        return getattr(self.group, name)

    def now(self):
        return 1e3 * self.rank + (1 + self.rank) * self.group.now()


def test_ranks_with_different_clocks_agree():
    plain = train(PIPELINE, 3, 5, link=SLOW)
    skewed = train(PIPELINE, 3, 5, link=SLOW, clock=Skewed)
    times = [d.state.collective_memory.times for d in skewed]
    assert times[0] == times[1] == times[2]
    assert [d.numbers for d in skewed] == [d.numbers for d in plain]
    # The slowest clock counts: that of rank 2 is three times as fast.
    expected = plain[0].state.collective_memory.times[2][1]
    assert times[0][2][1] == pytest.approx(3 * expected, rel=0.01)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("link", [SLOW, FAST])
def test_nothing_is_lost_over_any_change(ranks, link):
    steps = 25
    diaries = train(PIPELINE, ranks, steps, link=link)
    given = sum(
        integers(rank, step, SIZE) for rank in range(ranks) for step in range(steps)
    )
    delivered = ranks * sum(diaries[0].means)
    residual = sum(diary.state.memory.x.whole() for diary in diaries)
    assert torch.equal(delivered + residual, given)
    for diary in diaries:
        assert all(map(torch.equal, diary.means, diaries[0].means))


def test_what_is_undone_was_not_tried():
    def body(group):
        state = PIPELINE.init(Layout.flat(SIZE))
        numbers = []
        for _ in range(3):
            grad = [integers(group.rank, 0, SIZE)]
            numbers.append(QUICK.number(state.collective_memory))
            saved = state.collective_memory.to_dict(), state.has_residual
            state.undoable = True
            PIPELINE.reduce_(grad, group, state)
            PIPELINE.undo_(state)
            assert (state.collective_memory.to_dict(), state.has_residual) == saved
            PIPELINE.reduce_([integers(group.rank, 0, SIZE)], group, state)
        return numbers

    assert simulate(2, body) == [[SPARSE, SPARSE, WHOLE]] * 2


def test_one_rank_alone_has_nothing_to_try():
    (diary,) = train(PIPELINE, 1, 4, link=SLOW)
    assert diary.numbers == [SPARSE, DENSE, DENSE, DENSE]
    assert diary.plain == [False, False, True, True]


@pytest.mark.parametrize("size", [0, 1])
def test_next_to_nothing_to_reduce(size):
    diaries = train(PIPELINE, 2, 8, link=SLOW, size=size)
    assert diaries[0].numbers == diaries[1].numbers


def test_a_ramp_runs_the_last_candidate_and_then_trying_begins():
    warmup = Warmup(QUICK, dense=1, ramp=3, start=0.1)
    pipeline = Pipeline(warmup, Split())

    def body(group):
        state, numbers = pipeline.init(Layout.flat(SIZE)), []
        for step in range(11):
            memory = state.collective_memory
            numbers.append(DENSE if step < 1 else warmup.at(step).number(memory))
            assert not (step == 0 and pipeline.timed(state))
            pipeline.reduce_([integers(group.rank, step, SIZE)], group, state)
        return numbers

    for numbers in simulate(2, body):
        assert numbers == [DENSE, SPARSE, SPARSE, SPARSE, *TRIAL, DENSE]


def test_small_vectors_may_be_exempt():
    by_size = BySize(100, QUICK)
    small, large = (by_size.init(Layout.flat(size)) for size in (99, 100))
    exempt, tried = choose(by_size, small, 99, 0), choose(by_size, large, 100, 0)
    assert (exempt.plain, exempt.timed, exempt.finish) == (True, False, None)
    assert (tried.plain, tried.timed) == (False, True)
    tried.finish(0.1, Channel(Pretend()))
    assert large.times == [[], [], [100_000_000]]


@pytest.mark.parametrize(
    "options", [{"feedback": Momentum()}, {"on_nonfinite": "zero"}], ids=str
)
def test_not_everything_can_be_left_to_the_library(options):
    pipeline = Pipeline(QUICK, Split(), **options)
    diaries = train(pipeline, 2, 10, link=FAST)
    assert not any(diaries[0].plain)


def test_without_feedback_the_first_dense_step_is_plain():
    pipeline = Pipeline(QUICK, Split(), Forget())
    diaries = train(pipeline, 2, 7, link=FAST)
    assert diaries[0].plain[:6] == [False] * 4 + [True] * 2


def test_candidates_keep_their_own_memories():
    """Their entries have a prefix."""
    auto = Auto(0.05, (MinBytes(), SparDL(teams=2, gather="bruck")), rounds=1, visit=2)

    def body(group):
        state, x = auto.init(Layout.flat(SIZE)), Accumulator(SIZE)
        saved = []
        for step in range(4):
            x.accumulate_(integers(group.rank, step, SIZE))
            channel = Channel(group, Split(), step=step)
            auto.all_reduce_(x, channel, state, lambda: torch.empty(SIZE))
            auto.finish(0.001, channel, state)
            saved.append(state.to_dict())
        return saved

    for saved in simulate(2, body):
        assert {"2.teams", "2.h@0"} <= saved[1].keys()
        assert saved[1]["2.teams"] == 2
        assert {"1.union", "1.offered"} <= saved[3].keys()
