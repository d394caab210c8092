"""The pipeline end to end on simulated ranks: means, memory, agreement, cost."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from tests.laws.cases import integers, reals
from thinwire.choosers import BySize, Warmup
from thinwire.codecs import Split
from thinwire.collectives import BF16, AllGather, Dense, SparDL
from thinwire.cost import Cost
from thinwire.errors import AgreementError, ConfigError
from thinwire.feedback import Forget
from thinwire.groups import Counted, simulate
from thinwire.layout import Layout
from thinwire.reducers import Pipeline
from thinwire.sparse import SparseVector

F32, BF, F16 = torch.float32, torch.bfloat16, torch.float16
RANKS = (1, 2, 3, 4)
EVERYTHING = {
    "dense": Pipeline(Dense()),
    "bf16": Pipeline(BF16()),
    "topk": Pipeline(AllGather(1.0), Split()),
}
SPARSE = Pipeline(AllGather(0.1), Split())
PIECES = {
    "one": [(20, F32)],
    "bfloat16": [(20, BF)],
    "float16": [(20, F16)],
    "several": [(7, F32), (13, F32)],
    "mixed": [(0, F32), (5, BF), (3, F32), (0, F16), (12, F16)],
}


@dataclass
class Diary:
    """The gradients, means and residuals of one rank, by step."""

    given: list[Tensor] = field(default_factory=list)
    written: list[Tensor] = field(default_factory=list)
    means: list[Tensor | None] = field(default_factory=list)
    left: list[Tensor] = field(default_factory=list)


def cut(vector, pieces):
    """A flat gradient as pieces of their own dtype."""
    parts = vector.split([length for length, _ in pieces])
    return [p.to(d, copy=True) for p, (_, d) in zip(parts, pieces, strict=True)]


def flat(pieces):
    return torch.cat([piece.float() for piece in pieces])


def dense(mean):
    if mean is None:
        return None
    return mean.to_dense() if isinstance(mean, SparseVector) else mean.clone()


def train(pipeline, ranks, gradient, *, pieces=((20, F32),), steps=1, **options):
    """Some steps on every rank: `gradient(rank, step)` is what it gives."""
    size = sum(length for length, _ in pieces)

    def body(group):
        state, diary = pipeline.init(Layout.flat(size)), Diary()
        for step in range(steps):
            grad = cut(gradient(group.rank, step), pieces)
            diary.given.append(flat(grad))
            diary.means.append(dense(pipeline.reduce_(grad, group, state, **options)))
            diary.written.append(flat(grad))
            diary.left.append(state.memory.x.whole().clone())
            assert state.step == step + 1
        return diary

    return simulate(ranks, body)


@pytest.mark.parametrize("method", EVERYTHING)
@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("ranks", RANKS)
def test_whole_numbers_get_their_mean_in_the_dtype_of_each_piece(method, pieces, ranks):
    small = lambda rank, step: (integers(rank, step, 20) % 17) - 8  # noqa: E731
    diaries = train(EVERYTHING[method], ranks, small, pieces=PIECES[pieces], steps=3)
    for step in range(3):
        total = sum(diary.given[step] for diary in diaries)
        mean = flat(cut(total / ranks, PIECES[pieces]))
        for diary in diaries:
            assert torch.equal(diary.written[step], mean)
            assert torch.equal(diary.means[step], total / ranks)
            assert torch.count_nonzero(diary.left[step]) == 0


@pytest.mark.parametrize("method", EVERYTHING)
@pytest.mark.parametrize("ranks", RANKS)
def test_reals_get_their_mean_within_rounding(method, ranks):
    diaries = train(EVERYTHING[method], ranks, lambda rank, _: reals(rank, 1, 20))
    given = torch.stack([diary.given[0] for diary in diaries]).double()
    # Once of the parts and once of the sum for bf16; float32 sums otherwise.
    eps = 2.0**-7 * 1.01 if method == "bf16" else 2.0**-23 * ranks
    for diary in diaries:
        error = (diary.written[0].double() - given.mean(0)).abs()
        assert (error <= eps * given.abs().mean(0)).all()
        assert torch.equal(diary.written[0], diaries[0].written[0])


@pytest.mark.parametrize(
    "pipeline",
    [
        SPARSE,
        Pipeline(BF16()),
        Pipeline(Warmup(AllGather(0.05), dense=1, ramp=2), Split()),
        Pipeline(BySize(30, AllGather(0.1)), Split()),
        Pipeline(AllGather(0.1), Split(), on_nonfinite="unchecked"),
    ],
    ids=lambda pipeline: str(pipeline.collective),
)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_what_was_given_was_applied_or_is_remembered(pipeline, ranks):
    pieces = [(11, F32), (29, F32)]
    gradient = lambda rank, step: integers(rank, step, 40)  # noqa: E731
    diaries = train(pipeline, ranks, gradient, pieces=pieces, steps=6)
    given = torch.zeros(40)
    applied = torch.zeros(40)
    for step in range(6):
        given += sum(diary.given[step] for diary in diaries)
        applied += ranks * diaries[0].written[step]
        left = sum(diary.left[step] for diary in diaries)
        assert torch.equal(given, applied + left), step
        for diary in diaries:
            assert torch.equal(diary.written[step], diary.means[step])
            assert torch.equal(diary.written[step], diaries[0].written[step])


def test_pieces_of_any_cut_give_the_same_bits():
    gradient = lambda rank, step: reals(rank, step, 90)  # noqa: E731
    cuts = [[(90, F32)], [(n, F32) for n in (0, 1, 63, 2, 24)]]
    whole, cut_up = (train(SPARSE, 2, gradient, pieces=c, steps=4) for c in cuts)
    for one, other in zip(whole, cut_up, strict=True):
        assert torch.equal(torch.stack(one.written), torch.stack(other.written))
        assert torch.equal(torch.stack(one.left), torch.stack(other.left))


def test_without_feedback_nothing_is_remembered():
    pipeline = Pipeline(AllGather(0.25), Split(), feedback=Forget())
    gradient = lambda rank, step: torch.tensor([8.0 + step, 4.0, 2.0, 1.0])  # noqa: E731
    (diary,) = train(pipeline, 1, gradient, pieces=[(4, F32)], steps=2)
    assert diary.written[1].tolist() == [9, 0, 0, 0]
    assert diary.left[1].tolist() == [0, 4, 2, 1]


@pytest.mark.parametrize("per_name", [False, True])
@pytest.mark.parametrize(
    ("layout", "pieces"),
    [
        (Layout((), ()), []),
        (Layout.flat(0), [0]),
        (Layout(("a", "b"), ((0, 3), (0,))), [0, 0]),
        (Layout(("a", "b", "c", "d"), ((0,), (2,), (0, 9), (1,))), [3]),
        (Layout(("a", "b", "c", "d"), ((0,), (2,), (0, 9), (1,))), [0, 2, 0, 1]),
    ],
    ids=str,
)
@pytest.mark.parametrize("method", EVERYTHING)
def test_empty_vectors_and_empty_names_are_no_exception(
    method, layout, pieces, per_name
):
    def body(group):
        state = EVERYTHING[method].init(layout)
        grad = [torch.ones(length) for length in pieces]
        for _ in range(2):
            EVERYTHING[method].reduce_(grad, group, state, per_name=per_name)
        assert state.step == 2
        return torch.cat([*grad, torch.ones(0)])

    for mean in simulate(2, body):
        assert torch.equal(mean, torch.ones(layout.size))


# What a step that is not finite does


@pytest.mark.parametrize("dtype", [F32, BF, F16], ids=str)
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("mode", ["propagate", "zero"])
def test_one_bad_value_on_one_rank_makes_the_step_nonfinite_on_all(dtype, bad, mode):
    pipeline = Pipeline(AllGather(0.1), Split(), on_nonfinite=mode)
    pieces = [(12, F32), (8, dtype)]

    def body(group):
        state = pipeline.init(Layout.flat(20))
        pipeline.reduce_(cut(integers(group.rank, 0, 20), pieces), group, state)
        before = state.memory.x.whole().clone()
        grad = cut(integers(group.rank, 1, 20), pieces)
        if group.rank == 2:
            grad[1][3] = bad
        assert pipeline.reduce_(grad, group, state, scale=2.0) is None
        assert torch.equal(
            state.memory.x.whole().view(torch.int32), before.view(torch.int32)
        )
        assert (state.step, state.memory.scale) == (1, 1.0)
        again = cut(integers(group.rank, 2, 20), pieces)
        assert pipeline.reduce_(again, group, state) is not None
        return flat(grad), flat(again), state.memory.x.whole()

    written, after, left = zip(*simulate(3, body), strict=True)
    expect = torch.full((20,), float("nan") if mode == "propagate" else 0.0)
    for one in written:
        assert torch.equal(one.isnan(), expect.isnan())
        assert torch.equal(one.nan_to_num(), expect.nan_to_num())
    # As if the step had never been.
    skipped = train(
        pipeline, 3, lambda r, s: integers(r, 2 * s, 20), pieces=pieces, steps=2
    )
    for rank, diary in enumerate(skipped):
        assert torch.equal(after[rank], diary.written[1])
        assert torch.equal(left[rank], diary.left[1])


def test_unchecked_is_not_checked():
    def body(group):
        counted = Counted(group)
        pipeline = Pipeline(Dense(), on_nonfinite="unchecked")
        state = pipeline.init(Layout.flat(3))
        grad = torch.tensor([1.0, float("inf") if group.rank else 2.0, 3.0])
        mean = pipeline.reduce_([grad], counted, state)
        assert state.step == 1
        assert mean is not None
        assert counted.traffic.cost == pipeline.cost(3, 2) == Dense().cost(3, 2, None)
        return grad.tolist()

    assert simulate(2, body) == [[1.0, float("inf"), 3.0]] * 2


@pytest.mark.parametrize("dtype", [F32, BF, F16], ids=str)
def test_unchecked_infinities_pass_through_and_are_not_remembered(dtype):
    def body(group):
        pipeline = Pipeline(Dense(), on_nonfinite="unchecked")
        state = pipeline.init(Layout.flat(2))
        grad = torch.tensor([1.0, float("inf") if group.rank else 2.0], dtype=dtype)
        pipeline.reduce_([grad], group, state)
        again = torch.tensor([1.0, 2.0], dtype=dtype)
        pipeline.reduce_([again], group, state)
        return grad.tolist(), again.tolist()

    assert simulate(2, body) == [([1.0, float("inf")], [1.0, 2.0])] * 2


@pytest.mark.parametrize("mode", ["propagate", "zero"])
def test_a_mean_beyond_half_precision_waits_for_a_smaller_scale(mode):
    pipeline = Pipeline(AllGather(0.5), Split(), on_nonfinite=mode)

    def body(group):
        state = pipeline.init(Layout.flat(2))
        for grad in ([60000.0, 48000.0], [0.0, 48000.0]):
            piece = torch.tensor(grad, dtype=F16)
            mean = pipeline.reduce_([piece], group, state)
        assert mean is None
        assert state.step == 1
        assert state.memory.x.whole().tolist() == [0, 96000]
        smaller = torch.zeros(2, dtype=F16)
        assert pipeline.reduce_([smaller], group, state, scale=0.5) is not None
        assert torch.count_nonzero(state.memory.x.whole()) == 0
        return piece.nan_to_num(nan=-1.0).tolist(), smaller.tolist()

    written = [-1, -1] if mode == "propagate" else [0, 0]
    assert simulate(2, body) == [(written, [0, 48000])] * 2


# Deliveries that nobody applied


@pytest.mark.parametrize(
    "pipeline",
    [SPARSE, Pipeline(Dense()), Pipeline(BF16())],
    ids=lambda p: str(p.collective),
)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_what_is_taken_back_is_remembered(pipeline, ranks):
    def body(group):
        state = pipeline.init(Layout.flat(30))
        given = torch.zeros(30)
        for step in range(2):
            grad = integers(group.rank, step, 30)
            given += grad
            mean = pipeline.reduce_([grad], group, state)
            pipeline.take_back_(mean, state)
            assert state.step == 0
        return given, state.memory.x.whole()

    given, held = zip(*simulate(ranks, body), strict=True)
    assert torch.equal(sum(given), sum(held))


# Names that take no part


NAMES = Layout(("a", "b"), ((4,), (4,)))


def test_a_name_without_gradient_anywhere_rests():
    pipeline = Pipeline(AllGather(0.25), Split())

    def body(group):
        state = pipeline.init(NAMES)
        first = torch.tensor([8.0, 7.0, 1.0, 1.0, 6.0, 5.0, 4.0, 3.0])
        pipeline.reduce_([first], group, state, per_name=True)
        rested = state.memory.x.whole()[4:].clone()
        second = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
        pipeline.reduce_([second], group, state, per_name=True)
        assert torch.equal(state.memory.x.whole()[4:], rested)
        return second.tolist(), state.memory.x.whole().tolist()

    # Larger things rest in b, yet a is delivered.
    for mean, left in simulate(3, body):
        assert mean == [0, 0, 2, 2, 0, 0, 0, 0]
        assert left == [0, 0, 0, 0, 6, 5, 4, 3]


def test_a_name_with_gradient_on_one_rank_takes_part_on_all():
    pipeline = Pipeline(AllGather(0.25), Split())

    def body(group):
        state = pipeline.init(NAMES)
        first = torch.tensor([8.0, 7.0, 0.0, 0.0, 6.0, 5.0, 0.0, 0.0])
        pipeline.reduce_([first], group, state, per_name=True)
        second = torch.zeros(8)
        if group.rank == 1:
            second[7] = 9.0
        pipeline.reduce_([second], group, state, per_name=True)
        return second.tolist()

    # Rank 0 sends 6 and 5, rank 1 sends 6 and 9: its 5 waits.
    assert simulate(2, body) == [[0, 0, 0, 0, 6, 2.5, 0, 4.5]] * 2


def test_a_resting_name_moves_with_the_scale():
    def body(group):
        state = SPARSE.init(Layout(("a", "b"), ((10,), (10,))))
        grad = torch.arange(20.0)
        SPARSE.reduce_([grad], group, state, per_name=True)
        held = state.memory.x.whole().clone()
        grad = torch.zeros(20)
        SPARSE.reduce_([grad], group, state, scale=4.0, per_name=True)
        assert torch.equal(state.memory.x.whole(), 4 * held)
        assert torch.count_nonzero(grad) == 0

    simulate(2, body)


def test_rest_does_not_depend_on_what_selection_remembers():
    layout = Layout(("a", "b"), ((3000,), (3000,)))
    pipeline = Pipeline(AllGather(0.01), Split())

    def body(group):
        state = pipeline.init(layout)
        for step in range(3):
            grad = torch.cat([reals(0, step, 3000), 100 + reals(1, step, 3000)])
            pipeline.reduce_([grad], group, state, per_name=True)
        fresh = pipeline.init(layout)
        fresh.memory.x.whole().copy_(state.memory.x.whole())
        means = []
        for each in (state, fresh):
            grad = torch.cat([reals(0, 9, 3000), torch.zeros(3000)])
            means.append(pipeline.reduce_([grad], group, each, per_name=True))
        return [mean.to_dict() for mean in means]

    for known, fresh in simulate(2, body):
        assert known == fresh
        assert max(known) < 3000


def test_a_name_that_is_cut_in_two_is_refused():
    def body(group):
        grad = [torch.ones(3), torch.ones(5)]
        SPARSE.reduce_(grad, group, SPARSE.init(NAMES), per_name=True)

    with pytest.raises(ConfigError, match="middle of a name"):
        simulate(1, body)


# What ranks must have in common


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    ("density", "scale", "said"),
    [(0.2, 1.0, "density: from 0.1 to 0.2"), (0.1, 2.0, "loss scale: from 1.0 to 2.0")],
)
def test_different_settings_are_an_error_on_every_rank(ranks, density, scale, said):
    def body(group):
        odd = group.rank == ranks - 1
        pipeline = Pipeline(AllGather(density if odd else 0.1), Split())
        state = pipeline.init(Layout.flat(20))
        state.memory.x.whole().copy_(integers(group.rank, 0, 20))
        grad = integers(group.rank, 1, 20)
        with pytest.raises(AgreementError, match=said):
            pipeline.reduce_([grad], group, state, scale=scale if odd else 1.0)
        assert torch.equal(grad, integers(group.rank, 1, 20))
        assert torch.equal(state.memory.x.whole(), integers(group.rank, 0, 20))
        assert (state.step, state.memory.scale) == (0, 1.0)

    simulate(ranks, body)


def test_a_loss_scale_is_carried_from_step_to_step():
    # Twice the scale, twice the gradient: the same true values throughout.
    gradient = lambda rank, step: integers(rank, step, 40)  # noqa: E731

    def body(group, scales):
        state = SPARSE.init(Layout.flat(40))
        means = []
        for step, scale in enumerate(scales):
            grad = gradient(group.rank, step) * scale
            SPARSE.reduce_([grad], group, state, scale=scale)
            means.append((grad / scale).tolist())
        return means, (state.memory.x.whole() / scales[-1]).tolist()

    scaled = simulate(2, lambda group: body(group, [1.0, 8.0, 8.0, 2.0, 1024.0]))
    assert scaled == simulate(2, lambda group: body(group, [1.0] * 5))


# Cards and refusals


@pytest.mark.parametrize(
    "pipeline",
    [
        *EVERYTHING.values(),
        SPARSE,
        Pipeline(AllGather(0.1), Split(), on_nonfinite="unchecked"),
    ],
    ids=str,
)
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("size", "count"), [(0, 1), (1, 1), (101, 1), (101, 3)])
def test_what_is_counted_is_on_the_card(pipeline, ranks, size, count):
    def body(group):
        counted = Counted(group)
        pieces = integers(group.rank, 0, size).tensor_split(count)
        grad = [piece.clone() for piece in pieces]
        pipeline.reduce_(grad, counted, pipeline.init(Layout.flat(size)))
        return counted.traffic.cost

    costs = simulate(ranks, body)
    busiest = Cost(max(c.rounds for c in costs), max(c.nbytes for c in costs))
    assert busiest == pipeline.cost(size, ranks)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((AllGather(),), "needs a codec"),
        ((BySize(10, AllGather()),), "needs a codec"),
        ((Dense(), Split()), "leave the codec out"),
        ((BF16(), Split()), "leave the codec out"),
        ((Warmup(BF16(), dense=1), Split()), "leave the codec out"),
        ((Dense(), None, Forget(), "ignore"), "on_nonfinite is 'ignore'"),
    ],
    ids=str,
)
def test_stages_that_do_not_fit_are_refused(arguments, said):
    with pytest.raises(ConfigError, match=said):
        Pipeline(*arguments)


@pytest.mark.parametrize(
    ("grad", "said"),
    [
        ([torch.zeros(8, dtype=torch.float64)], "gradient in torch.float64"),
        ([torch.zeros(4), torch.zeros(4, dtype=torch.int32)], "torch.int32"),
        ([torch.zeros(7)], "7 elements for a layout of 8"),
        ([torch.zeros(8), torch.zeros(1)], "9 elements for a layout of 8"),
        ([], "0 elements for a layout of 8"),
    ],
    ids=str,
)
def test_a_gradient_that_is_not_the_layouts_is_refused(grad, said):
    def body(group):
        SPARSE.reduce_(grad, group, SPARSE.init(NAMES))

    with pytest.raises(ConfigError, match=said):
        simulate(1, body)


def test_a_delivery_taken_back_is_as_if_it_had_not_been_looked_for():
    pipeline = Pipeline(SparDL(0.3, teams=2, gather="bruck"), Split())

    def body(group):
        state = pipeline.init(Layout.flat(200))
        for step in range(4):
            pipeline.reduce_([integers(group.rank, step, 200)], group, state)
        before, step = state.collective.to_dict(), state.step
        mean = pipeline.reduce_([integers(group.rank, 4, 200)], group, state)
        moved = state.collective.to_dict()
        pipeline.take_back_(mean, state)
        after = state.collective.to_dict()
        return before != moved, after == before, state.step == step

    assert simulate(2, body) == [(True, True, True)] * 2
