"""Single elements of a block: read, change or replace those that a list names.

A million of them in 400 MB take a fifth of a pass over all: each costs a line of
memory. A write that need not read first takes half of that.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from thinwire.kernels.blocks import Block
from thinwire.kernels.cuda.launch import EXACT, cdiv, flat, kernel, position
from thinwire.kernels.transfers import on_device

ENTRIES: Any = tl.constexpr(1024)

# Operations on an element.
READ, ADD, SUBTRACT, WRITE, LEAVE, RETURN = range(6)


@kernel
def _change(
    x,
    indices,
    values,
    sent,
    divisor,
    nnz,
    lowest,
    start,
    length,
    stride,
    holders,
    holder,
    chunk: tl.constexpr,
    what: tl.constexpr,
    dividing: tl.constexpr,
    sharing: tl.constexpr,
    subtracting: tl.constexpr,
    bf16: tl.constexpr,
) -> None:
    """Change the elements of a block, which indices from `lowest` on count."""
    first = tl.program_id(0).to(tl.int64) * ENTRIES
    i = tl.arange(0, ENTRIES)
    listed = i < nnz - first
    j = tl.load(indices + first + i, mask=listed, other=-1)
    inside = listed & (j >= lowest)
    j -= lowest
    inside = inside & (j < length)
    p = x + position(j, start, stride, chunk)
    if what == 0:
        tl.store(values + first + i, tl.load(p, mask=inside, other=0), mask=listed)
    else:
        value = tl.load(values + first + i, mask=listed, other=0)
        if what == 1:
            value = tl.load(p, mask=inside, other=0) + value
        elif what == 2:
            value = tl.load(p, mask=inside, other=0) - value
        elif what == 4:
            value = value - tl.load(sent + first + i, mask=listed, other=0)
        elif what == 5:
            if subtracting:
                value = value - tl.load(sent + first + i, mask=listed, other=0)
                # Zero differences are not written: their memory is not cached.
                inside = inside & (value != 0)
            if sharing:
                inside = inside & (j % holders == holder)
            if dividing:
                value = tl.div_rn(value, divisor)
            value = tl.load(p, mask=inside, other=0) + value
        elif dividing:
            value = tl.div_rn(value, divisor)
        if bf16:
            value = rounded(value)
        tl.store(p, value.to(x.dtype.element_ty), mask=inside)


@kernel
def rounded(value) -> Any:
    """The bits of the nearest bfloat16, ties to even, as the hardware does it.

    The interpreter's own conversion truncates instead.
    """
    word = value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    nearest = (word + 0x7FFF + ((word >> 16) & 1)) >> 16
    number = (word & 0x7FFFFFFF) <= 0x7F800000
    return tl.where(number, nearest, 0x7FFF).to(tl.int16)


@kernel
def _differ(word, section, wanted, length) -> None:
    i = tl.arange(0, ENTRIES)
    here = tl.load(section + i, mask=i < length, other=0)
    there = tl.load(wanted + i, mask=i < length, other=0)
    wrong = tl.sum((here != there).to(tl.int32)) > 0
    tl.atomic_or(word, 1, mask=wrong, sem="relaxed")


def flag_mismatch_(flag: Tensor, section: Tensor, expected: bytes) -> None:
    # Up to ENTRIES bytes: a header has fewer.
    wanted = on_device(expected, section.device)
    _differ[(1,)](flag, section, wanted, len(wanted), **EXACT)


def _run(
    what: int,
    x: Tensor,
    entries: tuple[Tensor, ...],
    block: Block | None,
    *,
    divisor: float = 1.0,
    lowest: int = 0,
    holder: tuple[int, int] = (1, 0),
) -> None:
    block = block or Block.whole(x.numel())
    block.check_inside(x.numel())
    indices, values, *sent = entries
    nnz = len(indices)
    if nnz == 0:
        return
    bf16 = x.dtype == torch.bfloat16
    _change[(cdiv(nnz, ENTRIES.value),)](
        flat(x).view(torch.int16) if bf16 else flat(x),
        flat(indices),
        flat(values),
        flat(sent[0] if sent else values),
        float(divisor),
        nnz,
        lowest,
        block.start,
        block.length,
        block.stride,
        *holder,
        chunk=0 if block.contiguous else block.chunk,
        what=what,
        dividing=divisor != 1.0,
        sharing=holder[0] > 1,
        subtracting=bool(sent),
        bf16=bf16,
        **EXACT,
    )


def gather(x: Tensor, indices: Tensor, *, block: Block | None = None) -> Tensor:
    values = torch.empty(len(indices), dtype=x.dtype, device=x.device)
    _run(READ, x, (indices, values), block)
    return values


def add_at_(
    x: Tensor, indices: Tensor, values: Tensor, *, block: Block | None = None
) -> None:
    _run(ADD, x, (indices, values), block)


def subtract_at_(
    x: Tensor, indices: Tensor, values: Tensor, *, block: Block | None = None
) -> None:
    _run(SUBTRACT, x, (indices, values), block)


def leave_at_(
    x: Tensor,
    indices: Tensor,
    held: Tensor,
    sent: Tensor,
    *,
    block: Block | None = None,
) -> None:
    _run(LEAVE, x, (indices, held, sent), block)


def return_at_(
    x: Tensor,
    indices: Tensor,
    values: Tensor,
    *,
    sent: Tensor | None = None,
    holders: tuple[int, int] = (1, 0),
    block: Block | None = None,
) -> None:
    count, _ = holders
    equal = count & (count - 1) == 0
    share = {"divisor": float(count)} if equal else {"holder": holders}
    entries = (indices, values) if sent is None else (indices, values, sent)
    _run(RETURN, x, entries, block, **share)


def scatter_(
    out: Tensor,
    indices: Tensor,
    values: Tensor,
    *,
    block: Block | None = None,
    divisor: float = 1.0,
) -> None:
    _run(WRITE, out, (indices, values), block, divisor=divisor)


def write_mean_(
    pieces: Sequence[Tensor], indices: Tensor, values: Tensor, *, ranks: int
) -> Tensor:
    mean = values / _number(ranks, values.device)
    start = 0
    for piece in pieces:
        _run(WRITE, piece, (indices, mean), None, lowest=start)
        start += piece.numel()
    return mean


@lru_cache(maxsize=64)
def _number(number: int, device: torch.device) -> Tensor:
    """A divisor on the device: CUDA multiplies by the reciprocal of a Python number."""
    return torch.tensor(float(number), device=device)
