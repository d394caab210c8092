"""Virtual workers: P ranks of a training run in one process, on one device.

There is one copy of the parameters. Every worker's gradient is computed from it, on the
worker's own batch, into a row of one matrix; each rank then reduces its row as a hook
of DDP would, over the simulated group; one optimizer steps. On a CPU the parameters are
those that real processes with `scope="model"` arrive at: bit for bit where a method
does not use the library's all-reduce.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from experiments.peers.base import PeerMethod, Rows
from experiments.tasks.base import Batch, Carry, Data, Recipe
from experiments.train.averaging import Averaging
from experiments.train.captured import Captured
from experiments.train.health import GradientNorms
from experiments.train.powersgd import LowRank, PowerSGD
from experiments.train.ranks import Place, Simulated
from experiments.train.reduction import Reducer, is_peer, is_plain
from experiments.train.replicas import Replicas, arrival_order, seed_of
from experiments.train.workers import HealthRecord
from thinwire.collectives import RowCollective
from thinwire.errors import ConfigError
from thinwire.layout import Layout
from thinwire.reducers import Pipeline

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class Virtual:
    """Workers for `experiments.train.run`; `run` gives them their threads."""

    leads = True
    seconds_reducing = 0.0  # in the last step

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        place: Place,
        *,
        reducer: Reducer,
        sparse: RowCollective,
    ) -> None:
        self.model = model
        self.ranks = place.ranks
        self.steps = data.steps(place.ranks)
        self._data = data
        self._place = place
        self._replicas = Replicas(
            model, data, place.ranks, apart=is_peer(reducer) and reducer.apart
        )
        named = self._replicas.layout
        order = arrival_order(model, data, self._batch(0, 0, 0), seed=place.seed)
        self._replicas.lie_as(order)
        self._norms = GradientNorms(self.steps)
        self._carries: list[Carry] = [None] * place.ranks
        self._captured: Captured | None = None
        self._may_capture = (
            place.way.capture and self._rows.is_cuda and not self._replicas.sparse
        )
        self._peer = _peer(self._replicas, reducer)
        self._reduction: Averaging | Simulated = (
            _reduction(
                self._replicas, named, place=place, reducer=reducer, sparse=sparse
            )
            if not is_peer(reducer)
            else Averaging(self._rows, self._peer)
        )
        self._point_grads()

    def run(self, body: Callable[["Virtual"], Result]) -> Result:
        """Call `body(self)` with all ranks at hand; what it returned."""
        return self._reduction.run(lambda: body(self))

    def backward(self, epoch: int, step: int) -> Tensor:
        batches = [self._batch(rank, epoch, step) for rank in range(self.ranks)]
        losses, sparse = self._gradients(epoch, step, batches)
        self._norms.observe(step, self._rows)
        began = time.perf_counter()
        means = self._reduction.reduce_(sparse)
        self.seconds_reducing = time.perf_counter() - began
        named = dict(self.model.named_parameters()) if means else {}
        for name, mean in means.items():
            named[name].grad = mean
        return losses.mean()

    def averages(self, figures: list[float]) -> list[float]:
        return figures

    def agree(self, opinion: bool) -> bool:  # noqa: FBT001
        return opinion

    @property
    def how(self) -> str:
        """How gradients are computed and reduced, as text."""
        computed = "eagerly" if self._captured is None else "in a CUDA graph"
        return f"computed {computed}, reduced {self._reduction.where}"

    def own_optimizer(self, recipe: Recipe) -> torch.optim.Optimizer | None:
        """The optimizer of a peer that has one of its own."""
        return None if self._peer is None else self._peer.optimizer(recipe, self.model)

    def evaluate(self) -> float:
        return self._data.evaluate(self.model)

    def final(self) -> dict[str, float]:
        return self._data.final(self.model)

    def set_density(self, density: float) -> None:
        self._reduction.set_density(density)

    def health_record(self) -> HealthRecord:
        return replace(self._reduction.health_record(), gradients=self._norms.read())

    def check_replicas(self) -> None:
        self._reduction.check()

    def check_savable(self) -> None:
        return None

    def state_dict(self) -> Any:
        return self._reduction.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self._reduction.load_state_dict(state)

    @property
    def _rows(self) -> Tensor:
        return self._replicas.rows

    def _batch(self, rank: int, epoch: int, step: int) -> Batch:
        return self._data.batch(
            rank=rank, ranks=self.ranks, epoch=epoch, step=step, seed=self._place.seed
        )

    def _gradients(
        self, epoch: int, step: int, batches: Sequence[Batch]
    ) -> tuple[Tensor, list[list[Tensor]]]:
        number = epoch * self.steps + step
        if step == 0:
            self._carries = [None] * self.ranks
        elif self._may_capture and self._captured is None:
            self._try_capture(batches)
        # The first step of an epoch has nothing to carry, where the graph always has;
        # and a resumed run has no graph yet, where one that went on would have.
        if self._captured is None or step == 0:
            return self._eagerly(number, batches)
        torch.manual_seed(seed_of(self._place.seed, number, 0))
        begin = self._carries if step == 1 else None
        return self._captured.replay(batches, begin), []

    def _eagerly(
        self, number: int, batches: Sequence[Batch]
    ) -> tuple[Tensor, list[list[Tensor]]]:
        self._replicas.share_buffers()
        losses, sparse = [], []
        for rank, batch in enumerate(batches):
            torch.manual_seed(seed_of(self._place.seed, number, rank))
            loss, carry, rows = self._replicas.backward(
                rank, batch, self._carries[rank]
            )
            self._carries[rank] = carry
            losses.append(loss)
            sparse.append(rows)
        return torch.stack(losses), sparse

    def _try_capture(self, batches: Sequence[Batch]) -> None:
        try:
            self._captured = Captured(self._replicas, batches, self._carries)
        except RuntimeError as error:
            self._may_capture = False
            logger.warning(
                "no CUDA graph of this model (%s): every step is launched kernel by "
                "kernel, which is slower",
                error,
            )

    def _point_grads(self) -> None:
        """The optimizer reads the mean where the reduction leaves it."""
        views = self._replicas.layout.views(self._rows[0])
        for name, parameter in self.model.named_parameters():
            if name in views:
                parameter.grad = views[name]


def _peer(replicas: Replicas, reducer: Reducer) -> PeerMethod | None:
    if not is_peer(reducer):
        return None
    if replicas.sparse:
        raise ConfigError("peers do not know sparse gradients: choose another task")
    return reducer.start(Rows(replicas.layout, replicas.rows, replicas.weights))


def _reduction(
    replicas: Replicas,
    named: Layout,
    *,
    place: Place,
    reducer: Pipeline | PowerSGD,
    sparse: RowCollective,
) -> Averaging | Simulated:
    if isinstance(reducer, PowerSGD):
        low_rank = LowRank(reducer, replicas.layout, replicas.rows)
        return Averaging(replicas.rows, low_rank)
    if is_plain(reducer) and not replicas.sparse:
        return Averaging(replicas.rows, None)
    return Simulated(replicas, named, place=place, reducer=reducer, sparse=sparse)
