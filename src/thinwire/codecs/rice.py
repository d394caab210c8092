"""Rice: a tenth of a bit per index above the least possible, less where they cluster.

R. F. Rice, Some practical universal noiseless coding techniques, JPL 79-22, 1979. Gaps
are divided by a power of two of their block of 256; remainders are written as they are,
quotients in unary. The section's length depends on the indices.
"""

from dataclasses import dataclass

from torch import Tensor

from thinwire import kernels
from thinwire.codecs.codec import IndexCodec, checked


@dataclass(frozen=True, slots=True)
class Rice(IndexCodec):
    """Widths of the blocks, then remainders, then quotients."""

    tag = 4

    def encode(self, indices: Tensor, size: int) -> Tensor:
        del size
        return kernels.encode_rice(indices)

    def decode(self, section: Tensor, size: int, nnz: int) -> Tensor:
        with checked("Rice"):
            return kernels.decode_rice(section, size, nnz)
