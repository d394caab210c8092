"""Values as random multiples of a norm: 8.06 bits each, unbiased.

QSGD (Alistarh et al., NeurIPS 2017) in buckets, as DeepReduce uses it. The error of a
value is less than its bucket's L2 norm / levels. With error feedback values
need not be unbiased: `Int8` takes as many bits and has a much smaller error.
"""

from dataclasses import dataclass, field, replace
from typing import Self

from torch import Tensor

from thinwire import kernels
from thinwire.codecs.codec import ValueCodec, checked
from thinwire.errors import ConfigError

INT8, INT16 = 2**7 - 1, 2**15 - 1
LONGEST = 2**32 - 1  # as many values as a packet holds


@dataclass(frozen=True, slots=True)
class QSGD(ValueCodec):
    """The norm of each bucket as float32, then int8 (int16 from 128 levels on).

    Every rank must be given the same `levels` and `bucket`: packets do not say them.
    Of values that are not finite nothing is sent.
    """

    levels: int = INT8
    bucket: int = 512
    key: int = field(default=0, repr=False)
    tag = 5
    always_finite = True

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= INT16:
            raise ConfigError(
                f"levels is {self.levels}: give 1 to {INT8} for 8 bits a value, up to "
                f"{INT16} for 16"
            )
        if not 1 <= self.bucket <= LONGEST:
            raise ConfigError(
                f"bucket is {self.bucket}: give the number of values that share a "
                f"norm, 1 to {LONGEST}"
            )

    def with_key(self, key: int) -> Self:
        return replace(self, key=key)

    def nbytes(self, nnz: int) -> int:
        return kernels.nbytes_qsgd(nnz, self.levels, self.bucket)

    def encode(self, values: Tensor) -> Tensor:
        return kernels.encode_qsgd(values, self.levels, self.bucket, self.key)

    def decode(self, section: Tensor, nnz: int) -> Tensor:
        with checked("QSGD"):
            return kernels.decode_qsgd(section, nnz, self.levels, self.bucket)
