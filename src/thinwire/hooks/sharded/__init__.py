"""Sparse gradients between the replicas of a model that FSDP2 has sharded (HSDP).

What FSDP2 needs is imported only for a sharded model: that takes most of a second.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed import ProcessGroup

from thinwire.hooks.inspection import is_sharded
from thinwire.hooks.options import Options

if TYPE_CHECKING:
    from thinwire.hooks.sharded.model import ShardedModel
    from thinwire.hooks.sharded.state import ShardedState

OPTIONS = ("replicate_group", "mesh", "overlap")


def sharded_model(
    model: nn.Module, process_group: ProcessGroup | None, options: Options
) -> "ShardedModel | None":
    """The model with its options, which are taken out, if it is a sharded one."""
    held: dict[str, Any] = options  # type: ignore[assignment]
    given = {name: held.pop(name) for name in OPTIONS if name in held}
    if not given and not is_sharded(model):
        return None
    kind: type[ShardedModel] = import_module(f"{__name__}.model").ShardedModel
    return kind(model, process_group, **given)


def sharded_state(model: "ShardedModel", *given: Any, **options: Any) -> "ShardedState":
    """A `ShardedState` of a model."""
    kind: type[ShardedState] = import_module(f"{__name__}.state").ShardedState
    return kind(model, *given, **options)
