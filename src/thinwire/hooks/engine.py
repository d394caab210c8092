"""Engine: the communication thread's side of a hook, one backward pass after another.

It knows units, plans and failures; it does not know DDP. Every method that touches the
units runs on the courier's thread or after `drain`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from thinwire import kernels
from thinwire.errors import AgreementError, GroupError, TornError, WireError
from thinwire.groups import Group
from thinwire.hooks.backward import Arrival, Backward
from thinwire.hooks.courier import Courier
from thinwire.hooks.units import Names, Plan, Units
from thinwire.reducers import Pipeline

# DDP redraws its buckets after a process's first step. Two steps with one unit give
# every run, resumed after the first step or not, the same units at the same step.
SETTLE_AT = 2


class Engine:
    """Runs passes in order and remembers what they came to."""

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
        self.torn: BaseException | None = None
        self.error: BaseException | None = None
        self._whole_model = whole_model
        self._per_name = per_name
        self._courier = Courier()
        cuda = units.device.type == "cuda"
        self._stream = torch.cuda.Stream(units.device) if cuda else None  # type: ignore[no-untyped-call]
        self._plan: Plan | None = None
        self._pass: Backward | None = None

    def begin(self, reducer: Pipeline, scale: float, *, bare: bool = False) -> None:
        """Open a backward pass; its arrivals follow. `bare`: every unit is direct."""
        self._courier.submit(lambda: self._open(reducer, scale, bare=bare))

    def all_direct(self, reducer: Pipeline) -> bool:
        """Whether there are units, for good, and plain DDP would do for each."""
        units = self.units
        ready = units.remember and units.settled
        return ready and all(reducer.direct(state) for state in units.states)

    def count_direct_pass(self, reducer: Pipeline) -> None:
        """Take note of a pass that plain DDP's way was good for."""
        self.passes_here += 1
        self.kept = 1.0
        if self.units.remember:
            self.passes += 1
            for state in self.units.states:
                reducer.count(self.group, state)

    def take(self, arrival: Arrival, *, raises: bool) -> None:
        """Reduce a bucket in its turn and complete its future.

        With `raises`, a failure is put into the future; else it waits in `error`.
        """
        self._courier.submit(lambda: self._guarded(arrival, raises=raises))

    def drain(self) -> None:
        """Wait until everything that was begun is over, and refuse a torn state."""
        self._courier.drain()
        if self._stream is not None:
            self._stream.synchronize()
        self._judge()
        self.refuse_if_torn()

    @contextmanager
    def unbroken(self) -> Iterator[None]:
        """Work on the units outside of a pass: torn if it does not come to its end."""
        self.torn = InterruptedError("work on the residuals did not come to its end")
        try:
            yield
        except BaseException as error:
            self.torn = error
            raise
        self.torn = None

    def fail(self, error: BaseException) -> None:
        """Note a failure: the state is torn unless all ranks refused alike.

        The first one counts: it names the cause, and others follow from it.
        """
        if self.error is not None:
            return
        self.error = error
        if isinstance(error, AgreementError):
            self.torn = None
        else:
            self.torn = error

    def refuse_if_torn(self) -> None:
        """A reduction that raised is over, and so is what it was working on."""
        if self.torn is not None:
            raise TornError(
                "an earlier reduction failed half-way, so this rank's residuals are "
                "not to be trusted: restart every rank from the last checkpoint. The "
                f"failure was: {self.torn!r}"
            ) from self.torn

    def restart(self, passes: int) -> None:
        """Go on from a checkpoint, whose units are in place already."""
        self.passes = passes
        self._plan = None

    def _open(self, reducer: Pipeline, scale: float, *, bare: bool) -> None:
        self.error = None
        unsettled = not self.units.settled and self.passes >= SETTLE_AT
        self._pass = Backward(
            reducer,
            self.group,
            self.units,
            plan=None if unsettled else self._plan,
            choose=self._choose,
            number=self.passes,
            scale=scale,
            per_name=self._per_name,
            bare=bare,
        )
        # Torn from before the first message until after the last.
        self.torn = InterruptedError("a backward pass did not run to its end")

    def _guarded(self, arrival: Arrival, *, raises: bool) -> None:
        if self.error is None:
            self._try(arrival)
        if self.error is not None or arrival.last:
            self._complete(arrival, raises=raises)

    def _try(self, arrival: Arrival) -> None:
        stream = self._stream
        try:
            with (
                torch.no_grad(),
                kernels.timed_primitives(self.stopwatch),
                self._beside(),
            ):
                if stream is not None and arrival.ready is not None:
                    stream.wait_event(arrival.ready)
                self._add(arrival)
        except BaseException as error:  # of any kind: raised again from backward
            self.fail(error)

    def _add(self, arrival: Arrival) -> None:
        current = self._pass
        if current is None:
            raise RuntimeError("a bucket arrived before its backward pass began")
        current.add(arrival)
        if arrival.last:
            self._close(current)

    def _close(self, current: Backward) -> None:
        self._plan = current.plan
        self.passes += 1
        self.passes_here += 1
        # Now, not at the next pass: a checkpoint in between must know the units.
        buckets = [arrival.names for arrival in current.arrivals]
        if self._settle_if_due(buckets, passes_here=self.passes_here):
            self._plan = Plan.draw(self.units.layouts, buckets, self._sizes)
        self.finite = current.finite
        self.skipped += not current.finite
        if current.finite and self.units.layout.size:
            self.kept = current.delivered / self.units.layout.size
        self.torn = None

    def _complete(self, arrival: Arrival, *, raises: bool) -> None:
        """DDP reads results when the last future is done: complete them all then."""
        waiting = self._pass.arrivals if self._pass is not None else []
        for each in {id(each): each for each in (*waiting, arrival)}.values():
            if each.future.done():
                continue
            if self.error is None or not raises:
                with self._beside():  # whoever takes it waits for what was begun there
                    each.future.set_result(each.buffer)
            else:
                each.future.set_exception(_as_exception(self.error))  # type: ignore[arg-type]

    def _beside(self) -> AbstractContextManager[object]:
        """On the stream of communication, beside the one of the backward pass."""
        stream = self._stream
        return nullcontext() if stream is None else torch.cuda.stream(stream)

    def _judge(self) -> None:
        """What packets on a device turned out to be, now that nothing is under way."""
        try:
            for state in self.units.states if self.units.remember else ():
                state.raise_deferred_errors(wait=True)
        except WireError as error:
            self.fail(error)
            self.torn = self.torn or error  # also after a refusal, which tears nothing

    def _choose(self, buckets: Sequence[Names]) -> Plan:
        self._settle_if_due(buckets, passes_here=self.passes_here + 1)
        return Plan.draw(self.units.layouts, buckets, self._sizes)

    def _settle_if_due(self, buckets: Sequence[Names], *, passes_here: int) -> bool:
        """Make units of the buckets, if it is time and DDP has redrawn them by now."""
        if self.units.settled or self.passes < SETTLE_AT or passes_here < SETTLE_AT:
            return False
        known = set(self.units.layout.names)
        groups = [tuple(n for n in names if n in known) for names in buckets]
        if self._whole_model:
            groups = [tuple(name for names in groups for name in names)]
        self.units.settle([names for names in groups if names])
        return True


def _as_exception(error: BaseException) -> Exception:
    """What a future accepts."""
    return error if isinstance(error, Exception) else GroupError(repr(error))
