"""What the optimizer wants to know of the last backward pass, and from whom."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from thinwire.kernels import AdamList
from thinwire.layout import Layout


class Delivery(Protocol):
    """The elements of a unit that were delivered, by their place in its layout."""

    @property
    def layout(self) -> Layout: ...

    @property
    def indices(self) -> Tensor: ...


class Deliveries(Protocol):
    """Units of which a part was delivered; everything was of all other parameters.

    `finite` is False if the gradient was not finite on some rank: no rank applies it.
    """

    @property
    def units(self) -> Sequence[Delivery]: ...

    @property
    def finite(self) -> bool: ...


class DeliveryState(Protocol):
    """Who delivers gradients: what `thinwire.attach` returns."""

    @property
    def parameters(self) -> Mapping[str, Tensor]: ...

    def deliveries(self) -> Deliveries: ...


def lists_of(
    units: Sequence[Delivery],
    parameters: Mapping[str, Tensor],
    numbers: Mapping[int, int],
) -> list[AdamList]:
    """Lists for the kernels; `numbers` are those of parameters in the call, by id."""
    found = []
    for unit in units:
        pieces = [numbers.get(id(parameters[name]), -1) for name in unit.layout.names]
        if max(pieces, default=-1) >= 0:
            offsets, numbered = _offsets(unit.layout), torch.tensor(pieces)
            found.append(AdamList(unit.indices, offsets, numbered.int()))
    return found


@lru_cache(maxsize=1024)
def _offsets(layout: Layout) -> Tensor:
    return torch.tensor(layout.offsets)
