"""The k largest of a block, or of a list, without candidates: in one launch."""

from functools import lru_cache

import torch
from torch import Tensor

from thinwire.kernels.blocks import Block
from thinwire.kernels.cuda import dense_select
from thinwire.kernels.cuda.launch import TOGETHER, cdiv, company

Sparse = tuple[Tensor, Tensor]


def select_densely(x: Tensor, k: int, block: Block) -> Sparse:
    """The `k` largest of a block, without candidates."""
    device = x.device
    programs = min(company(device), max(cdiv(block.length, 2048), 1))
    shared = shared_words(device).zero_()
    parts = shared[dense_select.SHARED.value :]
    indices, values = new_lists(k, device)
    rows = row_table((0,), (k,), device)
    dense_select.partition[(programs,)](
        x,
        x,
        rows,
        1,
        rows,
        block.start,
        block.length,
        block.stride,
        shared,
        shared,
        parts,
        parts,
        0,
        indices,
        values,
        indices,
        values,
        chunk=0 if block.contiguous else block.chunk,
        one=True,
        asked=False,
        splitting=False,
        holes=False,
        removing=False,
        extracted=False,
        bf16=False,
        **TOGETHER,
    )
    return indices, values


def split_list(
    indices: Tensor,
    values: Tensor,
    k: int,
    *,
    shared: Tensor | None = None,
    holes: bool = False,
) -> tuple[Sparse, Sparse]:
    """The `k` largest entries of a list, and the others, holes among them.

    `shared` are words that have been cleared, if somebody has done it.
    """
    device, nnz = values.device, len(values)
    programs = min(company(device), cdiv(nnz, 2048))
    shared = shared_words(device).zero_() if shared is None else shared
    parts = shared[dense_select.SHARED.value :]
    kept = torch.empty(k, dtype=indices.dtype, device=device), values.new_empty(k)
    rest = nnz - k
    dropped = indices.new_empty(rest), values.new_empty(rest)
    rows = row_table((0,), (k,), device)
    dense_select.partition[(programs,)](
        values,
        indices,
        rows,
        1,
        rows,
        0,
        nnz,
        nnz,
        shared,
        shared,
        parts,
        parts,
        0,
        *kept,
        *dropped,
        chunk=0,
        one=True,
        asked=False,
        splitting=True,
        holes=holes,
        removing=False,
        extracted=False,
        bf16=False,
        **TOGETHER,
    )
    return kept, dropped


def new_lists(nnz: int, device: torch.device) -> Sparse:
    """Uninitialised memory for `nnz` indices and values."""
    indices = torch.empty(nnz, dtype=torch.int32, device=device)
    return indices, torch.empty(nnz, device=device)


def shared_words(device: torch.device) -> Tensor:
    """Room for what programs that wait for each other share; to be cleared."""
    size = dense_select.SHARED.value + 2 * company(device)
    return torch.empty(size, dtype=torch.int32, device=device)


# Written to the device once, then remembered, so that a step copies nothing to it.
@lru_cache(maxsize=1024)
def row_table(
    numbers: tuple[int, ...], counts: tuple[int, ...], device: torch.device
) -> Tensor:
    """For each selection the block, how many elements, and where they are written."""
    rows, out = [], 0
    for number, count in zip(numbers, counts, strict=True):
        rows.append([number, count, out])
        out += count
    return torch.tensor(rows, device=device)
