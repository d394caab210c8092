"""Codecs: sparse lists to bytes and back, one format per file."""

from thinwire.codecs.bfloat16 import BFloat16
from thinwire.codecs.bitmap import Bitmap
from thinwire.codecs.bloom import Bloom
from thinwire.codecs.codec import Codec, CodecWrapper, IndexCodec, ValueCodec, Values
from thinwire.codecs.deflate import Deflate
from thinwire.codecs.delta_varint import DeltaVarint
from thinwire.codecs.elias_fano import EliasFano
from thinwire.codecs.fit_dexp import FitDExp
from thinwire.codecs.fit_poly import FitPoly
from thinwire.codecs.float16 import Float16
from thinwire.codecs.float32 import Float32
from thinwire.codecs.huffman import Huffman
from thinwire.codecs.int8 import Int8
from thinwire.codecs.int32 import Int32
from thinwire.codecs.log_quant import LogQuant
from thinwire.codecs.min_size import MinSize
from thinwire.codecs.qsgd import QSGD
from thinwire.codecs.rice import Rice
from thinwire.codecs.run_length import RunLength
from thinwire.codecs.split import Split
from thinwire.codecs.tiers import Tiers
from thinwire.codecs.timed import Timed
from thinwire.codecs.zstd import Zstd

__all__ = [
    "QSGD",
    "BFloat16",
    "Bitmap",
    "Bloom",
    "Codec",
    "CodecWrapper",
    "Deflate",
    "DeltaVarint",
    "EliasFano",
    "FitDExp",
    "FitPoly",
    "Float16",
    "Float32",
    "Huffman",
    "IndexCodec",
    "Int8",
    "Int32",
    "LogQuant",
    "MinSize",
    "Rice",
    "RunLength",
    "Split",
    "Tiers",
    "Timed",
    "ValueCodec",
    "Values",
    "Zstd",
]
