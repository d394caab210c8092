"""What ranks tell each other in passing, for the next step to be planned with."""

import struct
from typing import NamedTuple

import torch
from torch import Tensor

from thinwire import kernels

NBYTES = 16

_FLOAT, _WORD = struct.Struct("<f"), struct.Struct("<i")


class Note(NamedTuple):
    """The largest magnitude and the largest number of rows that any rank offered.

    Whole numbers, so that both travel in one small tensor and into a checkpoint:
    magnitudes are ordered as their bits are.

    >>> values = torch.tensor([[1.0, -2.0], [0.5, 0.0]])
    >>> note = Note.read(Note.of(values))
    >>> note.offered, note.peak
    (2, 2.0)
    """

    bits: int
    offered: int

    @classmethod
    def of(cls, values: Tensor) -> Tensor:
        """This rank's note, to be combined by MAX; NaN counts as infinity."""
        flat = values.contiguous().view(-1)
        peak = kernels.magnitudes(flat, torch.tensor([0, flat.numel()]))
        note = torch.tensor([0, len(values)], device=values.device)
        note[:1] = peak.view(torch.int32)
        return note

    @classmethod
    def read(cls, tensor: Tensor) -> "Note":
        """What all ranks' notes came to."""
        return cls(*tensor.tolist())

    @property
    def peak(self) -> float:
        """The largest magnitude."""
        return magnitude(self.bits)


def magnitude(bits: int) -> float:
    """The float32 that has these bits."""
    value: float = _FLOAT.unpack(_WORD.pack(bits))[0]
    return value
