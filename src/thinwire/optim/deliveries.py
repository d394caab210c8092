"""What the optimizer wants to know of the last backward pass, and from whom."""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Literal, NamedTuple, Protocol

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
    """What a state says of the last pass.

    `form` is what a plan follows of it: everything but which elements were delivered.
    """

    def __init__(self, delivered: Deliveries, parameters: Mapping[str, Tensor]) -> None:
        self.units, self._parameters = delivered.units, parameters
        self.form = [unit.layout for unit in self.units], delivered.untouched

    def ways(self) -> dict[int, Way]:
        """Where the delivered elements are, by `id`; of the others, all were."""
        layouts, untouched = self.form
        return {
            id(self._parameters[name]): "nonzero" if name in untouched else "listed"
            for name in chain.from_iterable(layout.names for layout in layouts)
        }

    def pieces(self, params: Sequence[Tensor]) -> "list[Pieces]":
        """Where parameters of a call of the kernels lie in the units."""
        numbers = {id(param): number for number, param in enumerate(params)}
        found = []
        for place, layout in enumerate(self.form[0]):
            ids = [id(self._parameters[name]) for name in layout.names]
            pieces = [numbers.get(each, -1) for each in ids]
            if max(pieces, default=-1) >= 0:
                numbered = torch.tensor(pieces, dtype=torch.int32)
                found.append(Pieces(place, _offsets(layout), numbered))
        return found

    def lists(self, pieces: "Sequence[Pieces]") -> list[AdamList]:
        """Lists for that call."""
        return [
            AdamList(self.units[each.unit].indices, each.offsets, each.numbers)
            for each in pieces
        ]


class Pieces(NamedTuple):
    """The place of a unit in the pass, and what `AdamList` says but for the indices."""

    unit: int
    offsets: Tensor
    numbers: Tensor


@lru_cache(maxsize=1024)
def _offsets(layout: Layout) -> Tensor:
    return torch.tensor(layout.offsets)
