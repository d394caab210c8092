"""Real processes measure networks, reductions and training, and verify the results."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.workers import pool
from thinwire.collectives import Dense
from thinwire.errors import ConfigError, ReplicaError
from thinwire.tools.bench import methods, net, reduce, torch_methods, train
from thinwire.tools.bench.methods import MethodSpec, method_specs
from thinwire.tools.bench.models import matrices, resnet20, vgg16
from thinwire.tools.bench.ranks import ignore_progress
from thinwire.tools.bench.torch_methods import PEERS, TorchHook

pytestmark = pytest.mark.processes

METHODS = ("spardl", "topk", "bf16", "gs-sgd", "s2", "spardl:teams=2")


def measured(group, settings):
    events = []
    result = settings.measure(events.append if group.rank == 0 else ignore_progress)
    return result, events


def test_a_network_is_measured_in_both_directions_of_every_pair():
    (first, events), (second, _) = pool(2).run(measured, net.Settings(shaped=True))
    assert first == second  # pairs are measured once, and all ranks get the results
    assert first.ranks == first.ranks_per_machine == first.ranks_per_host == 2
    assert first.hosts == 1
    assert first.shaped
    assert first.latency > 0
    assert all(rate > 0 for rate in (first.pair, first.together, first.flow))
    assert [row.count(0.0) for row in first.bandwidths] == [1, 1]
    assert events[-1].done == events[-1].of


def test_one_rank_is_no_network():
    with pytest.raises(ConfigError, match="1 rank"):
        pool(1).run(measured, net.Settings())


def test_reductions_are_timed():
    settings = reduce.Settings(
        size=20_000,
        density=0.02,
        methods=METHODS,
        codecs=("rice+int8", "raw"),
        peers=PEERS,
        repeats=3,
        rate=10**9,
    )
    (result, events), (again, _) = pool(2).run(measured, settings)
    labels = [row.label for row in result.rows]
    assert labels[: len(PEERS)] == list(PEERS)
    assert "spardl:teams=2 raw" in labels
    assert "topk rice+int8" in labels
    assert "bf16" in labels  # it takes no codec
    assert len(set(labels)) == len(labels) == len(PEERS) + 3 * 2 + 3
    assert again.rows == result.rows
    by_label = {row.label: row for row in result.rows}
    check_rows(by_label)
    assert events[-1].done == events[-1].of
    assert (result.kept, result.ranks) == (400, 2)


def check_rows(rows):
    for row in rows.values():
        assert len(row.walls) == 3
        assert 0 < row.low <= row.seconds <= row.high <= max(row.walls)
        assert row.cpu > 0
        assert row.wire is None  # ranks on loopback share an interface
        assert row.forecast == pytest.approx(row.cpu + row.sent / 125e6)
        assert sum(row.phases.values()) > 0
    dense = Dense().cost(20_000, 2, None).nbytes
    assert rows["torch"].sent == dense
    assert rows["torch-bf16"].sent == dense // 2
    assert rows["powersgd-1"].sent < rows["powersgd-4"].sent < dense
    assert rows["torch"].error == 0
    assert 0 < rows["torch-fp16"].error < 1e-3 < rows["torch-bf16"].error < 1e-2
    assert rows["topk raw"].error < rows["powersgd-1"].error < 1
    assert rows["topk raw"].phases["select"] > 0


class Lossy(TorchHook):
    """Loses a thousandth of every element."""

    def reduce_(self, grad):
        super().reduce_(grad)
        grad.mul_(0.999)


class Divergent(TorchHook):
    """Gives every rank a different mean."""

    def reduce_(self, grad):
        super().reduce_(grad)
        grad[7] += 1e-3 * dist.get_rank()


def with_a_broken_hook(group, broken):
    """Measure a class in place of PyTorch's fp16 hook."""
    honest = methods.build

    def build(spec, size, density, ranks):
        if spec.method != "torch-fp16":
            return honest(spec, size, density, ranks)
        return broken(size, *torch_methods.HOOKS["torch"])

    reduce.build = build
    try:
        settings = reduce.Settings(size=1000, peers=("torch-fp16",), repeats=3)
        settings.measure(ignore_progress)
    except ReplicaError as error:
        return str(error)
    finally:
        reduce.build = honest


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (Lossy, "delivered and residual differ"),
        (Divergent, "ranks got different means"),
    ],
)
def test_a_method_that_loses_something_is_not_timed(broken, said):
    for message in pool(2).run(with_a_broken_hook, broken):
        assert said in message
        assert "torch-fp16" in message


def small():
    model = nn.Sequential(nn.Linear(8, 40), nn.ReLU(), nn.Linear(40, 3))
    return model, lambda model: model(torch.randn(4, 8)).square().mean()


def test_training_steps_of_a_model_of_the_users():
    settings = train.Settings(
        model=f"{__name__}:small",
        methods=("topk",),
        peers=("torch-bf16", "torch-fp16", "powersgd-1"),
        steps=3,
    )
    (result, _), (again, _) = pool(2).run(measured, settings)
    assert result.rows == again.rows
    assert result.parameters == 8 * 40 + 40 + 40 * 3 + 3
    labels = [row.label for row in result.rows]
    assert labels == [
        train.ALONE,
        *settings.peers[:0],
        "torch",
        *settings.peers,
        "topk",
    ]
    assert all(len(row.walls) == 3 for row in result.rows)
    assert result.rows[-1].sent > 0


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("alexnet", "unknown model 'alexnet'"),
        ("nowhere_at_all:model", "cannot find the model"),
        (f"{__name__}:nothing", "cannot find the model"),
        (f"{__name__}:METHODS", "no function"),
    ],
)
def test_a_model_that_is_none_is_refused(model, said):
    with pytest.raises(ConfigError, match=said):
        train.Settings(model=model).check(2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"size": 0}, "0 parameters"),
        ({"density": 2.0}, "density is 2.0"),
        ({"repeats": 2}, "2 repeats"),
        ({"seconds": 0.0}, "0.0 seconds"),
        ({"methods": ("top-k",)}, "unknown method 'top-k'"),
        ({"methods": ("spardl:teams",)}, "write options after the name"),
        ({"methods": ("spardl:colour=red",)}, "unknown option 'colour'"),
        ({"codecs": ("zip",)}, "unknown codec 'zip'"),
        ({"peers": ("horovod",)}, "unknown peer 'horovod'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, said):
    with pytest.raises(ConfigError, match=said):
        reduce.Settings(**{"size": 10, **changes})


def test_teams_that_do_not_fit_the_ranks_are_refused_before_anything_starts():
    with pytest.raises(ConfigError):
        reduce.Settings(size=10, methods=("spardl:teams=3",)).check(4)


def test_slow_ones_take_fewer_turns_spread_over_the_run():
    settings = reduce.Settings(size=10, repeats=10, seconds=5.0)
    spec = MethodSpec("torch")
    fast, slow = (reduce.MethodRun(spec, None, estimate=e) for e in (0.1, 4.0))
    assert fast.turns(settings) == set(range(10))
    assert slow.turns(settings) == {0, 3, 6}


def test_dense_is_first():
    assert [spec.label for spec in method_specs(["topk"], [], [])] == ["torch", "topk"]
    specs = method_specs(["deepreduce"], ["raw"], [])
    assert specs[1].label == "deepreduce"


def test_models_have_the_parameters_of_the_literature():
    counts = [
        sum(p.numel() for p in build()[0].parameters()) for build in (vgg16, resnet20)
    ]
    assert counts == [14_724_042, 269_722]


@pytest.mark.parametrize("size", [1, 26, 1000, 1_000_000, 40_000_000])
def test_matrices_add_up(size):
    assert sum(math.prod(shape) for shape in matrices(size)) == size
