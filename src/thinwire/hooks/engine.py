"""Engine: runs backward passes on the communication thread. It does not know DDP.

Threads. DDP calls the hook on the autograd thread, which only submits jobs to the
communication thread (`begin`, `take`). From `begin` until the future of the pass's last
bucket is done, the units, the group and all attributes of the engine belong to the
communication thread. Otherwise they belong to the caller: to the autograd thread at the
start of a pass, because DDP waits for all futures at the end of the last one; to any
other thread after `drain`. Only `fail` may be called from any thread.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from thinwire import kernels
from thinwire.errors import (
    AgreementError,
    GroupError,
    InconsistentStateError,
    WireError,
)
from thinwire.groups import Group
from thinwire.hooks.backward_pass import BackwardPass, Deliveries, PendingBucket
from thinwire.hooks.comm_thread import CommThread
from thinwire.hooks.progress_check import ProgressCheck
from thinwire.hooks.units import BucketPlan, Names, Units
from thinwire.reducers import Pipeline

# DDP rebuilds its buckets after the first step of a process. With one unit in the first
# two steps, all runs get the same units at the same step, also if resumed after one.
SETTLE_AT = 2


class Engine:
    """Runs passes in order; keeps their counters and failures.

    `passes` counts the passes of the training that were finite, `passes_here` all those
    of this process. `delivered` is what the last one delivered. `inconsistent` is the
    failure that left the residuals of the ranks inconsistent; `error` is that of the
    last pass, if any.
    """

    def __init__(
        self,
        group: Group,
        units: Units,
        sizes: Mapping[str, int],
        *,
        whole_model: bool,
        per_name: bool,
    ) -> None:
        self.group = group
        self.units = units
        self._sizes = sizes
        self.stopwatch: kernels.Stopwatch = {}
        self.passes = 0
        self.passes_here = 0
        self.skipped = 0
        self.kept = 0.0
        self.finite = True
        self.delivered = Deliveries()
        self.inconsistent: BaseException | None = None
        self.error: BaseException | None = None
        self._whole_model = whole_model
        self._per_name = per_name
        self._thread = CommThread()
        cuda = units.device.type == "cuda"
        self.progress: ProgressCheck | None = None
        self._stream = torch.cuda.Stream(units.device) if cuda else None  # type: ignore[no-untyped-call]
        self._plan: BucketPlan | None = None
        self._pass: BackwardPass | None = None

    def begin(
        self,
        reducer: Pipeline,
        scale: float,
        *,
        plain: bool = False,
        clip: float | None = None,
    ) -> None:
        """Start a backward pass, whose buckets follow."""
        self._thread.submit(lambda: self._open(reducer, scale, plain=plain, clip=clip))

    def take(self, bucket: PendingBucket, *, raises: bool) -> None:
        """Reduce a bucket after those before it, and complete its future.

        With `raises`, a failure is put into the future; otherwise only into `error`.
        """
        self._thread.submit(lambda: self._run(bucket, raises=raises))

    def count_plain_pass(self, reducer: Pipeline) -> None:
        """Count a pass that DDP's own all-reduce has replaced."""
        self.passes_here += 1
        self.kept = 1.0
        self.delivered = Deliveries()
        if self.units.has_states:
            self.passes += 1
            for state in self.units.states:
                reducer.count_plain(self.group, state)

    def deliveries(self) -> Deliveries:
        """What the last pass delivered, for the current stream of the caller.

        The pass is over, because DDP waits for its futures.
        """
        if self._stream is not None:
            current = torch.cuda.current_stream(self.units.device)
            current.wait_stream(self._stream)
            for unit in self.delivered.units:
                unit.indices.record_stream(current)
        return self.delivered

    def drain(self) -> None:
        """Wait for all passes that were begun; raise if the state is inconsistent."""
        self._thread.drain()
        if self._stream is not None:
            self._stream.synchronize()
        self._check_packets()
        self.check_consistent()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Change the units outside of a pass; an exception leaves them inconsistent."""
        self.inconsistent = InterruptedError("a change of the residuals did not finish")
        try:
            yield
        except BaseException as error:
            self.inconsistent = error
            raise
        self.inconsistent = None

    def fail(self, error: BaseException) -> None:
        """Record the first failure of a pass, which is the cause of later ones.

        The state is inconsistent afterwards, unless all ranks have refused the step.
        """
        if self.error is None:
            self.error = error
            refused = isinstance(error, AgreementError)
            self.inconsistent = None if refused else error

    def check_consistent(self) -> None:
        """Raise if an earlier reduction has failed half-way."""
        if self.inconsistent is not None:
            raise InconsistentStateError(
                "an earlier reduction failed half-way, so this rank's residuals do not "
                "match those of other ranks: restart every rank from the last "
                f"checkpoint. The failure was: {self.inconsistent!r}"
            ) from self.inconsistent

    def restart(self, passes: int) -> None:
        """Continue from a checkpoint that has been loaded into the units."""
        self.passes = passes
        self._plan = None

    def settle_at_once(self, groups: Sequence[Names]) -> None:
        """Make these the final units before the first step, unless some are final."""
        if not self.units.settled:
            self.units.settle(self._units_of(groups))

    def close(self) -> None:
        """End the thread, and let go of what the last pass refers to."""
        self._thread.close()
        self._pass = None

    def _open(
        self, reducer: Pipeline, scale: float, *, plain: bool, clip: float | None
    ) -> None:
        self.error = None
        self.delivered = Deliveries()
        self.units.sparse.begin()
        unsettled = not self.units.settled and self.passes >= SETTLE_AT
        self._pass = BackwardPass(
            reducer,
            self.group,
            self.units,
            plan=None if unsettled else self._plan,
            choose=self._choose,
            number=self.passes,
            scale=scale,
            per_name=self._per_name,
            plain=plain,
            clip=clip,
            measured=self.progress is not None and self.progress.measures(self.passes),
        )
        self.inconsistent = InterruptedError("a backward pass did not finish")

    def _run(self, bucket: PendingBucket, *, raises: bool) -> None:
        if self.error is None:
            self._try(bucket)
        if self.error is not None or bucket.last:
            self._complete(bucket, raises=raises)

    def _try(self, bucket: PendingBucket) -> None:
        stream = self._stream
        try:
            with (
                torch.no_grad(),
                kernels.timed_primitives(self.stopwatch),
                self._on_stream(),
            ):
                if stream is not None and bucket.ready is not None:
                    stream.wait_event(bucket.ready)
                self._add(bucket)
        except BaseException as error:  # of any kind: it is raised from backward
            if isinstance(error, AgreementError):
                self.units.sparse.undo_()  # rows may have come before what was refused
            self.fail(error)

    def _add(self, bucket: PendingBucket) -> None:
        current = self._pass
        if current is None:
            raise RuntimeError("a bucket arrived before its backward pass began")
        current.add(bucket)
        if bucket.last:
            self._close(current)

    def _close(self, current: BackwardPass) -> None:
        self._plan = current.plan
        self.delivered = current.deliveries
        self.passes += current.finite
        self.passes_here += 1
        # Now, not in the next pass: a checkpoint in between must have the final units.
        buckets = [bucket.names for bucket in current.buckets]
        if self._settle_if_due(buckets, passes_here=self.passes_here):
            self._plan = BucketPlan.draw(self.units.layouts, buckets, self._sizes)
        self.finite = current.finite
        self.skipped += not current.finite
        if current.finite and self.units.layout.size:
            self.kept = current.delivered / self.units.layout.size
        self._check_progress(current)
        self.inconsistent = None

    def _check_progress(self, current: BackwardPass) -> None:
        if self.progress is not None and self.units.layout.size:
            self.progress.note(finite=current.finite, delivered=current.delivered)
            if current.measured and current.finite:
                norm = current.energy**0.5
                self.progress.measured(norm, self.units, self.kept)

    def _complete(self, bucket: PendingBucket, *, raises: bool) -> None:
        """Complete all futures: DDP reads results when the last one is done."""
        waiting = self._pass.buckets if self._pass is not None else []
        for each in {id(each): each for each in (*waiting, bucket)}.values():
            if each.future.done():
                continue
            if self.error is None or not raises:
                with self._on_stream():  # a CUDA future records its stream
                    each.future.set_result(each.buffer)
            else:
                each.future.set_exception(_as_exception(self.error))  # type: ignore[arg-type]

    def _on_stream(self) -> AbstractContextManager[object]:
        """Use the communication stream, which runs beside that of the backward pass."""
        stream = self._stream
        return nullcontext() if stream is None else torch.cuda.stream(stream)

    def _check_packets(self) -> None:
        """Record whether a packet in device memory was wrong; the thread is idle."""
        try:
            for state in self.units.existing_states:
                state.raise_deferred_errors(wait=True)
        except WireError as error:
            self.fail(error)
            # Also if the last pass was refused, which alone is consistent.
            self.inconsistent = self.inconsistent or error

    def _choose(self, buckets: Sequence[Names]) -> BucketPlan:
        self._settle_if_due(buckets, passes_here=self.passes_here + 1)
        return BucketPlan.draw(self.units.layouts, buckets, self._sizes)

    def _settle_if_due(self, buckets: Sequence[Names], *, passes_here: int) -> bool:
        """Make units of the buckets in the first step in which these are final."""
        if self.units.settled or self.passes < SETTLE_AT or passes_here < SETTLE_AT:
            return False
        self.units.settle(self._units_of(buckets))
        return True

    def _units_of(self, buckets: Sequence[Names]) -> list[Names]:
        known = set(self.units.layout.names)
        groups = [tuple(n for n in names if n in known) for names in buckets]
        if self._whole_model:
            groups = [tuple(name for names in groups for name in names)]
        return [names for names in groups if names]


def _as_exception(error: BaseException) -> Exception:
    """An error of a type that futures accept."""
    return error if isinstance(error, Exception) else GroupError(repr(error))
