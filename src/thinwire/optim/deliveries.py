"""What the optimizer wants to know of the last backward pass, and from whom."""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Literal, Protocol

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
    `untouched` are parameters whose gradient is what an earlier pass has delivered.
    """

    @property
    def units(self) -> Sequence[Delivery]: ...

    @property
    def untouched(self) -> Collection[str]: ...

    @property
    def finite(self) -> bool: ...


class DeliveryState(Protocol):
    """Who delivers gradients: what `thinwire.attach` returns."""

    @property
    def parameters(self) -> Mapping[str, Tensor]: ...

    def deliveries(self) -> Deliveries: ...


# Where the delivered elements of a parameter are: in a list, or where its gradient is
# not zero; or every element was delivered.
Way = Literal["listed", "nonzero", "all"]


class Told:
    """What a state says of the last pass."""

    def __init__(self, delivered: Deliveries, parameters: Mapping[str, Tensor]) -> None:
        self._units, self._parameters = delivered.units, parameters
        self._ways: dict[int, Way] = {}
        for name in chain.from_iterable(unit.layout.names for unit in self._units):
            old = name in delivered.untouched
            self._ways[id(parameters[name])] = "nonzero" if old else "listed"

    def way(self, param: Tensor) -> Way:
        """Where the delivered elements of a parameter are."""
        return self._ways.get(id(param), "all")

    def lists(self, params: Sequence[Tensor]) -> list[AdamList]:
        """Lists for a call of the kernels."""
        numbers = {id(param): number for number, param in enumerate(params)}
        found = []
        for unit in self._units:
            ids = [id(self._parameters[name]) for name in unit.layout.names]
            pieces = [numbers.get(each, -1) for each in ids]
            if max(pieces, default=-1) >= 0:
                offsets, numbered = _offsets(unit.layout), torch.tensor(pieces)
                found.append(AdamList(unit.indices, offsets, numbered.int()))
        return found


@lru_cache(maxsize=1024)
def _offsets(layout: Layout) -> Tensor:
    return torch.tensor(layout.offsets)
