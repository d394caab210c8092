"""The public methods of DDPState: replicas, density, metrics."""

import json
import math

import numpy as np
import pytest
import torch

import thinwire
from tests.hooks.training import (
    SIZES,
    batch,
    given_gradients,
    gradients_of,
    optimizer_of,
    residual_of,
    step_once,
    wrap,
)
from tests.workers import pool
from thinwire import catalog
from thinwire.errors import AgreementError, ConfigError, ReplicaError

pytestmark = pytest.mark.processes


def drift(group):
    model = wrap()
    state = thinwire.attach(model, "topk")
    state.check_replicas()
    if group.rank == 1:
        with torch.no_grad():
            model.module[2].bias[0] += 1e-6
    try:
        state.check_replicas()
    except ReplicaError as error:
        return str(error)
    return None


def test_check_replicas_names_what_differs():
    for message in pool(3).run(drift):
        assert "'2.bias'" in message
        assert "ranks [1]" in message


def change_density(group, mode, densities):
    model = wrap("given")
    state = thinwire.attach(model, "topk", on_nonfinite=mode)
    model(given_gradients(group.rank, 0)).backward()
    before = residual_of(state)
    try:
        state.density = densities[group.rank]
        model.zero_grad()
        model(given_gradients(group.rank, 1)).backward()
    except AgreementError as error:
        unchanged = all(
            torch.equal(before[n], t) for n, t in residual_of(state).items()
        )
        # The state is consistent: with equal densities, training continues.
        state.density = 0.5
        model.zero_grad()
        model(given_gradients(group.rank, 1)).backward()
        return str(error), unchanged
    nonzero = sum(int(g.count_nonzero()) for g in gradients_of(model).values())
    return nonzero, state.density


@pytest.mark.parametrize("mode", ["propagate", "unchecked"])
def test_density_can_be_set(mode):
    few = pool(2).run(change_density, mode, [0.01, 0.01])
    many = pool(2).run(change_density, mode, [0.5, 0.5])
    assert many[0][1] == 0.5
    assert many[0][0] > 20 * few[0][0]


def save_with_numbers_of_numpy(group, mode, folder):
    model = wrap("given")
    state = thinwire.attach(
        model, "topk", density=np.float64(0.5), on_nonfinite=mode, warmup=0
    )
    model(given_gradients(group.rank, 0)).backward()
    state.save(folder)
    state.load(folder)
    state.density = np.float32(0.25)
    state.save(folder)
    state.density = 0.5
    state.load(folder)
    return state.density


@pytest.mark.parametrize("mode", ["propagate", "unchecked"])
def test_densities_of_numpy_can_be_saved_and_loaded(tmp_path, mode):
    args = save_with_numbers_of_numpy, mode, str(tmp_path)
    assert pool(2).run(*args) == [0.25, 0.25]


@pytest.mark.parametrize("mode", ["propagate", "unchecked"])
def test_densities_that_differ_are_refused_on_every_rank(mode):
    for message, unchanged in pool(2).run(change_density, mode, [0.02, 0.03]):
        assert "0.02" in message
        assert "0.03" in message
        assert unchanged


def bad_density(group):
    state = thinwire.attach(wrap(), "topk")
    dense = thinwire.attach(wrap(), "dense")
    messages = []
    for each, value in ((state, 0.0), (dense, 0.1)):
        try:
            each.density = value
        except ConfigError as error:
            messages.append(str(error))
    return messages, state.density


def test_bad_densities():
    (first, second), kept = pool(2).run(bad_density)[0]
    assert "density is 0.0" in first
    assert "no density" in second
    assert kept == 0.01


def measure(group, method):
    model = wrap("given", bucket_cap_mb=0.005)
    state = thinwire.attach(model, method)
    optimizer = optimizer_of(model)
    before = state.metrics()
    for step in range(4):
        optimizer.zero_grad()
        model(given_gradients(group.rank, step)).backward()
    entries = state.state_dict()[f"rank {group.rank} of {group.size}"]
    return before, state.metrics(), residual_of(state), json.loads(entries["units"])


@pytest.mark.parametrize("method", ["topk", "bf16"])
def test_metrics_count_what_the_cards_say(method):
    reducer = catalog.reducer(method)
    size = sum(SIZES.values())
    for before, after, residual, units in pool(2).run(measure, method):
        assert len(units) == 2
        # Two steps of one unit, then DDP's buckets.
        costs = [reducer.cost(size, 2)] * 2
        costs += [reducer.cost(sum(SIZES[n] for n in unit), 2) for unit in units] * 2
        assert after["steps"] == 4
        sent = after["bytes_sent"] - before["bytes_sent"]
        assert sent == sum(cost.nbytes for cost in costs)
        assert after["rounds"] - before["rounds"] == sum(c.rounds for c in costs)
        norm = torch.cat(list(residual.values())).norm().item()
        assert math.isclose(after["residual_norm"], norm, rel_tol=1e-5)
        assert all(isinstance(value, float) for value in after.values())
        assert after["wait_ms"] > 0
        assert after["accumulate_ms"] > 0
        if method == "topk":
            assert after["select_ms"] > 0
            assert after["encode_ms"] > 0
            assert 0.01 <= after["kept_density"] <= 0.02


def by_hand(group):
    """The PyTorch way: a state and a hook, from classes."""
    model = wrap()
    reducer = thinwire.Pipeline(
        thinwire.collectives.AllGather(0.1), thinwire.codecs.Split()
    )
    state = thinwire.hooks.ddp.DDPState(model, reducer)
    model.register_comm_hook(state, thinwire.hooks.ddp.hook)
    loss = step_once(model, optimizer_of(model), group.rank, 0)
    state.check_replicas()
    return loss


def test_composed_by_hand():
    assert all(loss > 0 for loss in pool(2).run(by_hand))


def compiled(group):
    model = wrap(bucket_cap_mb=25)
    state = thinwire.attach(model, "topk", density=0.1)
    fast = torch.compile(model, backend="aot_eager")
    optimizer = optimizer_of(model)
    for step in range(3):
        optimizer.zero_grad()
        fast(batch(group.rank, step)).square().mean().backward()
        optimizer.step()
    state.check_replicas()
    return state.metrics()["steps"]


@pytest.mark.filterwarnings("ignore")
def test_compiled_models_are_served():
    assert pool(2).run(compiled) == [3.0, 3.0]
