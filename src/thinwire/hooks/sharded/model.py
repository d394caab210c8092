"""Which sharded models can be served, and what a state has to know of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _get_default_group
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from thinwire.errors import ConfigError
from thinwire.groups.own_groups import is_known
from thinwire.groups.torch import TorchGroup
from thinwire.hooks.inspection import Wrapped, named_parameters, sparse_names
from thinwire.hooks.options import refuse_wrong
from thinwire.hooks.place import Place
from thinwire.hooks.sharded.reduction import is_watched
from thinwire.hooks.shards import Cut, Shards

HOW = (
    "mesh = init_device_mesh(device, (replicas, shards), mesh_dim_names=('replicate', "
    "'shard')), then fully_shard(model, mesh=mesh['shard']), then thinwire.attach("
    "model, ..., mesh=mesh)"
)


@dataclass(frozen=True, slots=True)
class ShardedModel:
    """A model sharded by `fully_shard`, and the ranks that have the same shard.

    They are those of `replicate_group`, or of a dimension of `mesh`. With `overlap`,
    they reduce during the backward pass.
    """

    model: nn.Module
    process_group: dist.ProcessGroup | None = None
    replicate_group: object = None
    mesh: object = None
    overlap: bool = True

    def meeting(self) -> tuple[TorchGroup, torch.device] | None:
        if not dist.is_initialized():
            return None
        mesh = self.mesh
        world = dist.get_world_size()
        if isinstance(mesh, DeviceMesh) and mesh.ndim > 1 and mesh.size() < world:
            return None  # refused everywhere, and other ranks may not call this
        first = next(self.model.parameters(), None)
        device = torch.device("cpu") if first is None else first.device
        return TorchGroup(None, device=device), device

    def inspect(self) -> Wrapped:
        model = self.model
        self.check()
        parameters = {n: p for n, p in named_parameters(model) if p.requires_grad}
        mesh = _common_mesh(parameters)
        group = self._group(mesh)
        place = _place(group, mesh)
        pieces, cuts = {}, {}
        for name, parameter in parameters.items():
            (placement,) = parameter.placements  # type: ignore[attr-defined]
            cuts[name] = Cut(tuple(parameter.shape), placement.dim)
            with torch.no_grad():
                pieces[name] = parameter.to_local()  # type: ignore[attr-defined]
            _check_piece(name, pieces[name], cuts[name], place)
        return Wrapped(
            group=group,
            everyone=_get_default_group(),  # of one shard too: ranks meet there
            parameters=parameters,
            rows=frozenset(),
            sizes={name: piece.numel() for name, piece in pieces.items()},
            per_name=True,
            settings={
                "replicas": place.size,
                "shards": place.shards,
                "overlap": self.overlap,
                **{f"cut of {name}": cut.dim for name, cut in cuts.items()},
            },
            shards=Shards(place, pieces, cuts, _units(model, parameters)),
        )

    def check(self) -> None:
        refuse_wrong(overlap=self.overlap)
        kinds = {kind.__name__ for kind in type(self.model).__mro__}
        if "FullyShardedDataParallel" in kinds:
            raise ConfigError(
                "FullyShardedDataParallel (FSDP1) keeps flat parameters and reduces "
                f"their gradients itself: use FSDP2. That is {HOW}"
            )
        if "ReplicateModule" in kinds:
            raise ConfigError(
                "replicate() all-reduces gradients itself, and has no hook that "
                "replaces this: shard over one rank instead, replicas=number of ranks "
                f"and shards=1 in {HOW}"
            )
        if not isinstance(self.model, FSDPModule):
            raise ConfigError(
                f"the model is a {type(self.model).__name__}, not sharded by "
                "fully_shard, and replicate_group, mesh or overlap is given: leave it "
                f"out with DistributedDataParallel. For a sharded model: {HOW}"
            )
        if is_watched(self.model):
            raise ConfigError(
                "the model is attached to already: attach once, or close the other "
                "state first"
            )
        if self.process_group is not None:
            raise ConfigError(
                "process_group is for DistributedDataParallel: say which ranks have "
                f"replicas by replicate_group or mesh. That is {HOW}"
            )
        if sparse := sorted(sparse_names(self.model)):
            raise ConfigError(
                f"{sparse[0]!r} has sparse gradients, which FSDP cannot shard: leave "
                "sparse=True out of its nn.Embedding"
            )

    def _group(self, shard_mesh: DeviceMesh) -> dist.ProcessGroup:
        given, mesh = self.replicate_group, self.mesh
        if given is None and mesh is None:
            raise ConfigError(
                "the model is sharded, and nothing says which ranks have replicas of a "
                "shard: thinwire reduces between replicas, not over shards. If all "
                "ranks shard one model, make it several replicas of fewer shards, "
                "sharded where the network is fast and replicated over the slow one "
                f"(HSDP): {HOW}"
            )
        if given is not None and mesh is not None:
            raise ConfigError("replicate_group and mesh say the same: give one of them")
        if mesh is not None:
            return _group_of(mesh, shard_mesh)
        if not is_known(given):
            raise ConfigError(
                f"replicate_group is {given!r:.300}: give a process group of the ranks "
                "that have the same shard as this one, this rank among them, such as "
                "mesh['replicate'].get_group()"
            )
        return given


def _common_mesh(parameters: dict[str, nn.Parameter]) -> DeviceMesh:
    """The one-dimensional mesh over which all parameters are sharded."""
    if not parameters:
        raise ConfigError("no parameter of the model requires a gradient")
    found: DeviceMesh | None = None
    for name, parameter in parameters.items():
        if not isinstance(parameter, DTensor):
            raise ConfigError(
                f"{name!r} is not sharded: call fully_shard on the whole model too, "
                "after its parts, ignore no parameter that is trained, and attach "
                "before the first forward pass or after a backward pass"
            )
        mesh, placements = parameter.device_mesh, parameter.placements
        if len(placements) != 1 or not isinstance(placements[0], Shard):
            raise ConfigError(
                f"{name!r} lies on a mesh of {mesh.ndim} dimensions as {placements}: "
                "FSDP then reduces between replicas itself, before thinwire can. Give "
                "fully_shard the shard dimension alone, and attach the mesh of both. "
                f"That is {HOW}"
            )
        if parameter.device.type == "meta":
            raise ConfigError(
                f"{name!r} is on the meta device: materialise the model first"
            )
        if found is not None and mesh != found:
            raise ConfigError(f"{name!r} is sharded over {mesh}, others over {found}")
        found = mesh
    assert found is not None
    return found


def _group_of(mesh: object, shard_mesh: DeviceMesh) -> dist.ProcessGroup:
    """The ranks of the replicate dimension of a mesh."""
    if not isinstance(mesh, DeviceMesh):
        raise ConfigError(
            f"mesh is a {type(mesh).__name__}: give a DeviceMesh, as in {HOW}"
        )
    if mesh.ndim == 1:
        return mesh.get_group()
    names = mesh.mesh_dim_names or ()
    others = [name for name in names if mesh[name] != shard_mesh]
    if len(others) != 1 or len(names) != 1 + len(others):
        raise ConfigError(
            f"mesh has {mesh.ndim} dimensions, {', '.join(names) or 'without names'}: "
            "give the one of replicas, or two with names of which one is that over "
            f"which the model is sharded. That is {HOW}"
        )
    return mesh.get_group(others[0])


def _place(group: dist.ProcessGroup, shard_mesh: DeviceMesh) -> Place:
    """Where this rank is; refuses ranks in another order than by replicas."""
    shard_ranks = shard_mesh.mesh.flatten().tolist()
    replica_ranks = dist.get_process_group_ranks(group)
    shards, world = len(shard_ranks), dist.get_world_size()
    rank = dist.get_rank()
    replica, shard = divmod(rank, shards)
    wanted = (
        list(range(replica * shards, (replica + 1) * shards)),
        list(range(shard, world, shards)),
    )
    if (shard_ranks, replica_ranks) != wanted:
        raise ConfigError(
            f"rank {rank} shares a replica with ranks {shard_ranks} and its shard with "
            f"{replica_ranks}; wanted are {wanted[0]} and {wanted[1]}: every rank in "
            f"one replica, those of a replica one after another. That is {HOW}"
        )
    return Place(replica, world // shards, shard, shards)


def _check_piece(name: str, piece: torch.Tensor, cut: Cut, place: Place) -> None:
    wanted = cut.shape(place.shard, place.shards)
    if tuple(piece.shape) != wanted:
        raise ConfigError(
            f"the shard of {name!r} has shape {tuple(piece.shape)}, not {wanted}: cut "
            "it as fully_shard does by default"
        )


def _units(
    model: nn.Module, parameters: dict[str, nn.Parameter]
) -> Sequence[tuple[str, ...]]:
    """The parameters of each FSDPModule, in the order in which FSDP reduces them."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    found: dict[int, list[str]] = {}
    for owner, module in _owned(model, model):
        for parameter in module.parameters(recurse=False):
            name = names.pop(id(parameter), None)  # tied ones once
            if name is not None:
                found.setdefault(id(owner), []).append(name)
    return [tuple(each) for each in found.values()]


def _owned(
    module: nn.Module, owner: nn.Module, seen: set[nn.Module] | None = None
) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Every module after its children, once, and the FSDPModule that it belongs to."""
    seen = set() if seen is None else seen
    owner = module if isinstance(module, FSDPModule) else owner
    seen.add(module)
    for child in module.children():
        if child not in seen:
            yield from _owned(child, owner, seen)
    yield owner, module
