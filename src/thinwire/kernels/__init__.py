"""Primitives on raw tensors: each runs the kernel for the device of its tensors.

`thinwire.kernels.reference` defines each primitive; `cpu` and `cuda` have faster
kernels that return the same bits. A profiler records a primitive by name, and
`timed_primitives` adds up the seconds of each.
"""

from thinwire.kernels.adam import AdamList, AdamRules, AdamTensors
from thinwire.kernels.blocks import Block, contiguous_blocks, interleaved_blocks
from thinwire.kernels.deferred_errors import DeferredErrors
from thinwire.kernels.dispatch import Stopwatch, by_reference, timed_primitives
from thinwire.kernels.hashes import Hashes, hash_keys
from thinwire.kernels.memory import zeros
from thinwire.kernels.reference.accumulate import accumulate_, select
from thinwire.kernels.reference.adamw import adamw_, adamw_at_, decay_, has_zero
from thinwire.kernels.reference.bits import pack_bits, unpack_bits
from thinwire.kernels.reference.bloom import (
    bloom_positives,
    bloom_resolve,
    bloom_sample,
    encode_bloom,
)
from thinwire.kernels.reference.candidates import new_candidates
from thinwire.kernels.reference.checksum import packet_checksum
from thinwire.kernels.reference.dense import at_least, magnitudes, row_peaks
from thinwire.kernels.reference.dexp import decode_dexp, encode_dexp
from thinwire.kernels.reference.elements import (
    add_at_,
    flag_mismatch_,
    gather,
    leave_at_,
    return_at_,
    scatter_,
    subtract_at_,
    write_mean_,
)
from thinwire.kernels.reference.elias_fano import (
    decode_bitmap,
    decode_elias_fano,
    encode_bitmap,
    encode_elias_fano,
)
from thinwire.kernels.reference.halves import to_bfloat16, to_float16
from thinwire.kernels.reference.int8 import decode_int8, encode_int8, nbytes_int8
from thinwire.kernels.reference.lists import (
    all_finite,
    join,
    look_up,
    merge_add,
    merge_all,
    merge_split,
    split,
    strictly_increasing,
)
from thinwire.kernels.reference.log import decode_log, encode_log, nbytes_log
from thinwire.kernels.reference.packet import decode_packet, encode_packet
from thinwire.kernels.reference.peel import (
    Estimate,
    estimate_rows,
    peel_rows_,
    set_bits,
    sketch_rows,
)
from thinwire.kernels.reference.poly import decode_poly, encode_poly
from thinwire.kernels.reference.qsgd import decode_qsgd, encode_qsgd, nbytes_qsgd
from thinwire.kernels.reference.rice import decode_rice, encode_rice
from thinwire.kernels.reference.runs import decode_runs, encode_runs
from thinwire.kernels.reference.sketch import (
    encode_sketch,
    estimate_sketch_,
    shuffled,
    sketch_energy,
)
from thinwire.kernels.reference.varint import decode_varint, encode_varint
from thinwire.kernels.sections import Sparse, check_length, index_dtype
from thinwire.kernels.transfers import fetch, on_device
