"""Virtual workers and real processes are two ways to run the same experiment."""

from dataclasses import replace

import pytest
import torch
from experiments.train.reduction import Reduction
from experiments.train.run import Limits, run_virtual
from experiments.train.spec import Spec

from tests.experiments.toy_task import Toy, in_hurried_process, in_process
from tests.workers import pool
from thinwire.errors import ConfigError

CPU = torch.device("cpu")

EXACT = {
    "topk": Reduction(method="topk", density=0.05),
    "topk, momentum": Reduction(method="topk", density=0.05, feedback="momentum"),
    "gtopk": Reduction(method="gtopk", density=0.05),
    "spardl": Reduction(method="spardl", density=0.05, codec="rice+log4"),
    "gs-sgd": Reduction(method="gs-sgd", density=0.02, options={"sum": "tree"}),
}
ROUNDED = {
    "dense": Reduction(method="dense"),
    "bf16": Reduction(method="bf16"),
    "powersgd": Reduction(method="powersgd", options={"rank": 2, "dense": 3}),
    "powersgd 4": Reduction(method="powersgd", options={"rank": 4, "dense": 3}),
}


def spec_of(reduction, ranks, **more):
    return Spec(task="toy", reduction=reduction, workers=ranks, **more)


def both(task, spec):
    virtual = run_virtual(task, spec, device=CPU)
    real = pool(spec.workers).run(in_process, task, spec)
    return virtual, real


@pytest.mark.processes
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", EXACT)
def test_same_parameters_to_the_bit(name, ranks):
    virtual, real = both(Toy(carrying=ranks == 3), spec_of(EXACT[name], ranks))
    for each in real:
        assert each["history"]["checksum"] == virtual["history"]["checksum"]
    # The held-out loss is also that of rank 0's buffers.
    for figure in ("metric", "bytes_per_step", "residual_norm"):
        assert real[0]["history"][figure] == pytest.approx(virtual["history"][figure])


@pytest.mark.processes
@pytest.mark.parametrize("name", ROUNDED)
def test_same_losses_to_rounding(name):
    virtual, real = both(Toy(), spec_of(ROUNDED[name], 2))
    for each in real:
        history = each["history"]
        assert history["loss"] == pytest.approx(virtual["history"]["loss"], rel=1e-5)
        assert history["bytes_per_step"] == virtual["history"]["bytes_per_step"]


@pytest.mark.processes
def test_the_first_rank_says_when_time_is_up():
    spec = spec_of(EXACT["topk"], 2)
    for each in pool(2).run(in_hurried_process, Toy(), spec):
        assert len(each["history"]["metric"]) == 2


@pytest.mark.processes
def test_what_cannot_be_kept_is_refused_before_it_is_trained(tmp_path):
    limits = Limits(checkpoint=tmp_path / "run.pt")
    with pytest.raises(ConfigError, match="not checkpointed"):
        pool(2).run(in_process, Toy(), spec_of(ROUNDED["powersgd"], 2), limits)


@pytest.mark.processes
def test_sparse_embeddings_take_the_same_way():
    task = Toy(sparse=True, recipe=replace(Toy().recipe, clip=None, momentum=0.0))
    spec = spec_of(replace(EXACT["spardl"], sparse="union"), 3)
    virtual, real = both(task, spec)
    assert real[0]["history"]["loss"][0] > 0
    losses = real[0]["history"]["loss"]
    assert losses == pytest.approx(virtual["history"]["loss"], rel=1e-5)


@pytest.mark.parametrize(
    "reduction",
    [*EXACT.values(), *ROUNDED.values(), Reduction(method="deepreduce")],
    ids=lambda each: each.method,
)
def test_a_resumed_run_is_the_run_that_never_stopped(tmp_path, reduction):
    spec, path = spec_of(reduction, 3), tmp_path / "run.pt"
    whole = run_virtual(Toy(), spec, device=CPU)
    first = run_virtual(
        Toy(), spec, device=CPU, limits=Limits(checkpoint=path, stop_after=1)
    )
    assert first is None
    resumed = run_virtual(Toy(), spec, device=CPU, limits=Limits(checkpoint=path))
    for figure in ("checksum", "loss", "metric", "bytes_per_step", "residual_norm"):
        assert resumed["history"][figure] == whole["history"][figure], figure


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    limits = Limits(checkpoint=tmp_path / "run.pt", stop_after=1)
    run_virtual(Toy(), spec_of(EXACT["topk"], 2), device=CPU, limits=limits)
    with pytest.raises(ConfigError, match="another run"):
        run_virtual(Toy(), spec_of(EXACT["topk"], 2, seed=1), device=CPU, limits=limits)


def test_a_broken_checkpoint_is_named(tmp_path):
    path = tmp_path / "run.pt"
    path.write_bytes(b"half a checkpoint")
    with pytest.raises(ConfigError, match=r"run\.pt is no checkpoint"):
        run_virtual(
            Toy(), spec_of(EXACT["topk"], 2), device=CPU, limits=Limits(checkpoint=path)
        )


def test_bytes_are_what_the_card_says():
    spec = spec_of(replace(EXACT["gtopk"], method="gtopk"), 4, recipe={"densities": ()})
    result = run_virtual(Toy(), spec, device=CPU)
    for counted in result["history"]["busiest_bytes_per_step"]:
        assert counted == result["card_bytes_per_step"]


def test_the_published_rule_loses_gradient():
    """What the exact rule keeps in residuals, the published one has nowhere."""
    sure = spec_of(Reduction(method="gtopk", density=0.02), 8)
    lossy = spec_of(Reduction(method="gtopk-published", density=0.02), 8)
    kept, lost = (run_virtual(Toy(), s, device=CPU) for s in (sure, lossy))
    assert lost["history"]["checksum"] != kept["history"]["checksum"]
    assert lost["history"]["bytes_per_step"] == kept["history"]["bytes_per_step"]
    with pytest.raises(ConfigError, match="power of two"):
        run_virtual(Toy(), replace(lossy, workers=3), device=CPU)


def test_an_unknown_setting_is_named():
    with pytest.raises(ConfigError, match="denisty"):
        Spec.of({"task": "toy", "reduction": {"denisty": 0.1}})
    with pytest.raises(ConfigError, match="epoch"):
        run_virtual(Toy(), spec_of(Reduction(), 2, recipe={"epoch": 3}), device=CPU)
