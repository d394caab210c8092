"""attach(..., nodes=...): dense sums inside nodes, the method between them."""

import gc
import os
from pathlib import Path

import pytest
import torch

import thinwire
from tests.hooks.test_nonfinite import same
from tests.hooks.test_nonfinite import train as train_spoilt
from tests.hooks.training import (
    SIZES,
    given_gradients,
    gradients_of,
    optimizer_of,
    step_once,
    train,
    wrap,
)
from tests.optim.test_ddp import Loop
from tests.workers import pool
from thinwire import catalog
from thinwire.errors import AgreementError, ConfigError
from thinwire.groups import simulate
from thinwire.hooks.nodes import find_nodes
from thinwire.layout import Layout

pytestmark = pytest.mark.processes

# Ranks, and how many are on each node.
PLACES = [(4, 2), (6, 2), (6, 3)]
TORCHRUN = ("GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def launched(rank, local):
    """What torchrun sets on a rank."""
    return dict(
        zip(TORCHRUN, map(str, (rank // local, rank % local, local)), strict=True)
    )


def with_variables(group, variables, function, *args, **options):
    """Call a function under the variables of this rank."""
    os.environ.update(variables[group.rank])
    try:
        return function(group, *args, **options)
    finally:
        for name in TORCHRUN:
            os.environ.pop(name, None)


def reduced_by_hook(group, method, options):
    """The means of two steps of DDP; until then all parameters are one unit."""
    model = wrap("given", bucket_cap_mb=0.005)
    thinwire.attach(model, method, **options)
    seen = []
    for step in range(2):
        model.zero_grad()
        model(whole_and_half(group.rank, step)).backward()
        seen.append(gradients_of(model))
    return seen


def reduced_in_simulation(group, method, options):
    reducer = catalog.reducer(method, **options)
    layout = Layout(tuple(SIZES), tuple((size,) for size in SIZES.values()))
    state, seen = reducer.init(layout), []
    for step in range(2):
        given = whole_and_half(group.rank, step)
        grad = torch.cat([given[name] for name in SIZES])
        mean = reducer.reduce_([grad], group, state)
        reducer.settle(mean, state)
        seen.append({name: view.clone() for name, view in layout.views(grad).items()})
    return seen


def whole_and_half(rank, step):
    """Numbers whose sums depend on the order of additions."""
    return {name: g * 1.1**rank for name, g in given_gradients(rank, step).items()}


@pytest.mark.parametrize(("ranks", "local"), PLACES)
@pytest.mark.parametrize("method", ["topk", "spardl", "gtopk", "bf16", "ok-topk"])
def test_processes_reduce_as_simulated_ranks_do(method, ranks, local):
    options = {"density": 0.05, "nodes": local}
    real = pool(ranks).run(reduced_by_hook, method, options)
    simulated = simulate(ranks, lambda g: reduced_in_simulation(g, method, options))
    assert same(real, simulated)
    alone = pool(ranks).run(reduced_by_hook, method, {"density": 0.05})
    assert not same(real, alone) or method == "bf16"


@pytest.mark.parametrize(("ranks", "local"), PLACES)
def test_all_ways_to_name_the_nodes_are_one(ranks, local):
    named = [list(range(i, i + local)) for i in range(0, ranks, local)]
    variables = [launched(rank, local) for rank in range(ranks)]
    by = {
        nodes: pool(ranks).run(with_variables, variables, train_on, "spardl", given)
        for nodes, given in (("auto", "auto"), ("number", local), ("lists", named))
    }
    losses, parameters, metrics = by["auto"][0]
    for each in by.values():
        other, theirs, _ = each[0]
        assert losses == other
        assert same(parameters, theirs)
    assert losses[-1] < losses[0]
    # Between nodes a rank sends its share of what a rank of its own node would.
    flat = pool(ranks).run(train_on_nothing, "spardl")[0][2]
    between = metrics["bytes_sent"] - metrics["bytes_sent_in_node"]
    assert 0 < between < flat["bytes_sent"] / local
    assert flat["bytes_sent_in_node"] == 0.0


def train_on(group, method, nodes):
    return train(group, 6, method=method, nodes=nodes, density=0.2)


def train_on_nothing(group, method):
    return train(group, 6, method=method, density=0.2)


@pytest.mark.parametrize("local", [1, 4])
def test_one_node_or_one_rank_on_each_is_the_method_alone(local):
    variables = [launched(rank, local) for rank in range(4)]
    found = pool(4).run(with_variables, variables, train_on, "topk", "auto")
    given = pool(4).run(train_on, "topk", local)
    alone = pool(4).run(train_on_nothing, "topk")
    for each in (found, given):
        assert same(each[0][:2], alone[0][:2])


SPOILT = {
    "topk": {},
    "spardl momentum": {"feedback": "momentum"},
    "spardl teams": {"teams": 2, "gather": "bruck"},
    "spardl warm-up": {"warmup": (1, 4)},
    "gtopk by size": {"min_size": 3000},
    "s2": {},
    "bf16": {},
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_bad_step_leaves_no_trace(name):
    options = {**SPOILT[name], "nodes": 2}
    method = name.split()[0]
    calm = pool(4).run(train_spoilt, method, options)
    struck = pool(4).run(train_spoilt, method, options, ("first", float("inf")))
    for (one, _), (other, skipped) in zip(calm, struck, strict=True):
        assert skipped == 5.0
        assert same(one, other)


def delivered_in_all(group, steps, options):
    """The sum of all means, the last of which a flush has added."""
    model = wrap("given", bucket_cap_mb=0.005)
    state = thinwire.attach(model, **options)
    total = {name: torch.zeros(size) for name, size in SIZES.items()}
    for step in range(steps):
        model.zero_grad()
        model(given_gradients(group.rank, step)).backward()
        if step == steps - 1:
            state.flush()
        for name, grad in gradients_of(model).items():
            total[name] += grad
    return total


@pytest.mark.parametrize(
    "options",
    [
        {"method": "topk", "codec": "raw"},
        {"method": "spardl", "warmup": "auto"},
        {"method": "auto", "visit": 2, "rounds": 1, "candidates": ["topk", "bf16"]},
        {"method": "cheapest", "density": 0.3},
    ],
    ids=str,
)
def test_a_flush_delivers_the_rest(options):
    # Whole numbers and a power of two ranks: the sums are exact.
    for found in pool(4).run(delivered_in_all, 8, {**options, "nodes": 2}):
        for name in SIZES:
            given = [given_gradients(r, s)[name] for r in range(4) for s in range(8)]
            mean = torch.stack(given).sum(0) / 4
            torch.testing.assert_close(found[name], mean, rtol=0, atol=1e-4)


def adam(group, method, options):
    loop = Loop(group, method=method, **options)
    loop.train(5)
    loop.train(1, bad=True)
    loop.train(3)
    loop.state.check_replicas()
    return loop.partial, loop.skipped


@pytest.mark.parametrize("method", ["topk", "spardl", "gtopk"])
def test_an_optimizer_learns_what_was_delivered(method):
    given = {"density": 0.05, "nodes": 2}
    for partial, skipped in pool(4).run(adam, method, given):
        assert partial >= 8
        assert skipped == 1


def density_changes(group):
    model = wrap()
    state = thinwire.attach(model, "spardl", density=0.01, nodes=2, min_size=100)
    optimizer, kept = optimizer_of(model), []
    for step in range(8):
        if step == 4:
            state.density = 0.2
        step_once(model, optimizer, group.rank, step)
        kept.append(state.metrics()["kept_density"])
    state.check_replicas()
    return kept


def test_the_density_can_be_set():
    for kept in pool(4).run(density_changes):
        assert kept[3] < 0.05
        assert kept[5] > 0.15


def opened_and_closed(group):
    """Files in memory while a state is used, and after it was closed."""
    gc.collect()  # states that other tests have left open
    before = files_in_memory()
    model = wrap("given", bucket_cap_mb=25)
    state = thinwire.attach(model, "topk", density=0.01, nodes=2, scope="model")
    given = {name: torch.ones(size) for name, size in SIZES.items()}
    model(given).backward()
    used = files_in_memory()
    state.close()
    del state, model
    gc.collect()
    return used - before, files_in_memory() - before


def files_in_memory():
    """The descriptors of this process that are such files."""
    found = Path("/proc/self/fd").iterdir()
    return sum("memfd:thinwire" in os.path.realpath(each) for each in found)


def test_closing_lets_go_of_shared_memory():
    for used, left in pool(4).run(opened_and_closed):
        assert used == 2  # its own, and its peer's
        assert left == 0


WRONG = {
    "garbage": ([{"LOCAL_WORLD_SIZE": "two"}] * 4, "LOCAL_WORLD_SIZE is 'two'"),
    "zeros": ([{"LOCAL_WORLD_SIZE": "00"}] * 4, "LOCAL_WORLD_SIZE is '00'"),
    "none": ([{"LOCAL_WORLD_SIZE": "0"}] * 4, "LOCAL_WORLD_SIZE is '0'"),
    "negative": ([{"GROUP_RANK": "-1"}] * 4, "GROUP_RANK is '-1'"),
    "missing": ([{}, *[launched(r, 2) for r in (1, 2, 3)]], "ranks [0] have no"),
    "one twice": ([launched(r, 2) for r in (0, 0, 2, 3)], "LOCAL_RANK [0]"),
    "too many": (
        [{**launched(r, 4), "LOCAL_WORLD_SIZE": "2"} for r in range(4)],
        "do not fit together",
    ),
    "unequal": ([launched(r, 3) for r in range(4)], "different numbers of ranks"),
    "sizes": (
        [{**launched(r, 2), "LOCAL_WORLD_SIZE": str(2 + r)} for r in range(4)],
        "LOCAL_WORLD_SIZE [2, 3]",
    ),
}


def attach_wrongly(group, nodes, options):
    """The error of this rank; the model then takes a right call."""
    model = wrap()
    with pytest.raises((ConfigError, AgreementError)) as caught:
        thinwire.attach(model, "topk", nodes=nodes[group.rank], **options)
    state = thinwire.attach(model, "topk")
    step_once(model, optimizer_of(model), group.rank, 0)
    state.check_replicas()
    return str(caught.value)


@pytest.mark.parametrize("name", WRONG)
def test_what_torchrun_says_wrongly_is_an_error_on_every_rank(name):
    variables, words = WRONG[name]
    given = (["auto"] * 4, {})
    for message in pool(4).run(with_variables, variables, attach_wrongly, *given):
        assert words in message
        assert "nodes is 'auto'" in message


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([3] * 4, "nodes is 3, which does not divide 4 ranks"),
        ([[[0, 1], [2]]] * 4, "which does not name each of the ranks 0 to 3"),
        ([[[0, 1], [1, 2]]] * 4, "which does not name each of the ranks 0 to 3"),
        ([[[0, 1, 2], [3]]] * 4, "all nodes must have equally many ranks"),
        ([2, 2, 2, 4], "make these equal on every rank"),
        (["auto", 2, 2, 2], "make these equal on every rank"),
        ([None, "auto", "auto", "auto"], "make these equal on every rank"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_an_error_on_every_rank(nodes, words):
    for message in pool(4).run(attach_wrongly, nodes, {}):
        assert words in message


def test_hosts_without_a_launcher():
    names = ["a", "b", "a", "b"]
    assert find_nodes([{"host": name} for name in names]) == ((0, 2), (1, 3))


def test_hosts_must_agree_with_torchrun():
    told = [{"host": f"h{rank}", **launched(rank, 2)} for rank in range(4)]
    with pytest.raises(ConfigError, match="GROUP_RANK on different hosts"):
        find_nodes(told)


def test_a_part_of_each_node():
    """A process group may have some ranks of every node."""
    told = [{"host": "h", **launched(rank, 4)} for rank in (0, 2, 5, 7)]
    assert find_nodes(told) == ((0, 1), (2, 3))
