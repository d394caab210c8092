"""Passes: hands the buckets of each backward pass to the engine or to plain DDP.

All methods run on the thread that reduces: autograd's, or the user's.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.futures import Future

from thinwire.codecs import Timed
from thinwire.errors import ThinwireError
from thinwire.groups import Group
from thinwire.hooks.backward_pass import PendingBucket
from thinwire.hooks.closed import CLOSED
from thinwire.hooks.engine import Engine
from thinwire.hooks.plain import PlainAllReduce
from thinwire.hooks.user_warnings import warn
from thinwire.reducers import Pipeline

Reduce = Callable[[PendingBucket], None]


class Passes:
    """Starts each pass, takes its buckets, and raises its error at the end.

    `check` runs before a pass of the engine; it may raise to refuse the pass.
    """

    def __init__(
        self,
        engine: Engine,
        plain: PlainAllReduce,
        everyone: Group,
        *,
        check: Callable[[], None],
        clip: float | None = None,
    ) -> None:
        self._engine = engine
        self._plain = plain
        self.everyone = everyone
        self._check = check
        self._clip = clip
        self._reduce: Reduce = self._leave_unreduced
        # Errors are raised when backward ends, or at once if it is not running.
        self._in_backward = True
        self._refusal: ThinwireError | None = None

    def close(self) -> None:
        """Refuse further passes."""
        self._engine = self._plain = self.everyone = CLOSED

    def begin(self, reducer: Pipeline, scale: Callable[[], float]) -> None:
        """Choose how the buckets of a new pass are reduced."""
        self._in_backward = torch._C._current_graph_task_id() != -1  # noqa: SLF001
        self._refusal = None
        try:
            self._engine.check_consistent()
            self._reduce = self._choose(reducer, scale())
        except ThinwireError as refusal:
            if not self._in_backward:
                raise
            self._refusal, self._reduce = refusal, self._leave_unreduced

    def take(self, bucket: PendingBucket) -> Future[Tensor]:
        """Start to reduce a bucket; return the future of its mean."""
        self._reduce(bucket)
        return bucket.future

    @property
    def refused(self) -> bool:
        """Whether the pass reduces nothing; `end` says why."""
        return self._refusal is not None

    def end_with_backward(self) -> None:
        """Call `end` after this backward pass, if one is running."""
        if self._in_backward:
            at_end_of_backward(self.end)

    def _choose(self, reducer: Pipeline, scale: float) -> Reduce:
        """Plain DDP's all-reduce if the pass needs no more, else the engine."""
        plain = self._plain.fits(reducer)
        if plain and not self._plain.timed(reducer):
            self._engine.error = None
            return lambda bucket: self._plain.reduce(bucket, reducer)
        self._check()
        codec = reducer.codec
        if codec is not None:
            reducer = replace(reducer, codec=Timed(codec, self._engine.stopwatch))
        self._engine.begin(reducer, scale, plain=plain, clip=self._clip)
        return lambda bucket: self._engine.take(bucket, raises=not self._in_backward)

    def _leave_unreduced(self, bucket: PendingBucket) -> None:
        bucket.future.set_result(bucket.buffer)

    def end(self) -> None:
        """Raise the error of a pass whose buckets are done, if there is one."""
        # Not kept: its traceback holds the model, which holds this object.
        refusal, self._refusal = self._refusal, None
        error = refusal or self._engine.error
        if error is not None:
            raise error
        progress = self._engine.progress
        if progress is not None and (warning := progress.take_warning()):
            warn(warning)


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Call back when this backward pass is over.

    DDP queues its own callback after the last bucket. Ours is queued twice, so that it
    runs after DDP's: DDP is then ready for another pass even if the callback raises.
    """
    engine = Variable._execution_engine  # noqa: SLF001 - there is no public way
    engine.queue_callback(lambda: engine.queue_callback(callback))
