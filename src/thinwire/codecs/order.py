"""The order of sorted values: a permutation in ceil(log2 nnz) bits per entry."""

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.codecs.codec import checked
from thinwire.errors import WireError
from thinwire.wire import padded


def descending(values: Tensor) -> Tensor:
    """The positions of the values in descending order; the sort is stable."""
    return torch.sort(values, descending=True, stable=True).indices


def map_nbytes(nnz: int) -> int:
    """The bytes of a permutation, in whole words."""
    return padded(-(-nnz * _width(nnz) // 8))


def encode_map(order: Tensor) -> Tensor:
    """A permutation as bytes."""
    return kernels.pack_bits(order, _width(len(order)))


def decode_map(section: Tensor, nnz: int) -> Tensor:
    """The permutation; raises `WireError` if the bytes are not one."""
    with checked("the order of values"):
        order = kernels.unpack_bits(section, nnz, _width(nnz))
    used = nnz * _width(nnz)
    spare = section[used // 8 :].tolist()  # at most a word
    if spare and (spare[0] >> used % 8 or any(spare[1:])):
        raise WireError("the order of values: bits that are set after the end")
    if nnz and int(order.max()) >= nnz:
        raise WireError(f"the order of values: place {int(order.max())} of {nnz}")
    taken = torch.zeros(nnz, dtype=torch.bool, device=order.device)
    taken[order] = True
    if not bool(taken.all()):
        raise WireError("the order of values: some places twice, some never")
    return order


def _width(nnz: int) -> int:
    return max(nnz - 1, 0).bit_length()
