# mypy: disallow-untyped-decorators=False
# ruff: noqa: D103, because the front door documents each function.
"""Values in a few bits, read in one launch: each looks its level up in a table.

They are written by the reference, whose search for levels runs on the processor.
"""

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from thinwire.kernels import reference_log
from thinwire.kernels.cuda_bits import as_words, unpacked
from thinwire.kernels.cuda_launch import EXACT, cdiv, kernel
from thinwire.kernels.doubts import in_doubt
from thinwire.kernels.sections import check_length

SPAN: Any = tl.constexpr(512)
INFINITY: Any = tl.constexpr(reference_log.INFINITY)


@kernel
def _decode(
    words: tl.tensor,
    values: tl.tensor,
    doubt: tl.tensor,
    nnz: tl.tensor,
    bits: tl.constexpr,
    levels: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * SPAN + tl.arange(0, SPAN)
    inside = i < nnz
    code = unpacked(words + levels, i, inside, bits)
    level = tl.load(words + (code & (levels - 1)), mask=inside, other=0)
    # The bit above the level's number is the sign.
    sign = (code >> (bits - 1)).to(tl.int32) << 31
    tl.store(values + i, (level | sign).to(tl.float32, bitcast=True), mask=inside)
    if tl.program_id(0) == 0:
        number = tl.arange(0, levels)
        each = tl.load(words + number)
        after = tl.load(words + number + 1, mask=number + 1 < levels, other=INFINITY)
        wrong = (each < 0) | (each >= INFINITY) | (after < each)
        tl.store(doubt, (tl.sum(wrong.to(tl.int32)) > 0).to(tl.int32))


def decode_log(section: Tensor, nnz: int, bits: int) -> Tensor:
    check_length(section, 8 * reference_log.nbytes_log(nnz, bits))
    values = torch.empty(nnz, device=section.device)
    doubt = torch.empty(1, dtype=torch.int32, device=section.device)
    grid = (max(cdiv(nnz, SPAN.value), 1),)
    form = {"bits": bits, "levels": 1 << (bits - 1)}
    _decode[grid](as_words(section), values, doubt, nnz, **form, **EXACT)
    if in_doubt(doubt):
        return reference_log.decode_log(section, nnz, bits)
    return values
