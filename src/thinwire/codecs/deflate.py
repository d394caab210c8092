"""Values through zlib: lossless, about a tenth smaller, some 200 ns a value.

DeepReduce's Deflate. Mantissas are noise and do not get smaller.
"""

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.codecs.codec import ValueCodec, checked
from thinwire.codecs.stream import decode_stream, encode_stream, inflated
from thinwire.errors import ConfigError

# zlib's own choice, and the slowest.
_DEFAULT, _MOST = -1, 9


@dataclass(frozen=True, slots=True)
class Deflate(ValueCodec):
    """The length of a zlib stream as u64, then the stream of the values as float32."""

    level: int = _DEFAULT
    tag = 6

    def __post_init__(self) -> None:
        if not _DEFAULT <= self.level <= _MOST:
            raise ConfigError(
                f"level is {self.level}: zlib knows 0 (stored) to {_MOST} (slowest), "
                f"and {_DEFAULT} for its own choice"
            )

    def encode(self, values: Tensor) -> Tensor:
        octets = values.contiguous().view(torch.uint8)
        return encode_stream(octets, lambda data: zlib.compress(data, self.level))

    def decode(self, section: Tensor, nnz: int) -> Tensor:
        with checked("Deflate"):
            return decode_stream(section, 4 * nnz, inflated).view(torch.float32)
