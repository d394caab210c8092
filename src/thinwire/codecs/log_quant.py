"""Values as a sign and one of a few levels: 3 to 8 bits each, and the levels.

Levels spread over the magnitudes of the list as their logarithm, then move to where
most is saved; each is the mean of what it stands for. Of the largest 1 % of 16.8 M
numbers, 4 bits keep all but 1.7 % (normal), 3.1 % (Laplace) or 12 to 15 % (Student's t
with 3 degrees of freedom) of the L2 norm, about half of that with each further bit.
"""

from dataclasses import dataclass

from torch import Tensor

from thinwire import kernels
from thinwire.codecs.codec import ValueCodec, checked
from thinwire.errors import ConfigError

FEWEST, MOST = 3, 8


@dataclass(frozen=True, slots=True)
class LogQuant(ValueCodec):
    """2**(bits - 1) levels as ascending float32, then codes of `bits` bits.

    A value comes back with its sign and a magnitude between the least and the largest
    of the list, rounded to a multiple of 2**-20 of the largest power of two in the
    list. Of values that are not finite nothing is sent.
    """

    bits: int = 4
    always_finite = True

    def __post_init__(self) -> None:
        if not FEWEST <= self.bits <= MOST:
            raise ConfigError(
                f"bits is {self.bits}: give a value {FEWEST} to {MOST} bits, its sign "
                "included"
            )

    @property
    def tag(self) -> int:
        return 16 + self.bits

    def nbytes(self, nnz: int) -> int:
        return kernels.nbytes_log(nnz, self.bits)

    def encode(self, values: Tensor) -> Tensor:
        return kernels.encode_log(values, self.bits)

    def decode(self, section: Tensor, nnz: int) -> Tensor:
        return self.decode_deferring(section, nnz, None)

    def decode_deferring(
        self, section: Tensor, nnz: int, errors: Tensor | None
    ) -> Tensor:
        with checked("LogQuant"):
            return kernels.decode_log(section, nnz, self.bits, errors=errors)
