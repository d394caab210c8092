"""ShardedState: reduces between the replicas of a sharded model.

FSDP reduces gradients over the shards of each replica. Then `.grad` of a parameter is
this rank's shard of them, which the ranks with the same shard reduce: those of a module
as soon as they are there, while the backward pass goes on, or all in `reduce`.
"""

from collections.abc import Mapping
from datetime import timedelta

from torch import Tensor

from thinwire.errors import ConfigError
from thinwire.hooks.options import Scope
from thinwire.hooks.parts import Scaler, Setup
from thinwire.hooks.sharded.gradients import runs_of
from thinwire.hooks.sharded.model import ShardedModel
from thinwire.hooks.sharded.reduction import Reduction
from thinwire.hooks.state import State
from thinwire.reducers import Pipeline


class ShardedState(State):
    """A reducer for one sharded model.

    All ranks construct it together. They compare their settings and their replicas; a
    difference is an error on every rank, and nothing has changed.
    """

    def __init__(
        self,
        model: ShardedModel,
        reducer: Pipeline,
        *,
        scope: Scope = "bucket",
        grad_scaler: Scaler | None = None,
        timeout: float | timedelta | None = None,
        clip: float | None = None,
    ) -> None:
        setup = Setup.agreed(
            model,
            reducer,
            scope=scope,
            sparse="gather",
            grad_scaler=grad_scaler,
            timeout=timeout,
            clip=clip,
        )
        super().__init__(setup, grad_scaler)
        shards = setup.wrapped.shards
        assert shards is not None
        runs = runs_of(shards, setup.parameters)
        named = {n: s for unit in runs for run in unit for n, s in run.named()}
        self._trained = self._shard_of = named
        self._overlap = model.overlap
        self._reduction = Reduction(
            runs,
            self._passes,
            self._engine,
            begin=lambda: self._passes.begin(self._reducer, self._scale),
            overlap=model.overlap,
        )
        try:
            self.check_replicas()  # FSDP does not broadcast the first one
        except BaseException:
            self.close()
            raise
        self._reduction.watch(model.model)
        self.on_close(self._reduction.close)

    def _held(self) -> Mapping[str, Tensor]:
        return {name: shard.local for name, shard in self._shard_of.items()}

    def reduce(self) -> None:
        """Replace the gradients by their means, on all ranks together.

        For `overlap=False`: call it after the last backward pass of a step, before
        anything reads the gradients.
        """
        if self._overlap:
            raise ConfigError(
                "the backward pass has reduced already: leave state.reduce() out, or "
                "attach with overlap=False"
            )
        self._reduction.reduce()
