"""Real processes: the same run with DDP, one rank per process, as torchrun starts them.

The whole model is one unit of reduction, as for virtual workers.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
from torch.nn.parallel import DistributedDataParallel

from experiments.tasks.base import Carry, Data
from experiments.train.powersgd import PowerSGD, cost_of
from experiments.train.reduction import Reducer, is_peer
from experiments.train.replicas import seed_of
from experiments.train.workers import HealthRecord, checksum
from thinwire.collectives import RowCollective
from thinwire.cost import ring_all_reduce
from thinwire.errors import AgreementError, ConfigError
from thinwire.hooks.ddp import DDPState, hook
from thinwire.layout import Layout


class Processes:
    """Workers for `experiments.train.run`: this process is one of them."""

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        *,
        reducer: Reducer,
        sparse: RowCollective,
        seed: int = 0,
    ) -> None:
        if is_peer(reducer):
            raise ConfigError("peers are compared with virtual workers only")
        self.model = model
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.leads = self.rank == 0
        self.steps = data.steps(self.ranks)
        self._data, self._seed = data, seed
        self._ddp = DistributedDataParallel(model)
        self._carry: Carry = None
        self._state: DDPState | None = None
        self._sent_before = 0.0
        self._passes = 0
        self._low_rank: PowerSGD | None = None
        if isinstance(reducer, PowerSGD):
            low_rank = power.PowerSGDState(
                None,
                matrix_approximation_rank=reducer.rank,
                start_powerSGD_iter=reducer.dense,
                random_seed=reducer.seed,
            )
            self._ddp.register_comm_hook(low_rank, power.powerSGD_hook)
            self._low_rank = reducer
        else:
            self._state = DDPState(self._ddp, reducer, scope="model", sparse=sparse)
            self._ddp.register_comm_hook(self._state, hook)

    def backward(self, epoch: int, step: int) -> Tensor:
        batch = self._data.batch(
            rank=self.rank, ranks=self.ranks, epoch=epoch, step=step, seed=self._seed
        )
        carry = None if step == 0 else self._carry
        self._ddp.zero_grad()
        torch.manual_seed(seed_of(self._seed, epoch * self.steps + step, self.rank))
        loss, self._carry = self._data.loss(self._ddp, batch, carry)
        loss.backward()  # type: ignore[no-untyped-call]
        self._passes += 1
        return loss.detach()

    def averages(self, figures: list[float]) -> list[float]:
        held = zip(*_gathered(figures), strict=True)
        return [float(sum(each) / self.ranks) for each in held]

    def agree(self, opinion: bool) -> bool:  # noqa: FBT001
        return bool(_from_leader(opinion))

    def evaluate(self) -> float:
        return float(_from_leader(self._data.evaluate(self.model) if self.leads else 0))

    def final(self) -> dict[str, float]:
        return self._data.final(self.model) if self.leads else {}

    def set_density(self, density: float) -> None:
        if self._state is not None and self._state.density is not None:
            self._state.density = density

    def health_record(self) -> HealthRecord:
        mine = (self._sent_by_hook(), 0.0, 0.0)
        if self._state is not None:
            metrics = self._state.metrics()
            sent = self._sent_before + metrics["bytes_sent"]
            mine = (sent, metrics["residual_norm"], metrics["rounds"])
        held = zip(*_gathered(mine), strict=True)
        every_sent, every_kept, rounds = held
        return HealthRecord(every_sent, every_kept, rounds[0])

    def check_replicas(self) -> None:
        sums = _gathered(checksum(self.model))
        if len(set(sums)) > 1:
            raise AgreementError(f"checksums of the parameters differ: {sums}")

    def check_savable(self) -> None:
        if self._state is None:
            raise ConfigError(
                "PowerSGD's hook in real processes is not checkpointed: train without "
                "a checkpoint (--out), or with virtual workers"
            )

    def state_dict(self) -> Any:
        assert self._state is not None, "refused by check_savable"
        return _gathered(
            {**self._state.state_dict(), "sent": self.health_record().sent[self.rank]}
        )

    def load_state_dict(self, state: Any) -> None:
        if self._state is None or not isinstance(state, list):
            raise ConfigError("a checkpoint of another method")
        mine = dict(state[self.rank])
        self._sent_before = float(mine.pop("sent", 0.0))
        self._state.load_state_dict(mine)

    def _sent_by_hook(self) -> float:
        """Bytes of PyTorch's hook, by its card; what it remembers is its own."""
        if self._low_rank is None:
            return 0.0
        trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        after = cost_of(self._low_rank, Layout.of(trained.items()), self.ranks)
        dense = min(self._passes, self._low_rank.dense)
        rest = self._passes - dense
        return dense * dense_bytes(self.model, self.ranks) + rest * after.nbytes


def _gathered(mine: Any) -> list[Any]:
    held: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(held, mine)
    return held


def _from_leader(mine: Any) -> Any:
    held = [mine]
    dist.broadcast_object_list(held)
    return held[0]


def dense_bytes(model: nn.Module, ranks: int) -> float:
    """What a rank of DDP sends in a step where every gradient is dense."""
    size = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return float(ring_all_reduce(4 * size, ranks).nbytes)
