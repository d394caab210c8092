"""Metrics: phases have the time of every primitive, keys are stable, and a summary."""

import re
from itertools import chain
from pathlib import Path

import pytest

import thinwire
from tests.hooks.training import given_gradients, optimizer_of, step_once, wrap
from tests.workers import pool
from thinwire import kernels
from thinwire.accumulator import Accumulator
from thinwire.hooks.metrics import PHASES, summary_of

TIMED = list(chain.from_iterable(PHASES.values()))


def test_every_primitive_that_a_reduction_calls_is_in_a_phase():
    folder = Path(thinwire.__file__).parent
    packages = ("collectives", "feedback", "reducers")
    files = [file for name in packages for file in (folder / name).glob("*.py")]
    text = "".join(file.read_text() for file in [*files, folder / "sparse.py"])
    called = set(re.findall(r"kernels\.(\w+)\(", text))
    primitives = {n for n in called if hasattr(getattr(kernels, n), "reference")}
    assert {"magnitudes", "sketch_rows", "write_mean_"} <= primitives
    assert primitives <= set(TIMED)


def test_every_name_in_a_phase_is_one_that_is_timed():
    assert len(TIMED) == len(set(TIMED))
    for name in set(TIMED) - {"encode", "decode"}:  # the codec's
        found = getattr(kernels, name, None) or getattr(Accumulator, name, None)
        assert found is not None or name == "restore_", name


STABLE = {
    *("steps", "skipped_steps", "bytes_sent", "bytes_received", "dense_bytes"),
    *("rounds", "wait_ms", "density", "kept_density", "residual_norm"),
    "bytes_sent_in_node",
    *(f"{phase}_ms" for phase in PHASES),
}


def measured(group, method, options, steps=6):
    model = wrap()
    state = thinwire.attach(model, method, warn=False, **options)
    assert "no step" in state.summary()
    optimizer = optimizer_of(model)
    for step in range(steps):
        step_once(model, optimizer, group.rank, step)
    n = sum(p.numel() for p in model.parameters())
    return n, state.metrics(), state.summary()


@pytest.mark.processes
@pytest.mark.parametrize("method", ["topk", "dense"])
@pytest.mark.parametrize("size", [2, 3])
def test_the_keys_and_what_dense_would_have_sent(method, size):
    for n, found, said in pool(size).run(measured, method, {}):
        assert found.keys() == STABLE
        assert all(type(value) is float for value in found.values())
        whole = 6 * 4 * n * 2 * (size - 1) / size
        assert found["dense_bytes"] == pytest.approx(whole, rel=0.01)
        if method == "dense":
            assert found["bytes_sent"] == pytest.approx(found["dense_bytes"], rel=0.01)
        assert "6 steps" in said
        times = found["dense_bytes"] / found["bytes_sent"]
        assert f"({times:.3g} times as much)" in said
        assert "'auto' measures it" in said
        assert "\n" not in said


@pytest.mark.processes
def test_auto_says_what_dense_takes():
    options = {"rounds": 1, "visit": 2, "density": 0.05}
    for _, found, said in pool(2).run(measured, "auto", options, 30):
        units = [key for key in found if key.endswith("_choice")]
        assert units
        for key in ("dense_ms", "choice_ms"):
            each = [found[f"{unit.removesuffix('choice')}{key}"] for unit in units]
            assert found[key] == pytest.approx(sum(each))
            assert found[key] > 0
        assert f"{found['dense_ms']:.3g} ms by dense" in said


@pytest.mark.parametrize(
    ("choice", "says"), [(2.0, "5 times as fast"), (10.0, "nothing is won")]
)
def test_the_summary_says_whether_it_is_faster(choice, says):
    found = dict.fromkeys(STABLE, 0.0) | {"steps": 2.0, "skipped_steps": 1.0}
    found |= {"bytes_sent": 2e6, "dense_bytes": 2e8}
    said = summary_of(found | {"dense_ms": 10.0, "choice_ms": choice})
    assert says in said
    assert "1 MB sent per step, 100 MB by dense (100 times as much)" in said
    assert "1 steps skipped" in said


def test_the_summary_says_what_leaves_a_node():
    found = dict.fromkeys(STABLE, 0.0) | {"steps": 2.0, "dense_bytes": 2e8}
    found |= {"bytes_sent": 2e6, "bytes_sent_in_node": 1.5e6}
    assert "(100 times as much), only 250 kB between nodes;" in summary_of(found)
    assert "nodes" not in summary_of(found | {"bytes_sent_in_node": 0.0})


def grown(group):
    model = wrap("given")
    state = thinwire.attach(model, "topk")
    for step in range(66):
        model.zero_grad()
        model(given_gradients(group.rank, step)).backward()
    return state.metrics().get("residual_over_gradient")


@pytest.mark.processes
def test_the_residual_is_compared_with_the_gradient_where_it_is_measured():
    first, second = pool(2).run(grown)
    assert first > 1
    assert second is None
