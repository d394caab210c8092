"""Bad input: what is wrong and what to do, on every rank, and nothing has changed."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import thinwire
from tests.hooks.sharded.training import (
    WIDTH,
    Uneven,
    attached,
    build,
    mesh_of,
    run,
    sgd,
)
from tests.hooks.training import make_model, wrap
from tests.workers import pool
from thinwire.errors import AgreementError, ConfigError, ThinwireError

pytestmark = pytest.mark.processes


def refusal(group, case):
    """What `attach` says; afterwards a right one still works."""
    model, options = CASES[case][0](group.rank)
    method = options.pop("method", "topk")
    try:
        thinwire.attach(model, method, warn=False, **options)
    except ThinwireError as error:
        said = f"{type(error).__name__}: {error}"
    else:
        return "nothing"
    model, mesh = build(2)
    state = attached(model, mesh)
    run(model, state, sgd(model), range(2), group.rank)
    return said


def nothing_given(rank):
    return build(2)[0], {}


def all_shard(rank):
    mesh = init_device_mesh("cpu", (4,))
    return fully_shard(Uneven(), mesh=mesh), {}


def native(rank):
    mesh = mesh_of(2)
    return fully_shard(Uneven(), mesh=mesh), {"mesh": mesh}


def replicated(rank):
    replicate = pytest.importorskip(
        "torch.distributed._composable.replicate_with_fsdp"
    ).replicate
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("replicate",))
    return replicate(Uneven(), mesh=mesh), {"mesh": mesh}


def ddp(rank):
    return wrap(), {"mesh": mesh_of(2)}


def plain(rank):
    return make_model(), {"overlap": False}


def wrong_group(rank):
    model, mesh = build(2)
    return model, {"replicate_group": mesh["shard"].get_group()}


def whole_world(rank):
    return build(2)[0], {"replicate_group": dist.group.WORLD}


def no_group(rank):
    return build(2)[0], {"replicate_group": "replicate"}


def no_mesh(rank):
    return build(2)[0], {"mesh": (2, 2)}


def strange_mesh(rank):
    model, _ = build(2)
    mesh = init_device_mesh("cpu", (4, 1), mesh_dim_names=("a", "b"))
    return model, {"mesh": mesh}


def both(rank):
    model, mesh = build(2)
    group = mesh["replicate"].get_group()
    return model, {"mesh": mesh, "replicate_group": group}


def process_group(rank):
    model, mesh = build(2)
    return model, {"mesh": mesh, "process_group": mesh["replicate"].get_group()}


def one_rank(rank):
    model, mesh = build(2)
    return model, {"mesh": mesh, "density": 2.0 if rank == 3 else 0.1}


def one_differs(rank):
    model, mesh = build(2)
    return model, {"mesh": mesh, "density": 0.2 if rank == 3 else 0.1}


def one_overlaps(rank):
    model, mesh = build(2)
    return model, {"mesh": mesh, "overlap": rank == 3}


def no_bool(rank):
    model, mesh = build(2)
    return model, {"mesh": mesh, "overlap": "yes"}


def unsharded_part(rank):
    mesh = mesh_of(2)
    model = Uneven()
    fully_shard(model.first, mesh=mesh["shard"])
    fully_shard(model.middle, mesh=mesh["shard"])
    return fully_shard(model, mesh=mesh["shard"], ignored_params={model.scale}), {
        "mesh": mesh
    }


def in_forward(rank):
    model, mesh = build(2)
    model(torch.ones(2, WIDTH))
    return model, {"mesh": mesh}


def embedding(rank):
    mesh = mesh_of(2)
    model = nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Linear(4, 4))
    return fully_shard(model, mesh=mesh["shard"]), {"mesh": mesh}


def doubles(rank):
    mesh = mesh_of(2)
    model = nn.Linear(8, 8, dtype=torch.float64)
    return fully_shard(model, mesh=mesh["shard"]), {"mesh": mesh}


def twice(rank):
    model, mesh = build(2)
    attached(model, mesh)
    return model, {"mesh": mesh}


def on_nodes(rank):
    mesh = mesh_of(2)
    return build(2)[0], {"mesh": mesh, "nodes": 2}


def transposed(rank):
    """A replica is every second rank."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "replicate"))
    return build(2, mesh=mesh)[0], {"mesh": mesh}


HOW = "fully_shard(model, mesh=mesh['shard'])"
CASES = {
    "nothing given": (nothing_given, ["which ranks have replicas", HOW]),
    "pure FSDP": (all_shard, ["HSDP", HOW]),
    "native": (native, ["a mesh of 2 dimensions", "itself", HOW]),
    "replicate": (replicated, ["replicate()", "shards=1", HOW]),
    "ddp": (ddp, ["DistributedDataParallel", HOW]),
    "plain": (plain, ["Sequential", HOW]),
    "shard group": (wrong_group, ["rank", "wanted are", HOW]),
    "world": (whole_world, ["[0, 1, 2, 3]", HOW]),
    "no group": (no_group, ["'replicate'", "process group"]),
    "no mesh": (no_mesh, ["tuple", "DeviceMesh"]),
    "strange mesh": (strange_mesh, ["a, b", HOW]),
    "both": (both, ["one of them"]),
    "process_group": (process_group, ["replicate_group or mesh"]),
    "one rank": (one_rank, ["density", "2.0"]),
    "one differs": (one_differs, ["0.2", "ranks [3]"]),
    "one overlaps": (one_overlaps, ["overlap", "ranks [3]"]),
    "no bool": (no_bool, ["overlap is 'yes'", "True or False"]),
    "ignored": (unsharded_part, ["'scale' is not sharded"]),
    "unsharded": (in_forward, ["is not sharded", "before the first forward"]),
    "embedding": (embedding, ["'0.weight'", "sparse=True"]),
    "doubles": (doubles, ["torch.float64", "model.float()"]),
    "nodes": (on_nodes, ["nodes", "shard dimension"]),
    "twice": (twice, ["attach once"]),
    "transposed": (transposed, ["one after another", HOW]),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_on_every_rank(case):
    for said in pool(4).run(refusal, case):
        assert said.split(":")[0] in (ConfigError.__name__, AgreementError.__name__)
        for words in CASES[case][1]:
            assert words in said, said


def one_wrong_of_one_shard(group):
    """One shard, and a group of all ranks that is not the default one."""
    model, _ = build(1)
    replicas = dist.new_group([0, 1])
    method = "topk" if group.rank else "nonsense"
    try:
        thinwire.attach(model, method, replicate_group=replicas, warn=False)
    except ThinwireError as error:
        return str(error)
    return "nothing"


def test_with_one_shard_it_is_refused_on_every_rank():
    assert all("nonsense" in said for said in pool(2).run(one_wrong_of_one_shard))


class Again(nn.Module):
    """A layer that runs twice, of which FSDP reduces the gradient once."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.layer(self.layer(x).tanh())


def gets_parts(group, kind, overlap):
    """What a gradient comes to that arrives twice, or whose layer runs twice."""
    mesh = mesh_of(2)
    torch.manual_seed(0)
    model = kind()
    for child in model.children():
        fully_shard(child, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    state = attached(model, mesh, density=1.0, overlap=overlap)
    if kind is Uneven:
        hook = model.first.bias.register_post_accumulate_grad_hook
        hook(lambda _: state._reduction.note("first.bias"))  # noqa: SLF001
    try:
        run(model, state, sgd(model), range(3), group.rank, overlap=overlap)
    except ConfigError as error:
        return str(error)
    state.check_replicas()
    return "works"


@pytest.mark.parametrize("overlap", [True, False])
def test_a_layer_may_run_twice(overlap):
    assert pool(4).run(gets_parts, Again, overlap) == ["works"] * 4


def test_a_gradient_in_parts_needs_the_explicit_call():
    assert pool(4).run(gets_parts, Uneven, False) == ["works"] * 4
    for said in pool(4).run(gets_parts, Uneven, True):
        assert "'first.bias'" in said
        assert "overlap=False" in said
