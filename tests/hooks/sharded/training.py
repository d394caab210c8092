"""Sharded models, and loops that run on every rank of a worker pool."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import thinwire
from tests.hooks.training import WIDTH, Branches, batch, plain

SHAPES = [(2, 2), (3, 2)]  # replicas, shards


class Uneven(nn.Module):
    """Shards of several sizes; of the last layer only the first rank has any."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 64)
        self.middle = nn.Linear(64, 33)
        self.last = nn.Linear(33, 1)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 5))

    def forward(self, x):
        hidden = self.middle(self.first(x).tanh()).tanh()
        return self.last(hidden) * self.scale


MODELS = {"uneven": Uneven, "branches": Branches, "plain": plain}


def mesh_of(shards, names=("replicate", "shard")):
    shape = (dist.get_world_size() // shards, shards)
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def has_parameters(module):
    return next(module.parameters(), None) is not None


def build(shards, kind="uneven", mesh=None, **options):
    """A sharded model, and the mesh of replicas and shards."""
    mesh = mesh or mesh_of(shards)
    torch.manual_seed(0)
    model = MODELS[kind]()
    for child in filter(has_parameters, model.children()):
        fully_shard(child, mesh=mesh["shard"], **options)
    return fully_shard(model, mesh=mesh["shard"], **options), mesh


def local(tensor):
    with torch.no_grad():
        return None if tensor is None else tensor.to_local()


def locals_of(model):
    return {name: local(p).clone() for name, p in model.named_parameters()}


def gradients_of(model):
    return {
        name: None if p.grad is None else local(p.grad).clone()
        for name, p in model.named_parameters()
    }


def residual_of(state):
    (entries,) = [v for k, v in state.state_dict().items() if k.startswith("rank ")]
    return {name: t.clone() for name, t in entries.get("residual", {}).items()}


class Recorder:
    """Keeps the gradients of this rank's shards as FSDP made them.

    Made before thinwire is attached, because hooks run in order. `spoil` names a
    parameter whose gradient gets a NaN instead.
    """

    def __init__(self, model) -> None:
        self.found = {}
        self.spoil = None
        self.total = {n: torch.zeros_like(t) for n, t in locals_of(model).items()}
        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(self._hook(name))

    def _hook(self, name):
        def note(parameter):
            grad = local(parameter.grad)
            if name == self.spoil and grad.numel():
                grad.view(-1)[0] = torch.nan
            self.found[name] = grad.clone()

        return note

    def add(self):
        for name, grad in self.found.items():
            self.total[name] += grad
        self.found = {}


def attached(model, mesh, method="topk", **options):
    options.setdefault("warn", False)
    return thinwire.attach(model, method, mesh=mesh, **options)


def run(model, state, optimizer, steps, rank, *, overlap=True):
    for step in steps:
        optimizer.zero_grad()
        model(batch(rank, step)).square().mean().backward()
        if not overlap:
            state.reduce()
        optimizer.step()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def sum_over_replicas(mesh, tensors):
    """The sums over the ranks that have the same shard, in float64."""
    summed = {}
    for name, tensor in tensors.items():
        wide = tensor.double()
        if wide.numel():
            dist.all_reduce(wide, group=mesh["replicate"].get_group())
        summed[name] = wide
    return summed
