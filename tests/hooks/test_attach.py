"""Bad arguments are refused on every rank, before any change, with a remedy."""

import pytest
import torch
from torch import nn
from torch.distributed import BuiltinCommHookType
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from tests.hooks.training import WIDTH, make_model, optimizer_of, step_once, train, wrap
from tests.workers import pool
from thinwire import catalog
from thinwire.errors import AgreementError, ConfigError
from thinwire.hooks.options import MethodOptions


def attempt(group, method, options, kind="plain"):
    """What attach says, and whether the model is still free to take a hook."""
    model = wrap(kind)
    if isinstance(options, list):
        options = options[group.rank]
    try:
        thinwire.attach(model, method, **options)
    except thinwire.ThinwireError as error:
        return type(error), str(error), _has_no_hook(model)
    return None


def _has_no_hook(model):
    """Whether a model takes a hook, which it then has."""
    try:
        model.register_comm_hook(None, allreduce_hook)
    except RuntimeError:
        return False
    return True


BAD = [
    ("topk", {"density": 0.0}, ["density is 0.0", "above 0"]),
    ("topk", {"density": -0.1}, ["density is -0.1"]),
    ("topk", {"density": 1.01}, ["density is 1.01", "at most 1"]),
    ("topk", {"density": float("nan")}, ["density is nan"]),
    ("top-k", {}, ["unknown method 'top-k'", "'topk'"]),
    ("topk", {"denisty": 0.1}, ["unknown option 'denisty'", "'density'"]),
    ("topk", {"scope": "layer"}, ["scope is 'layer'", "'bucket' or 'model'"]),
    ("topk", {"feedback": "resid"}, ["unknown feedback 'resid'", "'residual'"]),
    ("topk", {"codec": "row"}, ["unknown codec 'row'", "'raw'", "elias-fano+bfloat16"]),
    ("topk", {"warmup": -1}, ["warmup is -1", "a number of dense steps"]),
    ("topk", {"min_size": -5}, ["min_size is -5"]),
    ("topk", {"on_nonfinite": "skip"}, ["on_nonfinite is 'skip'", "'zero'"]),
    ("topk", {"timeout": -1.0}, ["timeout", "-1"]),
    ("topk", {"clip": 0.0}, ["clip is 0.0", "above 0, or None"]),
    ("topk", {"clip": -1}, ["clip is -1"]),
    ("topk", {"clip": float("inf")}, ["clip is inf", "finite"]),
    ("topk", {"clip": float("nan")}, ["clip is nan"]),
    ("topk", {"clip": True}, ["clip is True"]),
    ("dense", {"clip": "1"}, ["clip is '1'", "norm of a worker's gradient"]),
    ("topk", {"warn": "no"}, ["warn is 'no'", "True or False"]),
    ("gtopk", {"variant": "ring"}, ["variant is 'ring'", "'butterfly'"]),
    ("spardl", {"teams": 3}, ["teams is 3", "does not divide 2 ranks", "[1, 2]"]),
    ("spardl", {"teams": 3, "warmup": 5}, ["does not divide 2 ranks"]),
    ("spardl", {"team": 2}, ["unknown option 'team'", "'teams'"]),
    ("dense", {"codec": "raw"}, ["sends no lists", "leave the codec out"]),
    ("bf16", {"codec": "raw"}, ["sends no lists"]),
]


@pytest.mark.processes
@pytest.mark.parametrize(("method", "options", "says"), BAD, ids=str)
def test_bad_options(method, options, says):
    for kind, message, free in pool(2).run(attempt, method, options):
        assert issubclass(kind, ConfigError)
        assert all(words in message for words in says), message
        assert free


@pytest.mark.processes
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([{"density": 0.01}, {"density": 0.02}], ["reducer", "0.01", "0.02", "[1]"]),
        ([{"scope": "model"}, {}], ["scope", "model", "bucket"]),
        ([{"density": 7.0}, {}], ["density is 7.0"]),
        ([{}, {"seed": 3}], ["seed=3"]),
        ([{"clip": 1}, {"clip": 1.5}], ["clip", "1.5"]),
        ([{}, {"clip": 2.0}], ["clip", "null", "2.0"]),
    ],
)
def test_ranks_that_differ(options, says):
    for kind, message, free in pool(2).run(attempt, "topk", options):
        assert kind in (AgreementError, ConfigError)
        assert all(words in message for words in says), message
        assert free


def attach_to(group, make):
    model = make()
    try:
        thinwire.attach(model, "topk")
    except ConfigError as error:
        return str(error)
    return None


def unwrapped():
    return make_model()


def doubles():
    return DDP(nn.Linear(4, 4, dtype=torch.float64))


def complexes():
    return DDP(nn.Linear(4, 4, dtype=torch.complex64))


def twice():
    model = wrap()
    thinwire.attach(model, "topk")
    return model


def hooked_by_name():
    model = wrap()
    model._register_builtin_comm_hook(BuiltinCommHookType.FP16_COMPRESS)  # noqa: SLF001
    return model


def hooked():
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    model = wrap()
    model.register_comm_hook(None, allreduce_hook)
    return model


class FullyShardedDataParallel(nn.Linear):
    """Stands in for the real one, which cannot be built on two CPU ranks."""


def sharded():
    return FullyShardedDataParallel(2, 2)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (unwrapped, ["Sequential", "DistributedDataParallel", "DDP(model)"]),
        (doubles, ["'weight' is torch.float64", "model.float()"]),
        (complexes, ["torch.complex64"]),
        (twice, ["hook already", "attach once"]),
        (hooked, ["hook already"]),
        (hooked_by_name, ["hook already"]),
        (sharded, ["FSDP1", "fully_shard(model, mesh=mesh['shard'])"]),
    ],
)
def test_models_that_cannot_be_served(make, says):
    for message in pool(2).run(attach_to, make):
        assert all(words in message for words in says), message


def frozen_integers(group):
    module = nn.Sequential(nn.Linear(WIDTH, 8))
    module.codes = nn.Parameter(torch.arange(5), requires_grad=False)
    model = DDP(module)
    thinwire.attach(model, "topk")
    return step_once(model, optimizer_of(model), group.rank, 0)


@pytest.mark.processes
def test_frozen_integers_take_no_part():
    assert all(loss > 0 for loss in pool(2).run(frozen_integers))


def switched_off(group):
    import os

    os.environ["THINWIRE"] = "dense"
    try:
        return train(group, method="topk")
    finally:
        del os.environ["THINWIRE"]


def plain_ddp(group):
    return train(group, method=None)


@pytest.mark.processes
def test_the_environment_switches_compression_off():
    ours, ddp = pool(2).run(switched_off), pool(2).run(plain_ddp)
    assert ours[0][0] == ddp[0][0]
    assert ours[0][2]["density"] == 1.0


def test_the_types_of_options_name_those_that_methods_take():
    taken = {option for method in catalog.METHODS.values() for option in method.options}
    assert taken == MethodOptions.__annotations__.keys()
