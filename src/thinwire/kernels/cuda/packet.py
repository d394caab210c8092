"""Whole packets in one launch, because launches take most of the time."""

import torch
import triton.language as tl
from torch import Tensor

from thinwire.kernels.cuda.elias_fano import (
    WRITING,
    decode_bitmap,
    decode_elias_fano,
    section_programs,
    too_wide,
    write_section,
)
from thinwire.kernels.cuda.halves import bfloat16_bits, from_bfloat16
from thinwire.kernels.cuda.launch import await_others, cdiv, flat, following, kernel
from thinwire.kernels.sections import index_nbits

# Words of a program that writes values: two in each.
PAIRS = 1024


@kernel
def _write_pairs(values, words, p, nnz, pairs: tl.constexpr) -> None:
    first = p.to(tl.int64) * pairs
    i = tl.arange(0, 2 * pairs)
    # Zeros, which their bits remain, fill the last 8 bytes.
    value = tl.load(values + 2 * first + i, mask=i < nnz - 2 * first, other=0)
    low, high = tl.split(tl.reshape(bfloat16_bits(value), [pairs, 2]))
    w = tl.arange(0, pairs)
    inside = w < (nnz + 3) // 4 * 2 - first
    tl.store(words + first + w, low | (high << 16), mask=inside)


@kernel
def _encode(
    header,
    indices,
    values,
    words,
    count,
    nnz,
    size,
    one_programs,
    low_programs,
    begin: tl.constexpr,
    low: tl.constexpr,
    step: tl.constexpr,
    wide: tl.constexpr,
    lows: tl.constexpr,
    ones: tl.constexpr,
    pairs: tl.constexpr,
    waiting: tl.constexpr,
) -> None:
    await_others(waiting, admitting=True)
    p = tl.program_id(0)
    section_programs = one_programs + low_programs
    if p < section_programs:
        write_section(
            indices,
            words + begin,
            p,
            count,
            nnz,
            size,
            one_programs,
            low,
            step,
            wide,
            lows,
            ones,
        )
    else:
        p -= section_programs
        if p == 0:
            w = tl.arange(0, begin)
            tl.store(words + w, tl.load(header + w))
        _write_pairs(values, words + begin + count, p, nnz, pairs)


def encode_packet(
    header: Tensor, indices: Tensor, values: Tensor, size: int, low: int | None
) -> Tensor:
    nnz, device = len(indices), indices.device
    kept, step = (0, 0) if low is None else (low, 1)
    nbits = index_nbits(size, nnz, low)
    count, begin = 2 * cdiv(nbits, 64), len(header) // 4
    total = begin + count + 2 * cdiv(nnz, 4)
    words = torch.empty(total, dtype=torch.int32, device=device)
    one_programs, low_programs = section_programs(nnz, kept)
    pair_programs = max(cdiv(nnz, 2 * PAIRS), 1)
    _encode[(one_programs + low_programs + pair_programs,)](
        header.view(torch.int32),
        flat(indices.contiguous()),
        flat(values.contiguous()).view(torch.int32),
        words,
        count,
        nnz,
        size,
        one_programs,
        low_programs,
        begin=begin,
        low=kept,
        step=step,
        wide=too_wide(nbits, size),
        pairs=PAIRS,
        **WRITING,
        **following(device),
    )
    return words.view(torch.uint8)


def decode_packet(
    body: Tensor,
    begin: int,
    size: int,
    nnz: int,
    *,
    low: int | None,
    errors: Tensor | None = None,
    finite: bool = False,
) -> tuple[Tensor, Tensor]:
    end = begin + 8 * cdiv(index_nbits(size, nnz, low), 64)
    if low is None:
        indices = decode_bitmap(body[begin:end], size, nnz, errors=errors)
    else:
        section = body[begin:end]
        indices = decode_elias_fano(section, size, nnz, low=low, errors=errors)
    # The padding of the last 8 bytes is not checked: it would have to be fetched.
    values = from_bfloat16(body[end : end + 2 * nnz], errors, finite=finite)
    return indices, values
