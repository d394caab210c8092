"""A table of cells that rows are added into, as multiples of a power of two."""

from dataclasses import dataclass

from torch import Tensor

from thinwire import kernels
from thinwire.collectives.fixed_point import FixedPoint


@dataclass(frozen=True, slots=True)
class Plan:
    """How all ranks fill a table in a step: the same on each."""

    keys: Tensor
    columns: int
    point: FixedPoint

    def filled(self, ids: Tensor, values: Tensor) -> "Table":
        """A table that these rows were added into."""
        multiples = self.point.multiples(values)
        cells = kernels.sketch_rows(ids, multiples, self.keys, self.columns)
        return Table(self, multiples, cells)


@dataclass(frozen=True, slots=True)
class Table:
    """What this rank's rows became, and the cells, which are reduced in place."""

    plan: Plan
    multiples: Tensor
    cells: Tensor

    @property
    def sent(self) -> Tensor:
        """This rank's rows as far as the multiples tell them."""
        return self.plan.point.value(self.multiples)

    def peel_(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The sums of these rows, and the places of those that are stuck."""
        multiples, stuck = kernels.peel_rows_(self.cells, ids, self.plan.keys)
        return self.plan.point.value(multiples), stuck
