"""Gaps between indices in LEB128: 1 to 6 ns an entry, either way."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire.kernels.cpu.arrays import Indices, Octets
from thinwire.kernels.cpu.compiled import kernel
from thinwire.kernels.reference.varint import check_enough, check_shortest
from thinwire.kernels.sections import (
    check_ascending,
    check_length,
    check_order,
    check_spare,
    index_dtype,
)

_ENDED = -1
_TOO_LONG = -2
_OUTSIDE = -3


def encode_varint(indices: Tensor) -> Tensor:
    listed = indices.contiguous().numpy()
    length = _measure(listed)
    check_ascending(length >= 0)
    octets = np.empty(length, np.uint8)
    _write(listed, octets)
    return torch.from_numpy(octets)


def decode_varint(section: Tensor, size: int, nnz: int) -> Tensor:
    check_enough(nnz <= section.numel(), nnz)
    indices = torch.empty(nnz, dtype=index_dtype(size))
    octets = section.contiguous().numpy()
    end = _read(octets, size, indices.numpy())
    check_enough(end != _ENDED, nnz)
    check_shortest(end != _TOO_LONG)
    check_order(end != _OUTSIDE, size)
    check_length(section, 8 * end)
    check_spare(not octets[end:].any())
    return indices


@kernel
def _measure(indices: Indices) -> int:
    """The number of bytes of all gaps; -1 if indices do not ascend."""
    before: Any = np.int64(-1)
    length = 0
    falls = False
    for i in range(len(indices)):
        index: Any = np.int64(indices[i])
        gap = index - before - 1
        before = index
        falls |= gap < 0
        length += 1
        # Branches that are rarely taken cost less than a count of leading zeros.
        while gap >= 128:
            gap >>= 7
            length += 1
    return -1 if falls else length


@kernel
def _write(indices: Indices, section: Octets) -> None:
    before: Any = np.int64(-1)
    at = 0
    for i in range(len(indices)):
        index: Any = np.int64(indices[i])
        gap = index - before - 1
        before = index
        while gap >= 128:
            section[at] = gap & 127 | 128
            gap >>= 7
            at += 1
        section[at] = gap
        at += 1


@kernel
def _read(section: Octets, size: int, indices: Indices) -> int:
    """Decode to `indices`; returns where the last gap ends, or an error code."""
    index: Any = np.int64(-1)
    at = 0
    for i in range(len(indices)):
        gap: Any = np.int64(0)
        shift = 0
        while True:
            if at >= len(section):
                return _ENDED
            octet: Any = np.int64(section[at])
            at += 1
            gap |= (octet & 127) << shift
            if octet < 128:
                break
            shift += 7
            if shift > 56:
                return _TOO_LONG
        if shift > 0 and octet == 0:
            return _TOO_LONG
        if gap >= size:
            return _OUTSIDE
        index += gap + 1
        if index >= size:
            return _OUTSIDE
        indices[i] = index
    return at
