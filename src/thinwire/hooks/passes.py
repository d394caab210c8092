"""Passes: hands the buckets of each backward pass to the engine or to plain DDP.

All methods run on the autograd thread that calls the hook.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.autograd import Variable
from torch.futures import Future

from thinwire.codecs import Timed
from thinwire.errors import ThinwireError
from thinwire.hooks.backward_pass import PendingBucket
from thinwire.hooks.bucket_contents import BucketContents
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
        contents: BucketContents,
        *,
        check: Callable[[], None],
        clip: float | None = None,
    ) -> None:
        self._engine = engine
        self._plain = plain
        self._contents = contents
        self._check = check
        self._clip = clip
        self._reduce: Reduce = self._leave_unreduced
        # Errors are raised when backward ends, or at once if it is not running.
        self._in_backward = True
        self._refusal: ThinwireError | None = None

    def close(self) -> None:
        """Refuse further passes."""
        self._engine = self._plain = CLOSED
        self._contents.close()

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

    def take(self, bucket: GradBucket) -> Future[Tensor]:
        """Start to reduce a bucket; return the future of its mean."""
        if bucket.is_last() and self._in_backward:
            # With the last bucket, as DDP does: the first may come in a nested pass.
            _at_end_of_backward(self._end)
        device = bucket.buffer().device
        cuda = device.type == "cuda"
        pending = PendingBucket(
            *self._contents.parameters(bucket),
            bucket.buffer(),
            last=bucket.is_last(),
            future=Future(devices=[device] if cuda else None),
            ready=_event() if cuda else None,
            old=self._contents.old(bucket),
        )
        self._reduce(pending)
        return pending.future

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

    def _end(self) -> None:
        # Not kept: its traceback holds the model, which holds this object.
        refusal, self._refusal = self._refusal, None
        error = refusal or self._engine.error
        if error is not None:
            raise error
        progress = self._engine.progress
        if progress is not None and (warning := progress.take_warning()):
            warn(warning)


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event


def _at_end_of_backward(callback: Callable[[], None]) -> None:
    """Call back when this backward pass is over.

    DDP queues its own callback after the last bucket. Ours is queued twice, so that it
    runs after DDP's: DDP is then ready for another pass even if the callback raises.
    """
    engine = Variable._execution_engine  # noqa: SLF001 - there is no public way
    engine.queue_callback(lambda: engine.queue_callback(callback))
