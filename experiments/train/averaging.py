"""Averaging: the methods that need no ranks, because all they send is sums."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from experiments.peers.base import RowMethod
from experiments.train.workers import HealthRecord
from thinwire.cost import ring_all_reduce

Result = TypeVar("Result")


class Averaging:
    """Methods that work on all rows at once: the dense mean, PowerSGD, and peers."""

    where = "as one matrix"

    def __init__(self, rows: Tensor, method: RowMethod | None) -> None:
        self._rows = rows
        self._method = method
        self._sent = 0.0
        self._rounds = 0.0

    def run(self, body: Callable[[], Result]) -> Result:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as the ranks of a simulation, and in real processes
        try:
            return body()
        finally:
            torch.set_num_threads(threads)

    def reduce_(self, sparse: Sequence[Sequence[Tensor]]) -> dict[str, Tensor]:
        if self._method is None:
            self._rows[0].copy_(self._rows.mean(0))
            cost = ring_all_reduce(4 * self._rows.shape[1], len(self._rows))
        else:
            self._method.reduce_(self._rows)
            cost = self._method.cost()
        self._sent += cost.nbytes
        self._rounds += cost.rounds
        return {}

    def set_density(self, density: float) -> None:
        return None

    def health_record(self) -> HealthRecord:
        ranks = len(self._rows)
        kept = [0.0] * ranks if self._method is None else self._method.norms()
        return HealthRecord((self._sent,) * ranks, tuple(kept), self._rounds)

    def check(self) -> None:
        return None

    def state_dict(self) -> Any:
        return {
            "sent": self._sent,
            "method": None if self._method is None else self._method.state_dict(),
        }

    def load_state_dict(self, state: Any) -> None:
        self._sent = float(state["sent"])
        if self._method is not None:
            self._method.load_state_dict(state["method"])
