"""Averaging: the methods that need no ranks, because all they send is sums."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from experiments.train.powersgd import LowRank, PowerSGD
from experiments.train.replicas import Replicas
from experiments.train.workers import HealthRecord
from thinwire.cost import ring_all_reduce

Result = TypeVar("Result")


class Averaging:
    """Methods that work on all rows at once: the dense mean, and PowerSGD."""

    where = "as one matrix"

    def __init__(self, replicas: Replicas, method: PowerSGD | None) -> None:
        self._rows = replicas.rows
        self._low_rank = (
            None if method is None else LowRank(method, replicas.layout, replicas.rows)
        )
        self._dense = 2 if method is None else method.dense
        self._sent = 0.0
        self._rounds = 0.0
        self._steps = 0

    def run(self, body: Callable[[], Result]) -> Result:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as the ranks of a simulation, and in real processes
        try:
            return body()
        finally:
            torch.set_num_threads(threads)

    def reduce_(self, sparse: Sequence[Sequence[Tensor]]) -> dict[str, Tensor]:
        self._steps += 1
        cost = ring_all_reduce(4 * self._rows.shape[1], len(self._rows))
        if self._low_rank is None:
            self._rows[0].copy_(self._rows.mean(0))
        else:
            self._low_rank.reduce_(self._rows)
            if self._steps > self._dense:
                cost = self._low_rank.cost()
        self._sent += cost.nbytes
        self._rounds += cost.rounds
        return {}

    def set_density(self, density: float) -> None:
        return None

    def health_record(self) -> HealthRecord:
        ranks = len(self._rows)
        kept = [0.0] * ranks if self._low_rank is None else self._low_rank.norms()
        return HealthRecord((self._sent,) * ranks, tuple(kept), self._rounds)

    def check(self) -> None:
        return None

    def state_dict(self) -> Any:
        return {
            "sent": self._sent,
            "steps": self._steps,
            "low_rank": None if self._low_rank is None else self._low_rank.state_dict(),
        }

    def load_state_dict(self, state: Any) -> None:
        self._sent, self._steps = float(state["sent"]), int(state["steps"])
        if self._low_rank is not None:
            self._low_rank.load_state_dict(state["low_rank"])
