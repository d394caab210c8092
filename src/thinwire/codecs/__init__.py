"""Codecs: sparse lists to bytes and back, one format per file."""

from thinwire.codecs.bitmap import Bitmap
from thinwire.codecs.codec import Codec, IndexCodec, ValueCodec, Values
from thinwire.codecs.delta_varint import DeltaVarint
from thinwire.codecs.elias_fano import EliasFano
from thinwire.codecs.float32 import Float32
from thinwire.codecs.int32 import Int32
from thinwire.codecs.rice import Rice
from thinwire.codecs.run_length import RunLength
from thinwire.codecs.split import Split
from thinwire.codecs.timed import Timed

__all__ = [
    "Bitmap",
    "Codec",
    "DeltaVarint",
    "EliasFano",
    "Float32",
    "IndexCodec",
    "Int32",
    "Rice",
    "RunLength",
    "Split",
    "Timed",
    "ValueCodec",
    "Values",
]
