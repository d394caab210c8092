"""The pipeline end to end on simulated ranks: means, memory, agreement, cost."""

import pytest
import torch

from tests.laws.cases import integers, reals
from tests.reducers.test_pipeline_names import NAMES
from tests.reducers.training import (
    EVERYTHING,
    F32,
    PIECES,
    RANKS,
    SPARSE,
    cut,
    flat,
    train,
)
from thinwire.choosers import BySize, Warmup
from thinwire.codecs import Split
from thinwire.collectives import BF16, AllGather, Dense
from thinwire.cost import Cost
from thinwire.errors import AgreementError, ConfigError
from thinwire.feedback import Forget
from thinwire.groups import Counted, simulate
from thinwire.layout import Layout
from thinwire.reducers import Pipeline


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


# Deliveries that nobody applied


# Names that take no part


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
