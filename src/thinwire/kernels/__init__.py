"""Primitives on raw tensors, entered here by name, run by the tensor's device.

Every primitive appears under its name in the PyTorch profiler, and in the `Stopwatch`
of whoever asked for one with `watched`: that is all the timing there is in the stages
above. `thinwire.kernels.reference` states what each primitive means; a fast backend
must return the same bits.
"""

from thinwire.kernels.blocks import Block, contiguous_blocks, interleaved_blocks
from thinwire.kernels.codes import (
    bloom_positives,
    bloom_resolve,
    bloom_sample,
    decode_bitmap,
    decode_dexp,
    decode_elias_fano,
    decode_int8,
    decode_log,
    decode_poly,
    decode_qsgd,
    decode_rice,
    decode_runs,
    decode_varint,
    encode_bitmap,
    encode_bloom,
    encode_dexp,
    encode_elias_fano,
    encode_int8,
    encode_log,
    encode_poly,
    encode_qsgd,
    encode_rice,
    encode_runs,
    encode_varint,
    pack_bits,
    to_bfloat16,
    to_float16,
    unpack_bits,
)
from thinwire.kernels.entry import Stopwatch, by_reference, watched
from thinwire.kernels.hashes import Hashes, hash_keys
from thinwire.kernels.marker import Marker
from thinwire.kernels.peel import (
    Estimate,
    estimate_rows,
    peel_rows_,
    set_bits,
    sketch_rows,
)
from thinwire.kernels.reference_int8 import nbytes_int8
from thinwire.kernels.reference_log import nbytes_log
from thinwire.kernels.reference_qsgd import nbytes_qsgd
from thinwire.kernels.sections import check_length, index_dtype
from thinwire.kernels.sketch import (
    encode_sketch,
    estimate_sketch_,
    shuffled,
    sketch_energy,
)
from thinwire.kernels.vectors import (
    Sparse,
    accumulate_,
    add_at_,
    gather,
    join,
    magnitudes,
    merge_add,
    scatter_,
    select,
    split,
    strictly_increasing,
    subtract_at_,
)

__all__ = [
    "Block",
    "Estimate",
    "Hashes",
    "Marker",
    "Sparse",
    "Stopwatch",
    "accumulate_",
    "add_at_",
    "bloom_positives",
    "bloom_resolve",
    "bloom_sample",
    "by_reference",
    "check_length",
    "contiguous_blocks",
    "decode_bitmap",
    "decode_dexp",
    "decode_elias_fano",
    "decode_int8",
    "decode_log",
    "decode_poly",
    "decode_qsgd",
    "decode_rice",
    "decode_runs",
    "decode_varint",
    "encode_bitmap",
    "encode_bloom",
    "encode_dexp",
    "encode_elias_fano",
    "encode_int8",
    "encode_log",
    "encode_poly",
    "encode_qsgd",
    "encode_rice",
    "encode_runs",
    "encode_sketch",
    "encode_varint",
    "estimate_rows",
    "estimate_sketch_",
    "gather",
    "hash_keys",
    "index_dtype",
    "interleaved_blocks",
    "join",
    "magnitudes",
    "merge_add",
    "nbytes_int8",
    "nbytes_log",
    "nbytes_qsgd",
    "pack_bits",
    "peel_rows_",
    "scatter_",
    "select",
    "set_bits",
    "shuffled",
    "sketch_energy",
    "sketch_rows",
    "split",
    "strictly_increasing",
    "subtract_at_",
    "to_bfloat16",
    "to_float16",
    "unpack_bits",
    "watched",
]
