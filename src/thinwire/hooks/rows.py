"""Naturally sparse gradients (`nn.Embedding(sparse=True)`): the rows that were touched.

They are added up by a collective on rows: nothing is selected and nothing remembered
but, per parameter, the few numbers that the collective plans its next step with.
"""

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from thinwire.channel import Channel
from thinwire.collectives import RowCollective, State
from thinwire.errors import ConfigError
from thinwire.groups import Group
from thinwire.kernels import index_dtype
from thinwire.rows import Rows


class SparseGradients:
    """How sparse gradients are reduced, and what is planned for each parameter."""

    def __init__(self, collective: RowCollective, seed: int = 0) -> None:
        self.collective = collective
        self._seed = seed
        self._states: dict[str, State] = {}

    def mean(self, name: str, grad: Tensor, group: Group, step: int) -> Tensor:
        """The mean of a sparse COO tensor over all ranks; the same bits everywhere."""
        channel = Channel(group, step=step, seed=self._seed)
        state = self._states.setdefault(name, State())
        mine = _rows_of(grad.coalesce())
        total = self.collective.sum_rows(mine, channel, state)
        return _tensor_of(total, total.values / group.size, like=grad)

    def forget(self) -> None:
        """Plan anew, as in a first step."""
        self._states.clear()

    def dump(self) -> str:
        """The plans, as a state dict holds them."""
        return json.dumps({name: each.saved for name, each in self._states.items()})

    def load(self, plans: Mapping[str, Mapping[str, int]]) -> None:
        """Go on with plans that `read` has read."""
        self._states = {name: State(saved=dict(s)) for name, s in plans.items()}


def read(text: Any) -> dict[str, dict[str, int]]:
    """The plans in a state dict, or an error where they cannot be read."""
    try:
        return {str(n): numbers(saved) for n, saved in json.loads(text).items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"a damaged state dict: its 'sparse' is {text!r}, not numbers by parameter"
        ) from error


def numbers(saved: Mapping[str, Any]) -> dict[str, int]:
    """The whole numbers that a collective had saved; `ValueError` for any others."""
    found = {str(key): int(number) for key, number in saved.items()}
    for key, number in found.items():
        if number != saved[key]:
            raise ValueError(f"{key} is {saved[key]}, not a whole number")
    return found


def one_row(like: Tensor) -> Tensor:
    """A gradient that touches the first row alone, so that ranks touch the same one."""
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
