"""The communication hook for DistributedDataParallel, and its state.

    state = DDPState(model, reducer)
    model.register_comm_hook(state, hook)

`thinwire.attach` does both from names. Reductions run on a background thread with a
process group of its own, in parallel with the backward pass (see `hooks.engine`). Their
errors are raised from `backward`.
"""

from datetime import timedelta

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from thinwire.collectives import RowCollective
from thinwire.hooks.bucket_contents import BucketContents
from thinwire.hooks.inspection import DDPModel
from thinwire.hooks.options import Scope
from thinwire.hooks.parts import Scaler, Setup
from thinwire.hooks.state import State
from thinwire.reducers import Pipeline


def hook(state: "DDPState", bucket: GradBucket) -> Future[Tensor]:
    """Reduce a bucket: DDP calls this with every bucket of a backward pass."""
    return state.reduce(bucket)


class DDPState(State):
    """A reducer for one DDP model.

    All ranks construct it together. They compare their settings; a difference is an
    error on every rank, and nothing has changed.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        reducer: Pipeline,
        *,
        scope: Scope = "bucket",
        sparse: str | RowCollective = "gather",
        grad_scaler: Scaler | None = None,
        process_group: dist.ProcessGroup | None = None,
        timeout: float | timedelta | None = None,
        clip: float | None = None,
    ) -> None:
        setup = Setup.agreed(
            DDPModel(model, process_group),
            reducer,
            scope=scope,
            sparse=sparse,
            grad_scaler=grad_scaler,
            timeout=timeout,
            clip=clip,
        )
        super().__init__(setup, grad_scaler)
        self._contents = BucketContents(model)
        self.on_close(self._contents.close)

    def reduce(self, bucket: GradBucket) -> Future[Tensor]:
        """Take a bucket of a backward pass; return the future of its mean."""
        if bucket.index() == 0:
            self._passes.begin(self._reducer, self._scale)
        if bucket.is_last():
            # With this bucket, as DDP does: the first may come in a nested pass.
            self._passes.end_with_backward()
        return self._passes.take(self._contents.pending(bucket))
