"""A table of cells that rows are added into, as multiples of a power of two."""

from dataclasses import dataclass

from torch import Tensor

from thinwire import kernels
from thinwire.collectives.fixed_point import FixedPoint


@dataclass(frozen=True, slots=True)
class TablePlan:
    """How ranks fill a table in one step; the same on all ranks."""

    keys: Tensor
    columns: int
    point: FixedPoint

    def filled(self, ids: Tensor, values: Tensor) -> "Table":
        """A table of these rows."""
        multiples = self.point.multiples(values)
        cells = kernels.sketch_rows(ids, multiples, self.keys, self.columns)
        return Table(self, multiples, cells)


@dataclass(frozen=True, slots=True)
class Table:
    """This rank's rows as multiples, and the cells, which are all-reduced in place."""

    plan: TablePlan
    multiples: Tensor
    cells: Tensor

    @property
    def sent(self) -> Tensor:
        """This rank's rows, as the multiples round them."""
        return self.plan.point.value(self.multiples)

    def peel_(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The sums of these rows, and the positions of those that are stuck."""
        multiples, stuck = kernels.peel_rows_(self.cells, ids, self.plan.keys)
        return self.plan.point.value(multiples), stuck
