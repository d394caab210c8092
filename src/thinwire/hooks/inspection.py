"""Which models the hook can serve, and which settings ranks compare."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thinwire.collectives import RowCollective
from thinwire.errors import ConfigError
from thinwire.groups.own_groups import is_known
from thinwire.groups.torch import TorchGroup
from thinwire.layout import Layout
from thinwire.reducers import Pipeline
from thinwire.version import __version__


def check_wrapped(model: nn.Module) -> DistributedDataParallel:
    """Refuse what is not DistributedDataParallel."""
    kinds = {kind.__name__ for kind in type(model).__mro__}
    if kinds & {"FullyShardedDataParallel", "FSDPModule"}:
        raise ConfigError(
            "FSDP is not supported: it reduce-scatters shards of the gradient, so no "
            "rank holds the whole one that error feedback needs. Use "
            "DistributedDataParallel, or FSDP without thinwire"
        )
    if not isinstance(model, DistributedDataParallel):
        raise ConfigError(
            f"the model is a {type(model).__name__}, not DistributedDataParallel: wrap "
            "it first, model = DDP(model), and attach to the result"
        )
    return model


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
    devices = {p.device for p in trained_parameters(model).values()}
    if len(devices) > 1:
        raise ConfigError(
            f"parameters lie on {sorted(map(str, devices))}: put a replica on one "
            "device"
        )
    Layout.of(trained_parameters(model).items())


def trained_parameters(model: DistributedDataParallel) -> dict[str, nn.Parameter]:
    """The parameters DDP reduces, tied ones once, by their names in the module."""
    ignored = model.parameters_to_ignore
    return {
        name: parameter
        for name, parameter in model.module.named_parameters()
        if parameter.requires_grad and name not in ignored
    }


def sparse_names(module: nn.Module) -> set[str]:
    """Parameters whose gradients come as sparse COO tensors, by DDP's own rule."""
    return {
        f"{name}.weight" if name else "weight"
        for name, part in module.named_modules()
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse
    }


def meeting(
    model: object, process_group: object
) -> tuple[TorchGroup, torch.device] | None:
    """Where ranks compare their settings, found also where an argument is wrong.

    None if there is no group, or this rank is not in it.
    """
    if process_group is dist.GroupMember.NON_GROUP_MEMBER or not dist.is_initialized():
        return None
    group = process_group if is_known(process_group) else None
    if group is None and isinstance(model, DistributedDataParallel):
        group = model.process_group
    parameters = model.parameters() if isinstance(model, nn.Module) else ()
    device = next((p.device for p in parameters), torch.device("cpu"))
    return TorchGroup(group, device=device), device


def settings_of(
    model: DistributedDataParallel,
    reducer: Pipeline,
    scope: str,
    sparse: RowCollective,
    *,
    scaled: bool,
) -> Mapping[str, object]:
    """The settings that must be equal on all ranks, as plain values."""
    parameters = {
        f"parameter {name}": f"{list(p.shape)} {p.dtype}"
        for name, p in trained_parameters(model).items()
    }
    return {
        "thinwire": __version__,
        "reducer": repr(reducer),
        "scope": scope,
        "sparse": repr(sparse),
        "grad_scaler": scaled,
        "find_unused_parameters": model.find_unused_parameters,
        "static_graph": model.static_graph,
        "order of parameters": " ".join(trained_parameters(model)),
        **parameters,
    }
