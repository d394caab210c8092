"""Run lengths of the bitmap, all of the same width: DeepReduce's run-length code.

Xu et al., NeurIPS 2021, as released: alternating runs, zeros first, packed in as many
bits as the longest needs. (The release takes one bit less where the longest is a power
of two, and cannot read it back.)
"""

from dataclasses import dataclass

from torch import Tensor

from thinwire import kernels
from thinwire.codecs.codec import IndexCodec, checked
from thinwire.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RunLength(IndexCodec):
    """How many runs, their width, and the runs; good only where ones come in runs."""

    tag = 6

    def encode(self, indices: Tensor, size: int) -> Tensor:
        if 2 * len(indices) + 1 >= 2**32:
            raise ConfigError(
                f"{len(indices)} entries may have more than 2^32 runs; lower the "
                "density or use Elias-Fano"
            )
        return kernels.encode_runs(indices, size)

    def decode(self, section: Tensor, size: int, nnz: int) -> Tensor:
        with checked("run lengths"):
            return kernels.decode_runs(section, size, nnz)
