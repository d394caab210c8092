"""The parts that only training has: clipping, shared decoding, what is compared."""

import pytest
import torch
from experiments.tasks.base import Recipe
from experiments.train.clipping import Clipped
from experiments.train.powersgd import LowRank, PowerSGD
from experiments.train.published_gtopk import PublishedGTopK
from experiments.train.reduction import Reduction
from experiments.train.replicas import sharing
from experiments.train.shared_decoding import SharedDecoding

from thinwire import catalog
from thinwire.codecs import Split
from thinwire.errors import ConfigError
from thinwire.feedback import Momentum, Residual
from thinwire.groups import simulate
from thinwire.layout import Layout
from thinwire.reducers import Pipeline
from thinwire.sparse import SparseVector


@pytest.mark.parametrize("size", [0.5, 5.0])
def test_a_long_gradient_is_clipped_before_it_is_remembered(size):
    feedback = Clipped(1.0, Residual())
    memory = feedback.init(Layout.flat(4), torch.device("cpu"))
    pieces = [torch.full((2,), size / 2), torch.full((2,), -size / 2)]
    feedback.accumulate(pieces, memory)
    assert memory.x.whole().norm().item() == pytest.approx(min(size, 1.0), rel=1e-4)
    assert not any(piece.any() for piece in pieces)


def reduced(collective, gradients):
    """The total, and what all ranks together still remember."""
    ranks, size = gradients.shape
    reducer = Pipeline(collective, Split())

    def body(group):
        state = reducer.init(Layout.flat(size))
        row = gradients[group.rank].clone()
        reducer.reduce_([row], group, state)
        return row * ranks, state.memory.x.whole()

    outcomes = simulate(ranks, body)
    return outcomes[0][0], sum(x for _, x in outcomes)


def test_the_published_rule_loses_what_was_dropped_and_arrived():
    generator = torch.Generator().manual_seed(1)
    common = torch.randint(-999, 1000, (600,), generator=generator)
    own = torch.randint(-999, 1000, (8, 600), generator=generator)
    gradients = (common + own).float()
    for collective, lost in (
        (catalog.reducer("gtopk", density=0.02).collective, False),
        (PublishedGTopK(0.02), True),
    ):
        total, kept = reduced(collective, gradients)
        assert torch.equal(total + kept, gradients.sum(0)) != lost


def test_the_published_rule_gives_back_what_it_sent():
    """Not more, where a codec rounds."""
    reducer = Pipeline(PublishedGTopK(0.02), catalog.codec("int32+bfloat16"))
    gradients = torch.rand(2, 100, generator=torch.Generator().manual_seed(1)) + 1.0

    def body(group):
        state = reducer.init(Layout.flat(100))
        row = gradients[group.rank].clone()
        reducer.reduce_([row], group, state)
        return row, state.memory.x.whole()

    for rank, (mean, kept) in enumerate(simulate(2, body)):
        undelivered = mean == 0.0
        assert torch.equal(kept[undelivered], gradients[rank][undelivered])


def test_what_was_decoded_once_is_not_decoded_again():
    decoded = []

    class Watched(Split):
        def decode(self, *arguments, **more):
            decoded.append(1)
            return super().decode(*arguments, **more)

    codec = SharedDecoding(Watched())
    vector = SparseVector.of({3: 1.5, 7: -2.0}, size=9)
    packet = codec.encode(vector)
    for nnz in (None, 2, 2):
        assert codec.decode(packet, 9, nnz).to_dict() == vector.to_dict()
    assert len(decoded) == 1
    codec.decode(codec.encode(SparseVector.of({3: 1.0}, size=9)), 9)
    assert len(decoded) == 2


def test_low_rank_errors_make_up_for_what_is_left_out():
    """What was delivered and what is remembered add up to what there was."""
    layout = Layout(("w", "b"), ((32, 24), (5,)))
    rows = torch.zeros(3, layout.size)
    low_rank = LowRank(PowerSGD(rank=2, dense=2), layout, rows)
    given, delivered = torch.zeros(layout.size), torch.zeros(layout.size)
    for _ in range(5):
        rows.normal_()
        given += rows.mean(0)
        low_rank.reduce_(rows)
        delivered += rows[0]
    residual = low_rank.state_dict()["error"].mean(0)
    torch.testing.assert_close(delivered + residual, given, rtol=1e-4, atol=1e-5)
    assert residual.norm() > 0.1
    assert not residual[-5:].any()


def test_bad_settings_of_powersgd_are_named():
    with pytest.raises(ConfigError, match="rank is 0"):
        PowerSGD(rank=0)
    with pytest.raises(ConfigError, match="dense is 1"):
        PowerSGD(dense=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"feedback": "momentum"}, "powersgd knows no feedback"),
        ({"clip_locally": True, "codec": "raw"}, "no codec, clip_locally"),
        ({"options": {"rnk": 2}}, "rnk"),
        ({"options": {"rank": "two"}}, "cannot be read"),
        ({"method": "gtopk-published", "options": {"variant": "tree"}}, "variant"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(settings, message):
    """Momentum, for example, would be neither the optimizer's nor the feedback's."""
    recipe = Recipe(epochs=1, batch=1, learning_rate=0.1, momentum=0.9)
    with pytest.raises(ConfigError, match=message):
        Reduction(**{"method": "powersgd", **settings}).reducer(recipe, 2, 0)


def test_momentum_moves_to_the_feedback():
    recipe = Recipe(
        epochs=1, batch=1, learning_rate=0.1, momentum=0.8, weight_decay=1e-3, clip=1.0
    )
    model = torch.nn.Linear(2, 2)
    reduction = Reduction(method="topk", feedback="momentum", clip_locally=True)
    (group,) = reduction.optimizer(recipe, model).param_groups
    assert group["momentum"] == 0.0
    assert group["weight_decay"] == pytest.approx(5e-3)
    feedback = reduction.reducer(recipe, 4, 0).feedback
    assert feedback == Clipped(0.5, Momentum(0.8))
    assert reduction.clip(recipe) is None
    (plain,) = Reduction().optimizer(recipe, model).param_groups
    assert plain["momentum"] == 0.8


def test_a_copy_shares_parameters_and_not_buffers():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    other = sharing(model)
    with torch.no_grad():
        model[0].weight.fill_(2.0)
        model[1].running_mean.fill_(7.0)
    assert other[0].weight.eq(2.0).all()
    assert other[1].running_mean.eq(0.0).all()
    assert other[0].weight is not model[0].weight
