"""Rice: a tenth of a bit per index above the least possible, less where they cluster.

R. F. Rice, Some practical universal noiseless coding techniques, JPL 79-22, 1979. Gaps
are divided by a power of two of their block of 256; remainders are written as they are,
quotients in unary. The section's length depends on the indices.
"""

from dataclasses import dataclass

from torch import Tensor

from thinwire import kernels
from thinwire.codecs.codec import checked


@dataclass(frozen=True, slots=True)
class Rice:
    """Widths of the blocks, then remainders, then quotients."""

    @property
    def tag(self) -> int:
        return 4

    @property
    def regathers(self) -> bool:
        return False

    @property
    def any_order(self) -> None:
        return None

    def nbytes(self, size: int, nnz: int) -> None:
        del size, nnz
        return None

    def encode(self, indices: Tensor, size: int, *, key: int) -> Tensor:
        del size, key
        return kernels.encode_rice(indices)

    def decode(self, section: Tensor, size: int, nnz: int, *, key: int) -> Tensor:
        del key
        with checked("Rice"):
            return kernels.decode_rice(section, size, nnz)
