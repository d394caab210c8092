"""Every wrong call of attach is a ConfigError that names option, value and remedy."""

import gc
from datetime import timedelta
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import thinwire
from tests.hooks.training import optimizer_of, step_once, wrap
from tests.workers import pool
from thinwire import catalog
from thinwire.choosers import Auto, AutoWarmup
from thinwire.codecs import Bloom, Rice, Split
from thinwire.collectives import S2, Dense, GatherRows, GTopK, SparDL
from thinwire.cost import Link
from thinwire.errors import ConfigError
from thinwire.feedback import Momentum
from thinwire.hooks.options import RULES, Options

pytestmark = pytest.mark.processes

NUMBERS = [None, True, "1", "1%", nan, inf, -inf, [1], (1,), {}, 1j, torch.ones(2)]
TYPES = [5, 1.5, True, object(), ["x"], ("x",), {}, np.ones(2)]

WARMUPS = [(1, 2, 3), (1, 0.5), (True, 1), [1, 2], "5", "automatic", (), AutoWarmup]
TIMES = [timedelta(0), timedelta(days=-1), timedelta.max, timedelta, 10**400]

# By option: a method that takes it, and the wrong values.
VALUES: dict[str, tuple[str, list[object]]] = {
    "method": ("topk", ["", "TOPK", None, *TYPES, b"topk", Dense, GTopK()]),
    "density": ("topk", [*NUMBERS, 0, 0.0, -0.0, -1, 1.01, 2, float]),
    "scope": ("topk", ["", "layer", None, *TYPES]),
    "codec": (
        "topk",
        ["", "rice", "rice+", "+", *TYPES, Split, Rice(), Momentum()],
    ),
    "feedback": ("topk", ["", "momentum=0.9", None, *TYPES, Momentum, Split()]),
    "warmup": ("topk", [*NUMBERS, 0.1, 5.0, -1, (5, -1), (-1, 5), *WARMUPS]),
    "min_size": ("topk", [*NUMBERS, -1, 0.5, 1e6]),
    "clip": ("topk", [*NUMBERS[1:], 0, -1, 10**400]),
    "grad_scaler": (
        "topk",
        [True, False, 1024.0, "dynamic", object(), torch.GradScaler],
    ),
    "process_group": ("topk", ["x", 0, True, [0, 1], dist.ProcessGroup, object()]),
    "on_nonfinite": ("topk", ["skip", None, *TYPES]),
    "timeout": ("topk", [*NUMBERS[1:], 0, -1.0, 1e-9, 1e12, *TIMES]),
    "nodes": (
        "topk",
        ["", "all", "2", 0, -1, 3, True, 2.0, nan, [], [0, 1], [[0, 1], []], {}, 1j],
    ),
    "seed": ("gs-sgd", [*NUMBERS, 0.5, 1.0, "abc"]),
    "sparse": ("topk", ["", "rows", None, *TYPES, S2, Dense(), GTopK()]),
    "warn": ("topk", [None, 0, 1, "no", [], object()]),
    "overlap": ("topk", [None, 0, 1, "no", [], object()]),
    "variant": ("gtopk", ["ring", None, *TYPES]),
    "teams": ("spardl", [0, -1, 3, True, 2.0, "2", "all", None, nan]),
    "gather": ("spardl", ["ring", None, *TYPES]),
    "partition": ("spardl", ["random", None, *TYPES]),
    "scatter": ("spardl", ["all", None, *TYPES]),
    "link": (
        "spardl",
        ["1 Gbit/s", (1e-4, 1e9), 1e9, True, Link, {"latency": 1e-4, "bandwidth": 1e9}],
    ),
    "threshold_every": ("ok-topk", [0, 1.5, *NUMBERS]),
    "regions_every": ("ok-topk", [0, 1.5, *NUMBERS]),
    "rows": ("gs-sgd", [2, 9, *NUMBERS, 3.0]),
    "columns": ("gs-sgd", [0, 2**31, True, "auto", nan, 5.0]),
    "sketched": ("gs-sgd", [0, 1.5, *NUMBERS[1:], "all"]),
    "block": ("gs-sgd", [0, 1.5, *NUMBERS]),
    "rounds": ("gs-sgd", [0, 3, True, 1.0, "1", None]),
    "sum": ("gs-sgd", ["ring", None, *TYPES]),
    "recover": ("gs-sgd", ["all", None, *TYPES]),
    "estimate": ("gs-sgd", ["mode", None, *TYPES]),
    "decode": ("s2", ["mode", None, *TYPES]),
    "granularity": ("union", ["word", None, *TYPES]),
    "width": ("union", [0, 1.5, *NUMBERS]),
    "index": ("deepreduce", ["", "bloom", None, *TYPES, Bloom("p0")]),
    "value": ("deepreduce", ["", "float", None, *TYPES]),
    "fpr": ("deepreduce", [True, "0.1", nan, inf, 0, -1, 1, 1.0, 2, [0.1]]),
    "candidates": (
        "auto",
        [None, 5, True, "dense2", {}, "deepreduce", SparDL, object()],
    ),
    "visit": ("auto", [1, 0, 2.5, *NUMBERS]),
    "recheck": ("auto", [0, 2.5, *NUMBERS]),
}

# Options of sharded models, which tests/hooks/sharded gives wrong ones.
SHARDED = {"mesh", "replicate_group"}

TOGETHER = [
    ("topk", {"overlap": True}, "mesh or overlap is given"),
    ("topk", {"mesh": None}, "mesh or overlap is given"),
    ("topk", {"replicate_group": [0, 1]}, "mesh or overlap is given"),
    ("dense", {"codec": "raw"}, "codec"),
    ("dense", {"warmup": "auto"}, "warmup"),
    ("bf16", {"codec": Split()}, "codec"),
    ("bf16", {"density": -1}, "density is -1"),
    ("dense", {"density": nan}, "density is nan"),
    ("dense", {"density": True}, "density is True"),
    ("bf16", {"warmup": (0, 5)}, "ramp"),
    ("gs-sgd", {"codec": "raw"}, "codec"),
    ("gs-sgd", {"rounds": 1, "recover": "heavymix"}, "rounds=2"),
    ("spardl", {"teams": 2, "gather": "ring"}, "gather is 'ring'"),
    ("spardl", {"teams": 3, "warmup": 5}, "does not divide 2 ranks"),
    ("s2", {"rows": 4, "decode": "median"}, "rows is 4"),
    ("s2", {"rows": 9}, "rows is 9"),
    ("deepreduce", {"index": "huffman", "fpr": 0.1}, "fpr is 0.1"),
    ("deepreduce", {"codec": "rice+int8", "fpr": 0.1}, "fpr is 0.1"),
    ("deepreduce", {"codec": "raw", "index": "rice"}, "index is 'rice'"),
    ("deepreduce", {"codec": "raw", "value": "int8"}, "value is 'int8'"),
    ("topk", {"fpr": 0.1}, "unknown option 'fpr'"),
    ("topk", {"teams": 2}, "unknown option 'teams'"),
    ("topk", {"denisty": 0.1}, "'density'"),
    ("auto", {"candidates": ["topk", "auto"]}, "auto cannot try itself"),
    ("auto", {"candidates": []}, "candidates is empty"),
    ("auto", {"candidates": Auto()}, "auto cannot try itself"),
    ("auto", {"candidates": ["topk", 5]}, "candidates has 5"),
    ("auto", {"candidates": [["topk"]]}, "candidates has ['topk']"),
    ("topk", {"codec": "raw+raw"}, "unknown index codec 'raw'"),
    ("topk", {"nodes": [[0], [0]]}, "does not name each of the ranks 0 to 1 once"),
    ("topk", {"nodes": [[0], [1], [2]]}, "does not name each of the ranks"),
    ("spardl", {"nodes": 2, "teams": 2}, "does not divide 1 ranks"),
    ("s2", {"nodes": 2, "granularity": "row"}, "granularity is 'row'"),
]


def all_calls():
    """Method, options, and what the message must say, of every wrong call."""
    for option, (method, values) in VALUES.items():
        for value in values:
            says = [option, repr(value)[:20]]
            if option == "method":
                yield value, {}, says
            else:
                yield method, {option: value}, says
    for method, options, words in TOGETHER:
        yield method, options, [words]


CALLS = list(all_calls())


def try_all(group):
    """The error of each call on one model, which then takes a right one."""
    model = wrap()
    seen = []
    # The first one starts what a process keeps, as the first DDP model did.
    with pytest.raises(ConfigError):
        thinwire.attach(model, "top-k")
    gc.collect()  # those of models of earlier tests
    before = _descriptors()
    for method, options, _ in CALLS:
        try:
            thinwire.attach(model, method, **options)
        except Exception as error:
            seen.append((type(error).__name__, str(error)))
        else:
            seen.append((None, ""))
            model = wrap()
    kept = _descriptors() - before
    state = thinwire.attach(model, "topk")
    loss = step_once(model, optimizer_of(model), group.rank, 0)
    state.check_replicas()
    return seen, kept, loss


def _descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(scope="module")
def outcomes():
    return pool(2).run(try_all)


def test_there_are_enough_calls():
    assert len(CALLS) >= 119
    known = Options.__annotations__.keys() | {"scope", "grad_scaler", "density"}
    assert set(VALUES) | SHARDED == known | {"process_group", "timeout", "method"}
    assert set(RULES) - {"method"} <= set(VALUES)


@pytest.mark.parametrize(
    "number",
    range(len(CALLS)),
    ids=[f"{i}-{'-'.join(o)}" for i, (_, o, _) in enumerate(CALLS)],
)
def test_a_wrong_call_is_refused(outcomes, number):
    for seen, _, _ in outcomes:
        kind, message = seen[number]
        assert kind == "ConfigError", f"{kind}: {message}"
        assert all(words in message for words in CALLS[number][2]), message
        # What is wrong, then what to do.
        assert len(message.split()) > 5


def test_nothing_has_changed(outcomes):
    for _, kept, loss in outcomes:
        assert kept == 0
        assert loss > 0


class Stranger:
    """What other libraries have in place of a GradScaler."""

    def get_scale(self):
        return 2.0


RIGHT = [
    ("topk", {"density": 1, "warmup": (0, 3), "min_size": np.int64(10)}),
    ("topk", {"density": np.float32(0.5), "clip": np.float64(1.0), "seed": -3}),
    ("topk", {"warmup": "auto", "codec": Split(), "feedback": Momentum(0.8)}),
    ("topk", {"codec": None, "sparse": S2(), "grad_scaler": Stranger()}),
    ("topk", {"timeout": timedelta(seconds=5), "sparse": GatherRows()}),
    ("topk", {"timeout": 1e7, "min_size": 0, "clip": None}),
    ("topk", {"timeout": np.float32(20), "density": np.float64(0.5)}),
    ("topk", {"timeout": np.int64(20), "on_nonfinite": "unchecked"}),
    ("topk", {"timeout": 5, "warmup": 0, "seed": np.int64(7)}),
    ("dense", {"density": 0.5, "warmup": 3, "sparse": "cheapest"}),
    ("spardl", {"teams": "auto", "link": Link(1e-4, 1e9)}),
    ("spardl", {"link": None, "teams": 1, "scatter": "direct"}),
    ("gs-sgd", {"seed": 2**70, "rounds": 1, "columns": None}),
    ("deepreduce", {"fpr": 0.1, "index": "bloom-p0"}),
    ("deepreduce", {"codec": "raw"}),
    ("auto", {"candidates": ["topk", SparDL(0.5)]}),
    ("auto", {"candidates": "topk", "visit": 3, "rounds": 1, "recheck": 10}),
    ("cheapest", {"link": Link(), "granularity": "block", "width": 8}),
    ("topk", {"nodes": 2}),
    ("spardl", {"nodes": np.int64(1), "warmup": "auto"}),
    ("topk", {"nodes": ((1,), [0]), "min_size": 10}),
    ("dense", {"nodes": "auto"}),
    ("auto", {"nodes": None}),
]


def train_with(group, method, options):
    model = wrap()
    state = thinwire.attach(model, method, **options)
    for step in range(2):
        step_once(model, optimizer_of(model), group.rank, step)
    state.check_replicas()
    return state.metrics()["steps"]


@pytest.mark.parametrize(
    ("method", "options"),
    RIGHT,
    ids=[f"{i}-{'-'.join(o)}" for i, (_, o) in enumerate(RIGHT)],
)
def test_a_right_call_is_accepted(method, options):
    assert pool(2).run(train_with, method, options) == [2.0, 2.0]


def attach_to(group, make):
    model = make()
    with pytest.raises(ConfigError) as caught:
        thinwire.attach(model, "topk")
    return str(caught.value)


@pytest.mark.parametrize("make", [int, str, dict, nn.Flatten, object])
def test_what_is_no_model(make):
    for message in pool(2).run(attach_to, make):
        assert "not DistributedDataParallel" in message


def test_the_catalog_refuses_too():
    with pytest.raises(ConfigError, match="density is -1"):
        catalog.reducer("bf16", density=-1)
