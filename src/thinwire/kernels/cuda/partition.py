"""The k largest of a block, or of a list, without candidates: in one launch."""

from functools import lru_cache

import torch
from torch import Tensor

from thinwire.kernels.blocks import Block
from thinwire.kernels.cuda import dense_select
from thinwire.kernels.cuda.launch import TOGETHER, cdiv, company
from thinwire.kernels.sections import Sparse


def select_densely(x: Tensor, k: int, block: Block) -> Sparse:
    """The `k` largest of a block, without candidates."""
    out = new_lists(k, x.device)
    shared = shared_words(x.device).zero_()
    _partition(x, x, k, block, shared, (*out, *out), splitting=False, holes=False)
    return out


def split_list(
    indices: Tensor,
    values: Tensor,
    k: int,
    *,
    shared: Tensor | None = None,
    holes: bool = False,
) -> tuple[Sparse, Sparse]:
    """The `k` largest entries of a list, and the others, holes among them.

    `shared` is memory from `shared_words` that is all zero.
    """
    shared = shared_words(values.device).zero_() if shared is None else shared
    kept, dropped = (
        (indices.new_empty(count), values.new_empty(count))
        for count in (k, len(values) - k)
    )
    whole, out = Block.whole(len(values)), (*kept, *dropped)
    _partition(values, indices, k, whole, shared, out, splitting=True, holes=holes)
    return kept, dropped


def _partition(
    x: Tensor,
    labels: Tensor,
    k: int,
    block: Block,
    shared: Tensor,
    out: tuple[Tensor, ...],
    **form: bool,
) -> None:
    """Launch `dense_select.partition` for one block of `x`.

    `out` is memory for the indices and values of the `k` largest elements, and of the
    others if `form` has `splitting`.
    """
    programs = min(company(x.device), max(cdiv(block.length, 2048), 1))
    parts = shared[dense_select.SHARED.value :]
    rows = row_table((0,), (k,), x.device)
    dense_select.partition[(programs,)](
        x,
        labels,
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
        *out,
        chunk=0 if block.contiguous else block.chunk,
        one=True,
        asked=False,
        removing=False,
        extracted=False,
        bf16=False,
        **form,
        **TOGETHER,
    )


def new_lists(nnz: int, device: torch.device) -> Sparse:
    """Uninitialised memory for `nnz` indices and values."""
    indices = torch.empty(nnz, dtype=torch.int32, device=device)
    return indices, torch.empty(nnz, device=device)


def shared_words(device: torch.device) -> Tensor:
    """Uninitialised memory that the programs of one launch share."""
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
