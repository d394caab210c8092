"""Values in 8 bits of a common scale: 8.06 bits each.

The error is at most 1/239 of the largest magnitude among 256 neighbours: half a unit,
of which that magnitude has between 119.5 and 127. It is so from 2**-119 on, below which
units are multiples of 2**-130, and up to 127 * 2**121, the most that can be sent.
"""

from dataclasses import dataclass

from torch import Tensor

from thinwire import kernels
from thinwire.codecs.codec import ValueCodec, checked


@dataclass(frozen=True, slots=True)
class Int8(ValueCodec):
    """A bfloat16 scale for every 256 values, then the values as int8.

    Scales have few significant bits, so that what comes back is exactly a product. Of
    values that are not finite nothing is sent.
    """

    tag = 4
    always_finite = True

    def nbytes(self, nnz: int) -> int:
        return kernels.nbytes_int8(nnz)

    def encode(self, values: Tensor) -> Tensor:
        return kernels.encode_int8(values)

    def decode(self, section: Tensor, nnz: int) -> Tensor:
        return self.decode_deferring(section, nnz, None)

    def decode_deferring(
        self, section: Tensor, nnz: int, errors: Tensor | None
    ) -> Tensor:
        with checked("Int8"):
            return kernels.decode_int8(section, nnz, errors=errors)
