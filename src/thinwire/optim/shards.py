"""Parameters of which this rank has a shard: DTensors, updated in their local tensors.

Moments are DTensors too, so that state dicts and `torch.distributed.checkpoint` treat
them as they treat those of torch's optimizers.
"""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

from thinwire.optim.moments import RECORDS


def is_sharded(tensor: object) -> bool:
    """Whether a tensor is a DTensor, which may not have been imported."""
    return isinstance(tensor, Tensor) and hasattr(tensor, "to_local")


def any_sharded(params: Iterable[Tensor]) -> bool:
    """Whether one of them is a DTensor; a loop of C's where none is."""
    return any(hasattr(kind, "to_local") for kind in set(map(type, params)))


@torch.no_grad()
def local(value: Any) -> Any:
    """The local tensor of a DTensor; anything else as it is."""
    # Without gradients it is the tensor itself, not a view for autograd.
    return value.to_local() if is_sharded(value) else value


def locals_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a state, DTensors as their local tensors."""
    return {name: local(value) for name, value in state.items()}


def state_of(held: dict[str, Any], param: Tensor) -> MutableMapping[str, Any]:
    """The state of a parameter, or of this rank's shard of it."""
    return ShardState(held, param) if is_sharded(param) else held


class ShardState(MutableMapping[str, Any]):
    """The state of a sharded parameter, with local tensors in place of DTensors."""

    def __init__(self, held: dict[str, Any], param: Tensor) -> None:
        self._held, self._param = held, param

    def __getitem__(self, name: str) -> Any:
        return local(self._held[name])

    def __setitem__(self, name: str, value: Any) -> None:
        like: Any = self._param
        if name in RECORDS:
            value = type(like).from_local(
                value,
                like.device_mesh,
                like.placements,
                run_check=False,
                shape=like.shape,
                stride=like.stride(),
            )
        self._held[name] = value

    def __delitem__(self, name: str) -> None:
        del self._held[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)
