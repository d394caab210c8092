"""Checks that the decoders of all backends share, and the type of indices.

A section begins at a multiple of 8 bytes: `Packet.parse` copies it otherwise.
"""

import torch
from torch import Tensor

Sparse = tuple[Tensor, Tensor]
"""Indices and values of a sparse list."""


def index_dtype(size: int) -> torch.dtype:
    """The integer type that indices of a vector of `size` elements have."""
    return torch.int32 if size < 2**31 else torch.int64


def check_gradient(grad: Tensor, offset: int, size: int) -> None:
    """Refuse to accumulate a gradient of another type, or outside a vector."""
    end = offset + grad.numel()
    if not 0 <= offset <= end <= size:
        raise ValueError(f"elements {offset} to {end} are not in a vector of {size}")
    if grad.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"a gradient is float32, bfloat16 or float16: {grad.dtype}")


def index_nbits(size: int, nnz: int, low: int | None) -> int:
    """The bits of an Elias-Fano list with `low` low bits; with None, of a bitmap."""
    return size if low is None else nnz * (low + 1) + (size >> low)


def check_length(section: Tensor, nbits: int) -> None:
    """Refuse a section unless it has `nbits` bits, padded to a 64-bit word at most."""
    nbytes = -(-nbits // 8)
    if not nbytes <= section.numel() <= -(-nbits // 64) * 8:
        raise ValueError(f"{section.numel()} bytes where {nbytes} are expected")


def check_count(found: int, nnz: int) -> None:
    """Refuse another number of indices than the header states."""
    if found != nnz:
        raise ValueError(f"{found} indices, not {nnz}")


def check_order(ascending: bool, size: int) -> None:  # noqa: FBT001
    """Refuse indices that do not ascend below `size`."""
    if not ascending:
        raise ValueError(f"indices that do not increase strictly from 0 up to {size}")


def check_spare(clean: bool) -> None:  # noqa: FBT001
    """Refuse anything but zeros after the end."""
    if not clean:
        raise ValueError("bits that are set after the end")


def check_finite(finite: bool) -> None:  # noqa: FBT001
    """Refuse values that are infinite or NaN."""
    if not finite:
        raise ValueError("a value that is not finite")


def check_ascending(ascending: bool) -> None:  # noqa: FBT001
    """Refuse to encode indices that do not ascend."""
    if not ascending:
        raise IndexError("indices that do not increase strictly from 0 on")
