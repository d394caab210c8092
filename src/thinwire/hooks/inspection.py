"""Which models can be served, and what a state has to know of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from thinwire.errors import ConfigError
from thinwire.groups.own_groups import is_known
from thinwire.groups.torch import TorchGroup
from thinwire.hooks.options import refuse_wrong
from thinwire.hooks.shards import Shards
from thinwire.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapped:
    """What a state has to know of a model, however it is wrapped.

    `group` are the ranks that reduce, None if there is one process. `parameters` are
    what they reduce, by name; those in `rows` have sparse COO gradients. `sizes` has
    the number of elements of every name that may come in a bucket. With `per_name`,
    some parameters may be unused in a step. `settings` must be equal on all ranks of
    `everyone`: those of `group`, or of all groups that reduce shards. `shards` are this
    rank's, None if it has all.
    """

    group: dist.ProcessGroup | None
    everyone: dist.ProcessGroup | None
    parameters: Mapping[str, nn.Parameter]
    rows: frozenset[str]
    sizes: Mapping[str, int]
    per_name: bool
    settings: Mapping[str, object]
    shards: Shards | None = None

    @property
    def pieces(self) -> Mapping[str, Tensor]:
        """What this rank has of every parameter."""
        return self.parameters if self.shards is None else self.shards.pieces


class Model(Protocol):
    """A model to be reduced, which may turn out to be wrong."""

    def meeting(self) -> tuple[TorchGroup, torch.device] | None:
        """Where ranks compare their settings, found also where an argument is wrong.

        None if there is no group, or this rank is not in it.
        """

    def check(self) -> None:
        """Refuse a model of another kind."""

    def inspect(self) -> Wrapped:
        """Check the model, and say what a state has to know of it."""


@dataclass(frozen=True, slots=True)
class DDPModel:
    """A model in DistributedDataParallel, reduced over its own group or another."""

    model: DistributedDataParallel
    process_group: dist.ProcessGroup | None

    def meeting(self) -> tuple[TorchGroup, torch.device] | None:
        return meeting(self.model, self.process_group)

    def check(self) -> None:
        check_wrapped(self.model)

    def inspect(self) -> Wrapped:
        model = self.model
        refuse_wrong(process_group=self.process_group)
        check_model(model)
        group = self.process_group or model.process_group
        return Wrapped(
            group=group,
            everyone=group,
            parameters=trained_parameters(model),
            rows=sparse_names(model.module),
            # All parameters: one that was frozen after wrapping is still in a bucket.
            sizes={name: p.numel() for name, p in named_parameters(model.module)},
            per_name=bool(model.find_unused_parameters or model.static_graph),
            settings={
                "find_unused_parameters": model.find_unused_parameters,
                "static_graph": model.static_graph,
            },
        )


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model of a process that has no others, which is not wrapped."""

    model: nn.Module

    def meeting(self) -> None:
        return None

    def check(self) -> None:
        pass

    def inspect(self) -> Wrapped:
        found = dict(named_parameters(self.model))
        parameters = {name: p for name, p in found.items() if p.requires_grad}
        check_parameters(parameters)
        return Wrapped(
            group=None,
            everyone=None,
            parameters=parameters,
            rows=sparse_names(self.model),
            sizes={name: p.numel() for name, p in found.items()},
            per_name=False,
            settings={},
        )


# Where torch.compile and Lightning Fabric keep the module that they wrap.
_INNER = ("_orig_mod", "_forward_module")


def unwrapped(model: object) -> Any:
    """The DDP or sharded model that wrappers hold, or what they hold instead.

    >>> unwrapped(nn.Linear(2, 2))
    Linear(in_features=2, out_features=2, bias=True)
    """
    while isinstance(model, nn.Module):
        # Not by getattr, which wrappers forward to what they hold.
        parts = model._modules  # noqa: SLF001 - there is no public way
        held = [parts[name] for name in _INNER if parts.get(name) is not None]
        wrapped = isinstance(model, DistributedDataParallel) or is_sharded(model)
        if not held or wrapped:
            break
        model = held[0]
    return model


def check_wrapped(model: object) -> DistributedDataParallel:
    """The DistributedDataParallel in a model; refuses what has none."""
    model = unwrapped(model)
    if is_sharded(model):
        raise ConfigError(
            "the model is sharded: attach to it with thinwire.attach, which knows what "
            "FSDP does"
        )
    if not isinstance(model, DistributedDataParallel):
        raise ConfigError(
            f"the model is a {type(model).__name__}, not DistributedDataParallel: wrap "
            "it first, model = DDP(model), and attach to the result"
        )
    return model


def is_sharded(model: object) -> bool:
    """Whether it is FSDP's, of either kind."""
    kinds = {kind.__name__ for kind in type(model).__mro__}
    return bool(kinds & {"FullyShardedDataParallel", "FSDPModule"})


def check_model(model: DistributedDataParallel) -> None:
    """Refuse what the hook cannot serve, with the reason and the remedy."""
    check_wrapped(model)
    # It knows the built-in hooks too.
    logged = model._get_ddp_logging_data()  # type: ignore[no-untyped-call] # noqa: SLF001
    if logged.get("comm_hook"):
        raise ConfigError(
            "the model has a communication hook already, and DDP takes one only: "
            "attach once, to a freshly wrapped model"
        )
    if model.mixed_precision is not None:
        raise ConfigError(
            "DDP(mixed_precision=...) casts gradients in a hook of its own: leave it "
            "out and use torch.autocast"
        )
    if getattr(model, "_use_python_reducer", False):
        raise ConfigError(
            "torch.compile's python_reducer bypasses communication hooks: leave "
            "torch._dynamo.config.optimize_ddp at its default"
        )
    check_parameters(trained_parameters(model))


def check_parameters(parameters: Mapping[str, nn.Parameter]) -> None:
    """Refuse parameters that cannot be reduced, or that lie on several devices."""
    if not parameters:
        raise ConfigError("no parameter of the model is trained: set requires_grad")
    devices = {p.device for p in parameters.values()}
    if len(devices) > 1:
        raise ConfigError(
            f"parameters lie on {sorted(map(str, devices))}: put a replica on one "
            "device"
        )
    Layout.of(parameters.items())


def trained_parameters(model: DistributedDataParallel) -> dict[str, nn.Parameter]:
    """The parameters DDP reduces, tied ones once, by their names in the module."""
    ignored = model.parameters_to_ignore
    return {
        own_name(name): parameter
        for name, parameter in model.module.named_parameters()
        if parameter.requires_grad and name not in ignored
    }


def named_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters by the names that they have in a module that is not compiled."""
    return ((own_name(name), p) for name, p in module.named_parameters())


def own_name(name: str) -> str:
    """A name without what `torch.compile` adds, so that both load the same saves.

    >>> own_name("_orig_mod.0.weight")
    '0.weight'
    """
    return ".".join(part for part in name.split(".") if part != _INNER[0])


def sparse_names(module: nn.Module) -> frozenset[str]:
    """Parameters whose gradients come as sparse COO tensors, by DDP's own rule."""
    return frozenset(
        own_name(f"{name}.weight" if name else "weight")
        for name, part in module.named_modules()
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse
    )


def meeting(
    model: object, process_group: object
) -> tuple[TorchGroup, torch.device] | None:
    """Where ranks compare their settings, found also where an argument is wrong.

    None if there is no group, or this rank is not in it.
    """
    if process_group is dist.GroupMember.NON_GROUP_MEMBER or not dist.is_initialized():
        return None
    model = unwrapped(model)
    group = process_group if is_known(process_group) else None
    if group is None and isinstance(model, DistributedDataParallel):
        group = model.process_group
    parameters = model.parameters() if isinstance(model, nn.Module) else ()
    device = next((p.device for p in parameters), torch.device("cpu"))
    return TorchGroup(group, device=device), device
