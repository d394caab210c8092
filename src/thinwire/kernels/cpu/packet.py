"""Whole packets in one call, because calls take most of the time of short lists."""

import numpy as np
import torch
from torch import Tensor

from thinwire.kernels.cpu.elias_fano import read_section, write_section
from thinwire.kernels.cpu.halves import read_bfloat16, write_bfloat16
from thinwire.kernels.sections import Sparse, check_finite, check_spare, index_nbits

_WORD = 8


def encode_packet(
    header: Tensor, indices: Tensor, values: Tensor, size: int, low: int | None
) -> Tensor:
    nnz, begin = len(values), len(header) // _WORD
    if len(indices) != nnz or values.dtype != torch.float32:
        raise ValueError(
            f"{len(indices)} indices and {nnz} values in {values.dtype}: a list has as "
            "many of both, and float32"
        )
    end = begin + -(-index_nbits(size, nnz, low) // 64)
    words = np.zeros(end + -(-nnz // 4), np.uint64)
    words[:begin] = header.numpy().view(np.uint64)
    write_section(indices.contiguous().numpy(), low, words[begin:end])
    write_bfloat16(values.contiguous().numpy(), words[end:].view(np.uint16)[:nnz])
    return torch.from_numpy(words.view(np.uint8))


def decode_packet(
    body: Tensor,
    begin: int,
    size: int,
    nnz: int,
    *,
    low: int | None,
    errors: Tensor | None = None,
    finite: bool = False,
) -> Sparse:
    words = body.numpy().view(np.uint64)
    end = begin // _WORD + -(-index_nbits(size, nnz, low) // 64)
    indices = read_section(words[begin // _WORD : end], size, nnz, low)
    check_spare(nnz % 4 == 0 or int(words[-1]) >> (nnz % 4 * 16) == 0)
    values = np.empty(nnz, np.float32)
    right = read_bfloat16(words[end:].view(np.uint16)[:nnz], values.view(np.int32))
    check_finite(right or not finite)
    return indices, torch.from_numpy(values)
