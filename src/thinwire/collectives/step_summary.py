"""StepSummary and RowMemory: counts of a step on rows, which plan the next step."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.collectives.memory import CollectiveMemory
from thinwire.errors import WireError

NBYTES = 16

_FLOAT, _WORD = struct.Struct("<f"), struct.Struct("<i")


class StepSummary(NamedTuple):
    """The largest magnitude in a step, as bits, and the most rows that a rank offered.

    Both are integers, so that they fit into one small tensor and into a checkpoint.
    Positive floats are in the same order as their bits.

    >>> values = torch.tensor([[1.0, -2.0], [0.5, 0.0]])
    >>> summary = StepSummary.read(StepSummary.of(values))
    >>> summary.offered, summary.peak
    (2, 2.0)
    """

    bits: int
    offered: int

    @classmethod
    def of(cls, values: Tensor) -> Tensor:
        """This rank's summary, to be all-reduced with MAX; NaN counts as infinity."""
        flat = values.contiguous().view(-1)
        peak = kernels.magnitudes(flat, torch.tensor([0, flat.numel()]))
        summary = torch.tensor([0, len(values)], device=values.device)
        summary[:1] = peak.view(torch.int32)
        return summary

    @classmethod
    def read(cls, tensor: Tensor) -> "StepSummary":
        """The summary that a tensor holds; a peer's numbers are checked."""
        bits, offered = tensor.tolist()
        if bits >> 31 or offered < 0:
            raise WireError(f"a step of {offered} rows whose peak has the bits {bits}")
        return cls(bits, offered)

    @property
    def peak(self) -> float:
        """The largest magnitude."""
        return magnitude(self.bits)


def magnitude(bits: int) -> float:
    """The float32 that has these bits."""
    value: float = _FLOAT.unpack(_WORD.pack(bits))[0]
    return value


@dataclass(slots=True)
class RowMemory(CollectiveMemory):
    """What collectives on rows plan the next step with; equal on all ranks.

    `width` is the number of elements of a row, which follows from the layout. `union`
    is the number of rows to expect, `offered` the most that any rank offered in the
    last step, `peak` the bits of its largest magnitude; None where not known.
    """

    width: int = 1
    union: int | None = None
    offered: int | None = None
    peak: int | None = None

    def common(self) -> dict[str, int]:
        known = {"union": self.union, "offered": self.offered, "peak": self.peak}
        return {name: value for name, value in known.items() if value is not None}

    def load_dict(self, saved: Mapping[str, int]) -> None:
        self.union = saved.get("union")
        self.offered = saved.get("offered")
        self.peak = saved.get("peak")

    def record(self, summary: StepSummary, rows: int) -> None:
        """Remember a step whose union had this many rows."""
        self.record_union(rows)
        self.offered = summary.offered
        self.peak = summary.bits if 0 < summary.peak < inf else None

    def record_union(self, rows: int) -> None:
        """Expect as many rows as now, or a little fewer than before."""
        before = self.union or 0
        self.union = max(rows, before - (before - rows) // 8)
