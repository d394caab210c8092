"""The run lengths of a bitmap, found in the list of its ones: 3 to 6 ns an entry."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.kernels.cpu.arrays import Indices
from thinwire.kernels.cpu.bits import (
    all_zero_from,
    as_section,
    as_words,
    pack_into,
    unpack_into,
)
from thinwire.kernels.cpu.compiled import kernel
from thinwire.kernels.reference.bits import check_room, check_width
from thinwire.kernels.reference.runs import HEADER, check_header, check_runs
from thinwire.kernels.sections import (
    check_ascending,
    check_count,
    check_length,
    check_spare,
    index_dtype,
)

Runs = NDArray[np.int64]


def encode_runs(indices: Tensor, size: int) -> Tensor:
    listed = indices.contiguous().numpy()
    count = _count(listed, size)
    check_ascending(count > 0)
    runs = np.empty(count, np.int64)
    width = int(_measure(listed, size, runs)).bit_length()
    words = np.empty(1 + -(-count * width // 64), np.uint64)
    words[0] = int.from_bytes(HEADER.pack(count, width, bytes(3)), "little")
    pack_into(runs, width, words[1:])
    return as_section(words, 64 + count * width)


def decode_runs(section: Tensor, size: int, nnz: int) -> Tensor:
    check_room(section, HEADER.size, 8)
    count, width, reserved = HEADER.unpack(section.numpy()[: HEADER.size].tobytes())
    check_header(count, width, reserved, nnz)
    check_width(width)
    bits = 64 + count * width
    check_length(section, bits)
    words = as_words(section, -(-bits // 64))
    check_spare(all_zero_from(words, bits))
    runs = np.empty(count, np.int64)
    unpack_into(words[1:], width, runs)
    ones = _check(runs, size)
    check_runs(ones >= 0, size)
    check_count(ones, nnz)
    indices = torch.empty(nnz, dtype=index_dtype(size))
    _fill(runs, indices.numpy())
    return indices


@kernel
def _count(indices: Indices, size: int) -> int:
    """How many runs there are; 0 if these are no indices below `size`."""
    if len(indices) == 0:
        return 1
    falls = indices[0] < 0 or indices[-1] >= size
    apart: Any = np.int64(1)
    for i in range(1, len(indices)):
        step: Any = np.int64(indices[i]) - np.int64(indices[i - 1])
        falls |= step <= 0
        apart += np.int64(step != 1)
    if falls:
        return 0
    return 2 * apart + np.int64(indices[-1] != size - 1)  # type: ignore[no-any-return]


@kernel
def _measure(indices: Indices, size: int, runs: Runs) -> int:
    """Write the run lengths, of zeros first; returns the longest."""
    end: Any = np.int64(0)  # of the run of ones so far
    ones: Any = np.int64(0)
    longest: Any = np.int64(0)
    n = 0
    for i in range(len(indices)):
        index: Any = np.int64(indices[i])
        if index != end or i == 0:
            if i > 0:
                runs[n] = ones
                longest = max(longest, ones)
                n += 1
            runs[n] = index - end
            longest = max(longest, index - end)
            n += 1
            ones = np.int64(0)
        ones += 1
        end = index + 1
    if len(indices) > 0:
        runs[n] = ones
        longest = max(longest, ones)
        n += 1
    if n < len(runs):
        runs[n] = size - end
        longest = max(longest, size - end)
    return longest  # type: ignore[no-any-return]


@kernel
def _check(runs: Runs, size: int) -> int:
    """How many ones there are; -1 if the runs are not those of `size` elements."""
    total: Any = np.int64(0)
    ones: Any = np.int64(0)
    for i in range(len(runs)):
        run = runs[i]
        total += run
        if run > size or total > size or (run == 0 and i > 0):
            return -1
        if i & 1:
            ones += run
    return ones if total == size else -1


@kernel
def _fill(runs: Runs, indices: Indices) -> None:
    """The places of the ones, of which there are exactly `len(indices)`."""
    at: Any = np.int64(0)
    n = 0
    for i in range(len(runs)):
        if i & 1:
            for j in range(runs[i]):
                indices[n + j] = at + j
            n += runs[i]
        at += runs[i]
