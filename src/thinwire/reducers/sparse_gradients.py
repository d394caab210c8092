"""Naturally sparse gradients, as of `nn.Embedding(sparse=True)`.

A collective on rows adds them up. Nothing is selected, and there is no residual; each
parameter has the small memory that the collective plans its next step with.
"""

import json
from collections.abc import Mapping

import torch
from torch import Tensor

from thinwire.channel import Channel
from thinwire.collectives import RowCollective, RowMemory
from thinwire.groups import Group
from thinwire.kernels import index_dtype
from thinwire.rows import Rows
from thinwire.saved_values import counts, mapping, parsed


class SparseGradients:
    """Reduces sparse gradients; has a memory for each parameter."""

    def __init__(self, collective: RowCollective, seed: int = 0) -> None:
        self.collective = collective
        self._seed = seed
        self._memories: dict[str, RowMemory] = {}
        # What was remembered before this pass; None: nothing.
        self._before: dict[str, dict[str, int] | None] = {}

    def begin(self) -> None:
        """Start a backward pass, to whose beginning `undo_` returns."""
        self._before.clear()

    def undo_(self) -> None:
        """Return to the memories before this pass: no rank will apply it."""
        for name, saved in self._before.items():
            if saved is None:
                del self._memories[name]
            else:
                self._memories[name].load_dict(saved)
        self.begin()

    def mean(self, name: str, grad: Tensor, group: Group, step: int) -> Tensor:
        """The mean of a sparse COO tensor; it has the same bits on all ranks."""
        channel = Channel(group, step=step, seed=self._seed)
        known = self._memories.get(name)
        self._before[name] = None if known is None else known.to_dict()
        memory = self._memories.setdefault(name, RowMemory())
        mine = _rows_of(grad.coalesce())
        total = self.collective.sum_rows(mine, channel, memory)
        return _tensor_of(total, total.values / group.size, like=grad)

    def forget(self) -> None:
        """Forget all memories, as before the first step."""
        self._memories.clear()

    def dump(self) -> str:
        """The memories, for a state dict."""
        return json.dumps({n: each.to_dict() for n, each in self._memories.items()})

    def load(self, saved: Mapping[str, Mapping[str, int]]) -> None:
        """Replace the memories by those that `read` has returned."""
        self.forget()
        for name, numbers in saved.items():
            self._memories[name] = RowMemory()
            self._memories[name].load_dict(numbers)


def read(text: object) -> dict[str, dict[str, int]]:
    """The memories in a state dict; a `ConfigError` if they cannot be read."""
    saved = mapping(parsed(text, "sparse"), "sparse")
    return {name: counts(each, "sparse") for name, each in saved.items()}


def one_row(like: Tensor) -> Tensor:
    """A gradient of only the first row, so that all ranks have the same rows."""
    count = min(1, like.numel())
    row = Rows(
        torch.zeros(count, dtype=torch.int64, device=like.device),
        torch.zeros(count, _width(like), device=like.device),
        _count(like),
    )
    return _tensor_of(row, row.values, like)


def _rows_of(grad: Tensor) -> Rows:
    ids, count = grad.indices()[0], _count(grad)
    for size, more in zip(grad.shape[1:], grad.indices()[1:], strict=False):
        ids = ids * size + more
    values = grad.values().float().reshape(len(ids), _width(grad))
    return Rows(ids.to(index_dtype(count)), values, count)


def _tensor_of(rows: Rows, values: Tensor, like: Tensor) -> Tensor:
    dims = like.sparse_dim()
    shape = like.shape[:dims]
    indices = torch.stack(torch.unravel_index(rows.ids.long(), shape))
    return torch.sparse_coo_tensor(
        indices,
        values.view(rows.nnz, *like.shape[dims:]).to(like.dtype),
        like.shape,
        is_coalesced=True,
        check_invariants=False,
    )


def _count(grad: Tensor) -> int:
    return grad.shape[: grad.sparse_dim()].numel()


def _width(grad: Tensor) -> int:
    return grad.shape[grad.sparse_dim() :].numel()
