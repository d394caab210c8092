"""PlainAllReduce: DDP's own all-reduce, for passes that need nothing else.

`method="dense"` uses it from the first pass on, and "auto" once every unit has chosen
dense. There is no guard, no residual and no copy: buckets are reduced as DDP does it.
"""

from thinwire.cost import ring_all_reduce
from thinwire.errors import GroupError, PeerError
from thinwire.groups import Traffic
from thinwire.groups.one_rank import OneRank
from thinwire.groups.torch import TorchGroup
from thinwire.hooks.backward_pass import PendingBucket
from thinwire.hooks.engine import Engine
from thinwire.reducers import Pipeline
from thinwire.reducers.mean import begin_mean_


class PlainAllReduce:
    """Reduces buckets on the autograd thread, while the engine runs no pass.

    It is not `allowed` where every pass needs the engine: for sparse gradients, and to
    clip.
    """

    def __init__(
        self, transport: TorchGroup | OneRank, engine: Engine, *, allowed: bool
    ) -> None:
        self._transport = transport
        self._engine = engine
        self._allowed = allowed
        self.traffic = Traffic()

    def fits(self, reducer: Pipeline) -> bool:
        """Whether DDP's own all-reduce may replace the next pass."""
        units = self._engine.units
        if not units.has_states:
            return self.always_fits(reducer)
        plain = units.settled and all(map(reducer.plain, units.states))
        return plain and self._allowed

    def always_fits(self, reducer: Pipeline) -> bool:
        """Whether it may replace every pass, as long as no unit has a state."""
        return reducer.plain() and self._allowed

    def timed(self, reducer: Pipeline) -> bool:
        """Whether a unit of the next pass is timed, so that the engine must run it."""
        units = self._engine.units
        return units.has_states and any(map(reducer.timed, units.states))

    def reduce(self, bucket: PendingBucket, reducer: Pipeline) -> None:
        """Start the all-reduce; a callback from another thread completes the future."""
        buffer, future = bucket.buffer, bucket.future
        cost = ring_all_reduce(buffer.nbytes, self._transport.size)
        self.traffic += Traffic(cost.rounds, cost.nbytes, cost.nbytes)
        if bucket.last:
            self._engine.count_plain_pass(reducer)

        def done(error: GroupError | None) -> None:
            if error is not None:
                self._engine.fail(error)
            future.set_result(buffer)

        try:
            begin_mean_(buffer, self._transport, done)
        except PeerError as error:
            done(error)
        except GroupError:
            # An earlier bucket has failed; its own callback reports the cause.
            future.set_result(buffer)
